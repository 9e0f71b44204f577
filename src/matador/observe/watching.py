"""What metrics ask when somebody looks: connections, workers, depths of queues, counters.

A collector for ``prometheus_client``. It never waits for a broker: it shows the depths it has, and
asks for new ones beside.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from matador.errors import ConfigurationError
from matador.events.app import Matador
from matador.model.message import QueueDepth
from matador.model.text import storable_text
from matador.observe.message_counts import Counted, counting
from matador.observe.oldest import oldest_age
from matador.observe.probes import HasHealth, consumers_of
from matador.runtime.few_at_once import few_at_once
from matador.transports.base import Measuring

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from matador.jobs import Worker
    from matador.pubsub import Publisher, Subscriber
    from matador.rpc import RpcClient, RpcServer

Watchable: TypeAlias = "Matador | Worker | RpcServer | RpcClient | Publisher | Subscriber"
"""What metrics can watch."""

Depths: TypeAlias = Mapping[tuple[str, str], float]
"""Numbers of messages, by the names of queues and states; and ages, as the state ``oldest``."""

log = logging.getLogger("matador.metrics")

ASK_EVERY = 5.0
"""Seconds between two questions for the depths of queues, at least."""

FORGET_AFTER = 60.0
"""Seconds after which a depth that could not be asked again is not shown any more."""

_ASK_SHARE = 20  # asking takes at most one part in so many of the time
_ASK_LIMIT = 5.0  # seconds to wait for all depths of a source
_LONGEST_LABEL = 200

FAILED_JOBS = "failed"
OLDEST = "oldest"
_DEAD_LETTERS = frozenset(("unhandled", "undeliverable", "dlq", FAILED_JOBS))


class _Depths:
    """The depths of a source's queues, by name and state, and when they were asked for."""

    def __init__(self, ask: Callable[[], Awaitable[Depths]]) -> None:
        self._ask = ask
        self._task: asyncio.Task[None] | None = None
        self._known: Depths = {}
        self._known_at = float("-inf")
        self._due = float("-inf")
        self._complained = False

    @property
    def known(self) -> Depths:
        """What was answered last, if that is not too long ago."""
        return self._known if time.monotonic() - self._known_at <= FORGET_AFTER else {}

    @property
    def is_due(self) -> bool:
        """May they be asked for again?"""
        return time.monotonic() >= self._due and (self._task is None or self._task.done())

    def ask(self) -> asyncio.Task[None] | None:
        """Ask for them, in the event loop of the source, unless that is not due."""
        if self.is_due:
            self._task = asyncio.get_running_loop().create_task(
                self._refresh(), name="matador-metrics-depths"
            )
        return self._task

    async def _refresh(self) -> None:
        began = time.monotonic()
        try:
            async with asyncio.timeout(_ASK_LIMIT):
                self._known = await self._ask()
            self._known_at = time.monotonic()
            self._complained = False
        except Exception as error:  # noqa: BLE001 - the connection is down, say: metrics go on
            if not self._complained:
                why = str(error) or f"the broker did not answer within {_ASK_LIMIT:g} s"
                log.info("the depths of queues are unknown for now: %s", why)
            self._complained = True
        finally:
            now = time.monotonic()
            self._due = now + max(ASK_EVERY, _ASK_SHARE * (now - began))


@dataclass(frozen=True, slots=True)
class _Source:
    """Something that is watched."""

    has_health: HasHealth
    transport: Callable[[], str]
    depths: _Depths | None = None
    count: Callable[[], Iterable[Counted]] = tuple


