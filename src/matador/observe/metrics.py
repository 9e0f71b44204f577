"""``Metrics``: a hook that counts what is sent and handled, for Prometheus.

The metrics of queues and connections, which are read on request, are in ``watching``; the HTTP
endpoint is in ``endpoint``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Self, TypeAlias, cast

from matador.errors import LifecycleError, MissingExtraError
from matador.model.options import whole_number
from matador.model.text import storable_text
from matador.observe.series import BUCKETS, AllSeries, Series
from matador.observe.watching import Watchable, Watching
from matador.runtime.facts import Attempt, Kind, NotSent, Sent
from matador.runtime.hooks import Hooks, TransportFallback

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

OTHER = "other"
"""The value of labels beyond the limit."""

UNKNOWN = "unknown"
"""The value of labels for names that no handler here declares."""

_LONGEST_LABEL = 200

_Key: TypeAlias = tuple[str, str, str, str]
"""The way in, the queue, the name and the receiver."""


_kind = attrgetter("kind")


def _key(kind: Kind) -> _Key:
    return kind.way, kind.queue, kind.name, kind.receiver


def _attempt_key(attempt: Attempt) -> tuple[str, str, str, str, bool, bool]:
    message = attempt.message  # attrgetter is slower for attributes of attributes
    queue = message.delivery.receipt.queue
    return message.way, queue, message.name, message.receiver, message.known, attempt.malformed


class Metrics(Hooks):
    """Metrics for Prometheus: a hook that counts messages, whatever their way in.

    Not to be confused with ``matador.Metrics``, the counters that ``x.metrics()`` returns, which do
    not need Prometheus.

    One object may serve all applications, workers, servers and clients of an event loop. It has a
    separate registry; pass ``registry=REGISTRY`` of ``prometheus_client`` to add the metrics to
    those of your program. Needs the extra ``metrics``.

    Args:
        registry: where the metrics are registered.
        max_series: the maximum number of combinations of queue, name and subscriber with separate
            metrics. Further ones are counted together, with the value ``other``, so that a sender
            cannot fill the memory with names.
        buckets: the upper bounds of the histograms, in seconds.

    Raises:
        MissingExtraError: ``prometheus-client`` is not installed.

    Example:
        >>> from matador.observe import Metrics
        >>> metrics = Metrics()
        >>> app = Matador("sqlite:///shop.db", schema=schema, hooks=[metrics])
        >>> metrics.watch(app)  # adds the connection, the workers and the depths of queues
        >>> text = metrics.text()
    """

    def __init__(
        self,
        *,
        registry: CollectorRegistry | None = None,
        max_series: int = 500,
        buckets: Sequence[float] = BUCKETS,
    ) -> None:
        try:
            import prometheus_client as client
        except ImportError as error:
            raise MissingExtraError("Metrics", "metrics") from error
        self._max_series = whole_number(max_series, "Metrics: max_series", minimum=1)
        self._registry = registry if registry is not None else client.CollectorRegistry()
        self._generate = client.generate_latest
        self._all = AllSeries(buckets)
        self._registry.register(self._all)
        self._series: dict[_Key, Series] = {}
        self._queues: dict[str, str] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._watching = Watching()
        self._registry.register(self._watching)

    @property
    def registry(self) -> CollectorRegistry:
        """The registry of the metrics."""
        return self._registry

    def watch(self, *sources: Watchable) -> Self:
        """Also show the connections and the workers of these, read on each request.

        Takes applications, job workers, ``RpcServer``, ``RpcClient``, ``Publisher``, ``Subscriber``
        and ``QueueService``. Of applications and job workers, it also shows the depths of queues,
        which are queried in the background, at most every five seconds.

        Example:
            >>> metrics = Metrics().watch(app)
        """
        for source in sources:
            self._watching.add(source)
        return self

    async def refresh(self, timeout: float = 1.0) -> None:
        """Query the depths of queues, if that is due; wait for at most ``timeout`` seconds."""
        await self._watching.refresh(timeout)

    def text(self) -> bytes:
        """All metrics in the text format of Prometheus. May be called in any thread."""
        return self._generate(self._registry)

    # -- hooks ------------------------------------------------------------------------------------

    def on_start(self) -> None:
        """Remember the event loop.

        Raises:
            LifecycleError: the object is used in another event loop.
        """
        loop = asyncio.get_running_loop()
        if self._loop is not None and self._loop is not loop and self._loop.is_running():
            raise LifecycleError("this Metrics is used in another event loop: make one for each")
        self._loop = loop
        self._watching.loop = loop

    def on_sent(self, batch: Sequence[Sent]) -> None:
        for kind, run in groupby(batch, _kind):
            self._of(_key(kind)).sent += len(tuple(run))

    def on_attempted(self, batch: Sequence[Attempt]) -> None:
        for (*key, known, malformed), group in groupby(batch, _attempt_key):
            attempts = tuple(group)
            labels = cast("_Key", tuple(key))
            if malformed or not known:
                labels = self._of_unread(labels, len(attempts) if malformed else 0, known=known)
            self._of(labels).add(attempts)

    def on_enqueue_error(self, event: NotSent) -> None:
        self._of(_key(event.message.kind)).send_errors += 1

    def on_transport_fallback(self, event: TransportFallback) -> None:
        names = (
            storable_text(event.failed, _LONGEST_LABEL),
            storable_text(event.next, _LONGEST_LABEL),
        )
        self._all.fallbacks[names] = self._all.fallbacks.get(names, 0) + 1

    # -- internals --------------------------------------------------------------------------------

    def _of_unread(self, key: _Key, malformed: int, *, known: bool) -> _Key:
        """The key of messages that are malformed or have an undeclared name."""
        way, queue, _, receiver = key
        if malformed:
            label = self._queue(queue)
            self._all.malformed[label] = self._all.malformed.get(label, 0) + malformed
        if way == "event":
            return way, queue, UNKNOWN, UNKNOWN
        return key if known else (way, queue, UNKNOWN, receiver)

    def _of(self, key: _Key) -> Series:
        found = self._series.get(key)
        if found is not None:
            return found
        if len(self._series) < self._max_series:
            labels = tuple(storable_text(one, _LONGEST_LABEL) for one in key)
        else:
            way, queue, _, _ = key
            labels = key = (way, self._queue(queue), OTHER, OTHER)
            if (found := self._series.get(key)) is not None:
                return found
        made = self._series[key] = self._all.make(labels)
        return made

    def _queue(self, queue: str) -> str:
        """The name of a queue as a label; ``other`` beyond the limit."""
        if queue not in self._queues:
            if len(self._queues) >= self._max_series:
                return OTHER
            self._queues[queue] = storable_text(queue, _LONGEST_LABEL)
        return self._queues[queue]
