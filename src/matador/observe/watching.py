"""Metrics that are read on request: connections, workers and depths of queues.

A collector for ``prometheus_client``. It never waits for a broker: it returns the last known
depths, and queries new ones in the background.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

from matador.channels import QueueService
from matador.errors import (
    ConfigurationError,
    NotStartedError,
    QueueNotFoundError,
    UnsupportedError,
)
from matador.events.app import Matador
from matador.jobs import Queue, Worker
from matador.model.message import QueueDepth
from matador.model.text import storable_text
from matador.observe.sources import Source, sources
from matador.pubsub import Subscriber
from matador.rpc import RpcServer
from matador.runtime.few_at_once import few_at_once
from matador.runtime.health import ConsumerHealth, Health
from matador.runtime.metrics import Metrics

if TYPE_CHECKING:
    from prometheus_client.core import Metric


@runtime_checkable
class Watchable(Protocol):
    """An application, a worker, a server, a client or a service."""

    def health(self) -> Health:
        """The health of the service."""
        ...

    @property
    def consumer_health(self) -> Sequence[ConsumerHealth]:
        """The health of each consumer."""
        ...

    def metrics(self) -> Metrics:
        """The counters of the service."""
        ...


Depths: TypeAlias = Mapping[tuple[str, str], float]
"""Numbers of messages, by the names of queues and states; and ages, as the state ``oldest``."""

log = logging.getLogger("matador.metrics")

ASK_EVERY = 5.0
"""The minimum number of seconds between two queries for depths."""

FORGET_AFTER = 60.0
"""Seconds after which a depth that could not be refreshed is dropped."""

_ASK_SHARE = 20  # the inverse of the share of time spent on queries
_ASK_LIMIT = 5.0  # seconds to wait for all depths of a source
_LONGEST_LABEL = 200

FAILED_JOBS = "failed"
OLDEST = "oldest"
_DEAD_LETTERS = frozenset(("unhandled", "undeliverable", "dlq", FAILED_JOBS))


class _Depths:
    """The depths of a source's queues, by name and state, and when they were queried."""

    def __init__(self, ask: Callable[[], Awaitable[Depths]]) -> None:
        self._ask = ask
        self._task: asyncio.Task[None] | None = None
        self._known: Depths = {}
        self._known_at = float("-inf")
        self._due = float("-inf")
        self._complained = False

    @property
    def known(self) -> Depths:
        """The last known depths, if they are recent."""
        return self._known if time.monotonic() - self._known_at <= FORGET_AFTER else {}

    @property
    def is_due(self) -> bool:
        """Whether the next query is due."""
        return time.monotonic() >= self._due and (self._task is None or self._task.done())

    def ask(self) -> asyncio.Task[None] | None:
        """Query the depths in the event loop of the source, if that is due."""
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
        except Exception as error:  # noqa: BLE001 - for example, the connection is down
            if not self._complained:
                why = str(error) or f"the broker did not answer within {_ASK_LIMIT:g} s"
                log.info("the depths of queues are unknown for now: %s", why)
            self._complained = True
        finally:
            now = time.monotonic()
            self._due = now + max(ASK_EVERY, _ASK_SHARE * (now - began))


@dataclass(frozen=True, slots=True)
class _Source:
    """A watched service."""

    service: Watchable
    transport: Callable[[], str]
    depths: _Depths | None = None