class Watching:
    """A collector of ``prometheus_client`` over all sources. ``collect`` may run in any thread."""

    def __init__(self) -> None:
        self._sources: list[_Source] = []
        self.loop: asyncio.AbstractEventLoop | None = None

    def add(self, source: Watchable) -> None:
        """Watch one more source. Once is enough.

        Raises:
            ConfigurationError: it cannot be watched.
        """
        if all(source is not known.has_health for known in self._sources):
            self._sources.append(_source(source))

    async def refresh(self, timeout: float) -> None:
        """Ask for depths if that is due, and wait for them for at most ``timeout`` seconds."""
        asked = [one.depths.ask() for one in self._sources if one.depths is not None]
        waiting = [task for task in asked if task is not None and not task.done()]
        if waiting:
            await asyncio.wait(waiting, timeout=timeout)

    def describe(self) -> Iterable[Metric]:
        """Nothing is known before somebody looks."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """The metrics of this moment."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        def gauge(name: str, text: str, *labels: str) -> Any:
            return GaugeMetricFamily(f"matador_{name}", text, labels=labels)

        up = gauge("connection_up", "1 while the connection to the broker is up.", "transport")
        running = gauge("running", "Messages being handled.", "queue")
        waiting = gauge("waiting", "Messages received that wait for a free slot.", "queue")
        concurrency = gauge("concurrency", "Messages handled at once, at most.", "queue")
        polled = gauge("last_poll_seconds", "Seconds since messages were last asked for.", "queue")
        stalled = gauge(
            "stalled", "1 if nothing is received although there are free slots.", "queue"
        )
        depth = gauge("queue_depth", "Messages in a queue.", "queue", "state")
        letters = gauge("dead_letter_depth", "Dead letters of a queue.", "queue", "kind")
        oldest = gauge(
            "queue_oldest_seconds", "How long the oldest due message has been waiting.", "queue"
        )
        counted: dict[str, Any] = {}
        for source in list(self._sources):
            health = source.has_health.health()
            connected = health.connection.status == "connected"
            up.add_metric([_label(source.transport())], 1.0 if connected else 0.0)
            for one in consumers_of(health):
                labels = [_label(one.queue)]
                running.add_metric(labels, one.running)
                waiting.add_metric(labels, one.waiting)
                concurrency.add_metric(labels, one.concurrency)
                polled.add_metric(labels, 0.0 if one.receiving else one.last_poll)
                stalled.add_metric(labels, 1.0 if one.stalled else 0.0)
            if source.depths is not None:
                for (queue, state), number in source.depths.known.items():
                    if state == OLDEST:
                        oldest.add_metric([_label(queue)], number)
                        continue
                    family = letters if state in _DEAD_LETTERS else depth
                    family.add_metric([_label(queue), state], number)
                loop = self.loop
                if loop is not None and loop.is_running() and source.depths.is_due:
                    loop.call_soon_threadsafe(source.depths.ask)
            for name, text, label, value, by_status in source.count():
                if name not in counted:
                    counted[name] = CounterMetricFamily(name, text, labels=(label, "status"))
                for status, number in by_status.items():
                    counted[name].add_metric([_label(value), status], number)
        yield from (up, running, waiting, concurrency, polled, stalled, depth, letters, oldest)
        yield from counted.values()


def _label(text: str) -> str:
    return storable_text(text, _LONGEST_LABEL)


def _source(source: Watchable) -> _Source:
    """How to watch something."""
    if isinstance(source, Matador):
        return _Source(
            source, lambda: source.transport.name, _Depths(lambda: _queue_depths(source))
        )
    from matador.jobs import Worker

    if isinstance(source, Worker):

        def transport() -> str:
            return "none" if source.provider is None else source.provider.transport.name

        return _Source(source, transport, _Depths(lambda: _job_depths(source)))
    count = counting(source)
    if count is None:
        raise ConfigurationError(
            f"{source!r} cannot be watched: give an application, a job worker, an RPC server or "
            f"client, a publisher or a subscriber"
        )
    return _Source(source, lambda: type(source).__name__, None, count)


async def _queue_depths(app: Matador) -> Depths:
    transport = app.transport
    if not transport.capabilities.depth or not isinstance(transport, Measuring):
        return {}
    topology = app.topology

    async def ask(name: str) -> Depths:
        full = topology.full_name(name)
        found: dict[tuple[str, str], float] = dict(_by_state(full, await transport.depth(full)))
        if (age := await oldest_age(transport, full)) is not None:
            found[full, OLDEST] = age
        for kind in topology.kinds_of(topology.queue(name)):
            kept = await transport.depth(topology.dead_letter_name(name, kind))
            found[full, kind] = kept.total
        return found

    answers = await few_at_once(ask, app.consume_from)
    return {place: number for answer in answers for place, number in answer.items()}


async def _job_depths(worker: Worker) -> Depths:
    provider = worker.provider
    if provider is None or not provider.capabilities.counts:
        return {}
    counts = await provider.store.count_jobs(await provider.store.open_jobs(worker.queue))
    states = {
        "ready": counts.waiting,
        "delayed": counts.delayed,
        "in_flight": counts.active,
        FAILED_JOBS: counts.failed,
    }
    return {(worker.queue, state): number for state, number in states.items()}


def _by_state(queue: str, depth: QueueDepth) -> Iterator[tuple[tuple[str, str], int]]:
    yield (queue, "ready"), depth.ready
    if "delayed" not in depth.unknown:
        yield (queue, "delayed"), depth.delayed
    if "in_flight" not in depth.unknown:
        yield (queue, "in_flight"), depth.in_flight
