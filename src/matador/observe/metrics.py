"""``PrometheusMetrics``: counts what is sent and handled, for Prometheus.

What is asked only when somebody looks (queues, connections) is in ``watching``; the HTTP endpoint
is in ``endpoint``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Self

from matador.errors import LifecycleError, MissingExtraError
from matador.events.hooks import (
    DecodeFailure,
    EnqueueError,
    EnqueueSuccess,
    Hooks,
    TransportFallback,
    WorkerError,
    WorkerSuccess,
)
from matador.events.short_forms import TellStored, TellSuccesses
from matador.model.options import whole_number
from matador.model.text import storable_text
from matador.observe.series import BUCKETS, AllSeries, Series
from matador.observe.watching import Watchable, Watching
from matador.runtime.recorder import AttemptedMessage, SentMessage

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

OTHER = "other"
"""The value of labels beyond the limit."""

UNKNOWN = "unknown"
"""The value of labels that only the sender of a refused message knows."""

_LONGEST_LABEL = 200


class PrometheusMetrics(Hooks):
    """Metrics for Prometheus. An application takes it as a hook, a job worker as its ``journal``.

    One object may serve several applications and workers of an event loop. It has a registry of its
    own, so that it shows up nowhere unless you ask for it: pass ``registry=REGISTRY`` of
    ``prometheus_client`` to add the metrics to those of your program. Needs the extra ``metrics``.

    Args:
        registry: where the metrics are registered.
        max_series: how many combinations of queue, name and subscriber have metrics of their own.
            The others are counted together, with the value ``other``, so that a sender cannot fill
            the memory with names.
        buckets: the upper bounds of the histograms, in seconds.

    Raises:
        MissingExtraError: ``prometheus-client`` is not installed.

    Example:
        >>> from matador.observe import PrometheusMetrics
        >>> metrics = PrometheusMetrics()
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
            raise MissingExtraError("PrometheusMetrics", "metrics") from error
        self._max_series = whole_number(max_series, "PrometheusMetrics: max_series", minimum=1)
        self._registry = registry if registry is not None else client.CollectorRegistry()
        self._generate = client.generate_latest
        self._all = AllSeries(buckets)
        self._registry.register(self._all)
        self._series: dict[tuple[str, ...], Series] = {}
        self._queues: dict[str, str] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._watching = Watching()
        self._registry.register(self._watching)

    @property
    def registry(self) -> CollectorRegistry:
        """Where the metrics are registered."""
        return self._registry

    def watch(self, *sources: Watchable) -> Self:
        """Also show the connection, the workers and the depths of these, whenever somebody looks.

        Takes applications and job workers, and what has counters of its own: ``RpcServer``,
        ``RpcClient``, ``Publisher`` and ``Subscriber``. Depths are at least five seconds apart, and
        nobody waits for them.

        Example:
            >>> metrics = PrometheusMetrics().watch(app)
        """
        for source in sources:
            self._watching.add(source)
        return self

    async def refresh(self, timeout: float = 1.0) -> None:
        """Ask for the depths of queues, if that is due; wait for at most ``timeout`` seconds."""
        await self._watching.refresh(timeout)

    def text(self) -> bytes:
        """All metrics in the text format of Prometheus. May be called in any thread."""
        return self._generate(self._registry)

    # -- events -----------------------------------------------------------------------------------

    def on_start(self) -> None:
        """An application, a queue or a worker has started.

        Raises:
            LifecycleError: others use the object in another event loop.
        """
        loop = asyncio.get_running_loop()
        if self._loop is not None and self._loop is not loop and self._loop.is_running():
            raise LifecycleError(
                "this PrometheusMetrics is used in another event loop: make one for each"
            )
        self._loop = loop
        self._watching.loop = loop

    async def on_stop(self) -> None:
        """See ``Hooks``."""

    def on_enqueue_success(self, event: EnqueueSuccess) -> None:
        """See ``Hooks``."""
        docket = event.envelope.docket
        key = "event", event.queue, docket.event_key, docket.target_subscriber
        (self._series.get(key) or self._make(*key)).sent += 1

    def on_enqueue_error(self, event: EnqueueError) -> None:
        """See ``Hooks``."""
        docket = event.envelope.docket
        key = "event", event.queue, docket.event_key, docket.target_subscriber
        self._of(*key).send_errors += 1

    def on_transport_fallback(self, event: TransportFallback) -> None:
        """See ``Hooks``."""
        names = (
            storable_text(event.failed, _LONGEST_LABEL),
            storable_text(event.next, _LONGEST_LABEL),
        )
        self._all.fallbacks[names] = self._all.fallbacks.get(names, 0) + 1

    def on_worker_success(self, event: WorkerSuccess) -> None:
        """See ``Hooks``."""
        docket = event.envelope.docket
        series = self._of("event", event.queue, docket.event_key, docket.target_subscriber)
        due = docket.scheduled_for or docket.created_at
        series.ended("success", True, event.duration, event.started_at - due.timestamp())

    def short_stored(
        self, queue: str, event_key: str, subscriber: str, transport: str
    ) -> TellStored:
        """See ``TakesFacts``."""
        return self._of("event", queue, event_key, subscriber).stored

    def short_success(
        self, queue: str, event_key: str, subscriber: str, transport: str
    ) -> TellSuccesses:
        """See ``TakesFacts``."""
        return self._of("event", queue, event_key, subscriber).succeeded

    def on_worker_error(self, event: WorkerError) -> None:
        """See ``Hooks``."""
        docket = event.envelope.docket
        # Whatever its sender claims: this process has no such subscriber.
        known = event.subscriber is not None
        name, subscriber = (
            (docket.event_key, docket.target_subscriber) if known else (UNKNOWN, UNKNOWN)
        )
        due = docket.scheduled_for or docket.created_at
        self._of("event", event.queue, name, subscriber).ended(
            event.outcome, event.ran, event.duration, event.started_at - due.timestamp()
        )

    def on_decode_error(self, event: DecodeFailure) -> None:
        """See ``Hooks``."""
        queue = self._queue(event.queue)
        self._all.malformed[queue] = self._all.malformed.get(queue, 0) + 1
        self._of("event", event.queue, UNKNOWN, UNKNOWN).ended(event.outcome, False, 0.0, 0.0)

    # -- other ways in ----------------------------------------------------------------------------

    def record_sent(self, message: SentMessage) -> None:
        """Count a job, a call or a message that was stored. See ``Recorder``."""
        self._of(message.way, message.queue, message.name, message.receiver).sent += 1

    def record_attempt(self, attempt: AttemptedMessage) -> None:
        """Count an attempt to handle a job, a call or a message. See ``Recorder``."""
        due = attempt.created_at if attempt.due_at is None else attempt.due_at
        name = attempt.name if attempt.known else UNKNOWN
        self._of(attempt.way, attempt.queue, name, attempt.receiver).ended(
            attempt.outcome, attempt.ran, attempt.duration, attempt.started_at - due
        )

    # -- internals --------------------------------------------------------------------------------

    def _of(self, *key: str) -> Series:
        return self._series.get(key) or self._make(*key)

    def _make(self, way: str, queue: str, name: str, subscriber: str) -> Series:
        if len(self._series) < self._max_series:
            labels = tuple(storable_text(one, _LONGEST_LABEL) for one in (way, queue, name))
            labels = (*labels, storable_text(subscriber, _LONGEST_LABEL))
            key = (way, queue, name, subscriber)
        else:
            labels = key = (way, self._queue(queue), OTHER, OTHER)
            if (found := self._series.get(key)) is not None:
                return found
        made = self._series[key] = self._all.make(labels)
        return made

    def _queue(self, queue: str) -> str:
        """The name of a queue as a label. There are few; whoever makes many gets ``other``."""
        if queue not in self._queues:
            if len(self._queues) >= self._max_series:
                return OTHER
            self._queues[queue] = storable_text(queue, _LONGEST_LABEL)
        return self._queues[queue]