class Watching:
    """A collector of ``prometheus_client`` over all sources. ``collect`` may run in any thread."""

    def __init__(self) -> None:
        self._sources: list[_Source] = []
        self.loop: asyncio.AbstractEventLoop | None = None

    def add(self, source: Watchable) -> None:
        """Watch another source. Idempotent.

        Raises:
            ConfigurationError: it cannot be watched.
        """
        if all(source is not known.service for known in self._sources):
            self._sources.append(_source(source))

    async def refresh(self, timeout: float) -> None:
        """Query depths if that is due, and wait for at most ``timeout`` seconds."""
        asked = [one.depths.ask() for one in self._sources if one.depths is not None]
        waiting = [task for task in asked if task is not None and not task.done()]
        if waiting:
            await asyncio.wait(waiting, timeout=timeout)

    def describe(self) -> Iterable[Metric]:
        """The names of these metrics are not reserved."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """The current metrics."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        def gauge(name: str, text: str, *labels: str) -> Any:
            return GaugeMetricFamily(f"matador_{name}", text, labels=labels)

        up = gauge("connection_up", "1 while the connection to the broker is up.", "transport")
        losses = CounterMetricFamily(
            "matador_connection_losses", "Lost connections to the broker.", labels=["transport"]
        )
        recoveries = CounterMetricFamily(
            "matador_connection_recoveries",
            "Restored connections to the broker.",
            labels=["transport"],
        )
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
        connected: dict[str, bool] = {}  # of sources with the same label: all of them
        lost: dict[str, int] = {}
        restored: dict[str, int] = {}
        for source in list(self._sources):
            health, transport = source.service.health(), _label(source.transport())
            is_up = health.connection_state == "connected"
            connected[transport] = connected.get(transport, True) and is_up
            counted = source.service.metrics()
            lost[transport] = lost.get(transport, 0) + counted.connection_losses
            restored[transport] = restored.get(transport, 0) + counted.connection_recoveries
            for one in source.service.consumer_health:
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
        for transport, is_up in connected.items():
            up.add_metric([transport], 1.0 if is_up else 0.0)
            losses.add_metric([transport], lost[transport])
            recoveries.add_metric([transport], restored[transport])
        yield from (up, losses, recoveries, running, waiting, concurrency, polled, stalled)
        yield from (depth, letters, oldest)


def _label(text: str) -> str:
    return storable_text(text, _LONGEST_LABEL)


def _source(source: object) -> _Source:
    """The functions to watch a service."""
    if isinstance(source, Matador | Worker | RpcServer | Subscriber | QueueService):
        found = sources({"": source})
        looked_at = _Depths(lambda: _queue_depths(found[0])) if found else None
        return _Source(source, lambda: _transport_of(source), looked_at)
    anything: Any = source
    if not isinstance(source, Queue) and isinstance(anything, Watchable):
        return _Source(anything, lambda: _transport_of(anything))
    raise ConfigurationError(
        f"{source!r} cannot be watched: give an application, a job worker, an RPC server or "
        f"client, a publisher, a subscriber or a queue service"
    )


def _transport_of(source: Any) -> str:
    try:
        return source.transport.name
    except (AttributeError, NotStartedError):
        return type(source).__name__


async def _queue_depths(source: Source) -> Depths:
    """The numbers of what is consumed. An application may have other queues."""
    try:
        counts = await source.counts()
    except UnsupportedError:
        return {}
    app, topology = source.app, source.topology
    consumed = None if app is None else {topology.full_name(name) for name in app.consume_from}
    counts = [one for one in counts if consumed is None or one.queue in consumed]
    ages = await few_at_once(source.age, [one.queue for one in counts])
    found: dict[tuple[str, str], float] = {}
    for one, age in zip(counts, ages, strict=True):
        if one.depth is None:
            raise QueueNotFoundError(f"there is no queue {one.queue!r}")
        found |= dict(_by_state(one.queue, one.depth))
        if age is not None:
            found[one.queue, OLDEST] = age
        for kind, number in one.dead_letters.items():
            if number is not None:
                found[one.queue, kind if source.jobs is None else FAILED_JOBS] = number
    return found


def _by_state(queue: str, depth: QueueDepth) -> Iterator[tuple[tuple[str, str], int]]:
    yield (queue, "waiting"), depth.ready
    if "delayed" not in depth.unknown:
        yield (queue, "delayed"), depth.delayed
    if "in_flight" not in depth.unknown:
        yield (queue, "in_flight"), depth.in_flight
