"""``QueueService``: sends and publishes messages, and runs the consumers of channels."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Literal, Self, TypeAlias, TypeVar

from matador.channels.compression import compressed, plain_body, plain_headers
from matador.channels.declare import Consumer, check_name, consumers_of, queue_name
from matador.channels.handler import ChannelHandler, read_consumer
from matador.channels.settings import Settings
from matador.codec.data import encode_data
from matador.errors import (
    ConfigurationError,
    InvalidMessageError,
    MatadorError,
    NotConnectedError,
    NotStartedError,
    QueueError,
    QueueNotFoundError,
    ShuttingDownError,
    TransportClosedError,
    UnsupportedError,
)
from matador.messages.connection import Connection
from matador.messages.counters import MessageCounters
from matador.messages.functions import MessageFunction
from matador.messages.handler import HandlingOptions
from matador.messages.metadata import metadata_headers
from matador.messages.outbox import Outbox
from matador.messages.recording import recording_of, traced_send
from matador.model.message import (
    ConnectionState,
    ConnectionStatus,
    Message,
    Properties,
    Receipt,
)
from matador.model.options import Seconds, optional_seconds
from matador.model.text import SHORT_TEXT, error_text
from matador.model.topology import (
    Binding,
    DeadLetterQueue,
    DeadLetters,
    Exchange,
    Topology,
    WorkQueue,
)
from matador.policy.ack import AckStrategy
from matador.policy.circuit import CircuitBreaker, CircuitState
from matador.policy.recovery import Recovery
from matador.policy.validation import Validation
from matador.runtime.deadline import GRACE, Deadline
from matador.runtime.dedup import Deduplicator
from matador.runtime.process import run as run_process
from matador.runtime.recorder import Recorder
from matador.runtime.settle import Handler
from matador.runtime.worker import DeliveryWorker
from matador.transports.base import Routing, Transport
from matador.transports.clock import Clock, SystemClock
from matador.transports.credentials import without_secrets

log = logging.getLogger("matador.channels")

T = TypeVar("T")

ServiceEvent: TypeAlias = Literal["state", "shutdown"]
"""``state``: the connection is in another state. ``shutdown``: the service has ended."""

_UNUSED = 60.0  # seconds after which the queue of a service that died is deleted


@dataclass(frozen=True, slots=True)
class ServiceHealth:
    """How a service is doing.

    Attributes:
        status: ``healthy`` while it is connected and receives messages.
        connection_state: the state of the connection.
        last_message_at: when a message was last sent or received.
        last_error: the text of the last error.
        disconnected_since: since when there is no connection.
        circuit: the state of the circuit breaker.
    """

    status: Literal["healthy", "unhealthy"]
    connection_state: ConnectionStatus
    last_message_at: datetime | None
    last_error: str | None
    disconnected_since: datetime | None
    circuit: CircuitState | None


@dataclass(frozen=True, slots=True)
class ServiceMetrics:
    """Counts since the start of a service."""

    messages_sent: int
    messages_received: int
    messages_failed: int
    messages_retried: int
    messages_dead_lettered: int
    duplicates: int


class QueueService:
    """Sends and publishes messages, and runs the consumers of channels, as its settings say.

    Args:
        settings: see ``Settings``.
        channels: classes with ``@channel``, or objects of such classes. None: it only sends.
        deduplicator: finds duplicates; None: there is no duplicate detection.
        validation: what messages must be like.
        circuit_breaker: None: none.
        recovery: the buffer for the time without a connection.
        journal: records what is sent and handled, for the data pipeline:
            ``matador.observe.Journal``. None: nothing is recorded.
        transport: a transport to use instead of the one in the settings.

    Raises:
        ConfigurationError: a setting or a channel is wrong. Nothing was connected.

    Example:
        >>> service = QueueService.from_config("matador.toml", channels=[Orders])
        >>> async with service:
        ...     await service.send("orders", "created", OrderCreated("1"))
    """

    def __init__(
        self,
        settings: Settings,
        *,
        channels: Sequence[object] = (),
        deduplicator: Deduplicator | None = None,
        validation: Validation | None = None,
        circuit_breaker: CircuitBreaker | None = CircuitBreaker(),  # noqa: B008 - frozen
        recovery: Recovery | None = None,
        journal: Recorder | None = None,
        transport: Transport | None = None,
    ) -> None:
        if not isinstance(settings, Settings):  # pyright: ignore[reportUnnecessaryIsInstance] - users
            raise ConfigurationError(
                f"QueueService: settings must be Settings, got {without_secrets(repr(settings))}; "
                f"make some with Settings(QueueSettings(type=…, url=…)) or Settings.load(FILE)"
            )
        self._settings = settings
        self._consumers = self._read(channels)
        self._dedup = deduplicator
        self._validation = validation or Validation()
        self._breaker = circuit_breaker
        self._recovery = recovery or Recovery()
        given = settings.queue.address if transport is None else transport
        self._connection = Connection(given, "QueueService", self._recovery)
        self._clock: Clock = SystemClock()
        self._recording = recording_of(journal, "message", "QueueService", self._clock, plain_body)
        self._counters = MessageCounters()
        self._listeners: dict[ServiceEvent, list[Callable[[object], object]]] = {}
        self._disconnected_since: datetime | None = None
        self._ready: set[str] = set()
        self._broadcasts: dict[str, str] = {}
        self._remaking: dict[str, asyncio.Task[None]] = {}
        self._outbox: Outbox | None = None
        self._worker: DeliveryWorker | None = None
        self._starting = asyncio.Lock()
        self._stopping: asyncio.Task[None] | None = None
        self._unobserve: Callable[[], None] = lambda: None

    @classmethod
    def from_config(
        cls, path: str | Path | None = None, *, channels: Sequence[object] = ()
    ) -> QueueService:
        """A service with the settings of a TOML file and of the environment; see ``Settings.load``.

        Raises:
            ConfigurationError: a setting or a channel is wrong. Nothing was connected.
        """
        return cls(Settings.load(path), channels=channels)

    def __repr__(self) -> str:
        return f"QueueService({self._settings.queue.type!r}, consumers={len(self._consumers)})"

    @property
    def consumers(self) -> Mapping[str, tuple[Consumer, MessageFunction]]:
        """The consumers of its channels and how they are called, by queue."""
        return dict(self._consumers)

    def _read(self, channels: Sequence[object]) -> dict[str, tuple[Consumer, MessageFunction]]:
        found: dict[str, tuple[Consumer, MessageFunction]] = {}
        for given in channels:
            for consumer in consumers_of(given):
                if consumer.queue in found:
                    raise ConfigurationError(
                        f"two consumers for {consumer.consumes.name!r} of channel "
                        f"{consumer.channel!r}: a message is consumed by one method"
                    )
                found[consumer.queue] = consumer, read_consumer(consumer, QueueService)
        return found

    # -- life -------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.shutdown()

    async def start(self) -> None:
        """Connect, create what is missing, and begin to consume. Idempotent.

        Raises:
            QueueError: the broker cannot be reached, or refuses.
        """
        async with self._starting:
            if self._outbox is not None:
                return
            self._stopping = None
            try:
                self._unobserve = await self._connection.open(self)
                transport = self._connection.transport
                if self._recording is not None:
                    self._recording.start(transport.name)
                self._outbox = Outbox(
                    transport,
                    recovery=self._recovery,
                    breaker=self._breaker,
                    clock=self._clock,
                    recording=self._recording,
                )
                if self._dedup is not None:
                    await self._dedup.open()
                if self._consumers:
                    await self._consume(transport)
            except MatadorError as error:
                await self._end(0.0)
                raise self._error("connect", error) from error
            except BaseException:
                await self._end(0.0)
                raise

    async def _consume(self, transport: Transport) -> None:
        settings, can = self._settings, transport.capabilities
        queues = {
            name: consumer.consumes.prefetch or settings.queue.prefetch
            for name, (consumer, _) in self._consumers.items()
        }
        for queue in queues:
            await self._make_queue(queue)
        if can.routing:
            queues |= await self._make_broadcasts()
        keeps = settings.dead_letter_queue.enabled and can.dead_letters != "none"
        worker = DeliveryWorker(
            transport, clock=self._clock, on_settle_error=self._settlement_failed
        )
        handler = ChannelHandler(
            worker,
            HandlingOptions(
                ack=AckStrategy(
                    requeue=settings.retry.enabled,
                    max_retries=settings.retry.max_attempts,
                    retry_delay=settings.retry.delay if can.delays else None,
                ),
                dead_letters=keeps,
                validation=self._validation,
            ),
            counters=self._counters,
            dedup=self._dedup,
            clock=self._clock,
        )
        handler.bind(self._consumers, self._broadcasts, transport, self)
        self._worker = worker
        recorded: Handler = handler
        if self._recording is not None:
            recorded = self._recording.handling(handler)
        await worker.start(recorded, queues, read_ahead=lambda _: False)

    async def _make_queue(self, queue: str) -> None:
        """Create the queue of one consumer, once."""
        if queue not in self._ready:
            work = WorkQueue(queue, exact=True, create=True)
            letters = DeadLetters(
                unhandled=False,
                undeliverable=False,
                dlq=DeadLetterQueue(enabled=self._settings.dead_letter_queue.enabled),
            )
            topology = Topology("channels", queues=[work], dead_letters=letters)
            await self._connection.apply(topology)
            self._ready.add(queue)

    def _settlement_failed(self, receipt: Receipt, error: MatadorError) -> None:
        """Create a queue again whose dead letters somebody has deleted; it is settled then.

        Some transports do that by themselves, but not if they were told to delete it.
        """
        queue = receipt.queue
        if (
            isinstance(error, QueueNotFoundError)
            and queue in self._consumers
            and queue not in self._remaking
        ):
            self._ready.discard(queue)
            self._remaking[queue] = asyncio.create_task(self._make_again(queue))

    async def _make_again(self, queue: str) -> None:
        try:
            await self._make_queue(queue)
        except MatadorError as error:
            log.warning("%s: what was deleted could not be created again: %s", queue, error)
        finally:
            self._remaking.pop(queue, None)

    async def _make_broadcasts(self) -> dict[str, int]:
        """Create a queue for each channel that gets what is published while this service lives."""
        made: dict[str, int] = {}
        channels: dict[str, list[Consumer]] = {}
        for consumer, _ in self._consumers.values():
            channels.setdefault(consumer.channel, []).append(consumer)
        for channel, consumers in channels.items():
            queue = f"{channel}.{self._clock.new_id()}"
            topology = Topology(
                "channels",
                queues=[WorkQueue(queue, exact=True, create=True, expires=_UNUSED)],
                dead_letters=DeadLetters(unhandled=False, undeliverable=False),
                exchanges=[Exchange(channel)],
                bindings=[Binding(channel, queue, one.consumes.name) for one in consumers],
            )
            await self._connection.apply(topology)
            self._broadcasts[queue] = channel
            made[queue] = self._settings.queue.prefetch
        return made

    async def shutdown(self, timeout: Seconds | None = None) -> None:
        """Stop receiving, wait for running consumers and sends, disconnect. Idempotent.

        ``timeout``: seconds to wait; None: as the settings say. What is not finished by then is
        cancelled and given back.
        """
        limit = optional_seconds(timeout, "QueueService: timeout")
        if self._outbox is None:
            return
        if self._stopping is None:
            patience = self._settings.shutdown.timeout if limit is None else limit
            self._stopping = asyncio.create_task(self._end(patience))
        await asyncio.shield(self._stopping)

    async def force_shutdown(self) -> None:
        """Shut down now: running consumers are cancelled, and their messages given back."""
        if self._worker is not None:
            await self._worker.interrupt(GRACE)
        await self.shutdown(0)

    async def _end(self, limit: float) -> None:
        """Each step has its time: a broker that does not answer must not hold up the process."""
        worker, outbox = self._worker, self._outbox
        deadline = Deadline(limit + GRACE, "QueueService")
        try:
            if worker is not None:
                for what in await worker.end(limit, deadline):
                    log.warning("shutdown was forced; abandoned: %s", what)
            for task in self._remaking.values():
                task.cancel()
            self._remaking.clear()  # one that has not begun does not do it
            if outbox is not None:
                await outbox.close(deadline.left)
            await deadline.do_last(self._delete_broadcasts(), "delete its queues")
            if self._dedup is not None and outbox is not None:
                await deadline.do_last(self._dedup.close(), "close the store of duplicates")
            if self._recording is not None:
                await self._recording.stop()
        finally:
            self._worker = self._outbox = None
            self._ready.clear()
            await self._connection.close(deadline)
            self._unobserve()
            self._disconnected_since = self._disconnected_since or self._clock.now()
        if outbox is not None:
            self._tell("shutdown", None)

    async def _delete_broadcasts(self) -> None:
        queues, self._broadcasts = self._broadcasts, {}
        for queue in queues:
            transport = self._connection.transport
            try:
                if isinstance(transport, Routing):
                    await transport.delete_queue(queue)
            except MatadorError as error:  # it expires by itself
                log.debug("the queue %s was not deleted: %s", queue, error)

    def run(self) -> None:
        """Consume until SIGTERM or SIGINT, then shut down. A second signal forces it."""
        run_process(self)

    # -- sending ----------------------------------------------------------------------------------

    async def send(
        self,
        channel: str,
        name: str,
        data: object,
        *,
        headers: Mapping[str, str | int] | None = None,
        correlation_id: str | None = None,
        message_id: str | None = None,
        delay: Seconds | None = None,
    ) -> str:
        """Send a message to one consumer; returns its id once it is safely stored.

        ``headers``: those that brokers and Matador write themselves are left out, so that the
        headers of a message that was received may be passed on.

        Raises:
            QueueError: it was not stored, or nobody knows whether it was. The cause says why.
            InvalidMessageError: the data cannot be written as JSON, or a header is neither text nor
                a number.
        """
        queue = queue_name(check_name(channel, "send"), check_name(name, "send"))
        outbox = self._sending()
        with traced_send(self._recording, "send", name, queue, headers) as more:
            message = self._message(queue, name, data, more, correlation_id, message_id, delay)
            try:
                await self._stored(queue, self._make_queue, lambda: outbox.send(message))
            except MatadorError as error:
                raise self._error("send", error, queue, message.id) from error
        self._sent()
        return message.id

    async def publish(
        self,
        channel: str,
        name: str,
        data: object,
        *,
        headers: Mapping[str, str | int] | None = None,
        correlation_id: str | None = None,
        message_id: str | None = None,
    ) -> str:
        """Publish a message to every running service that consumes it; returns its id.

        A service that is not running does not get it. Returns once the broker has stored it for
        those that are.

        Raises:
            QueueError: it was not published, or this broker cannot publish. The cause says why.
            InvalidMessageError: the data cannot be written as JSON, or a header is neither text nor
                a number.
        """
        queue = queue_name(check_name(channel, "publish"), check_name(name, "publish"))
        outbox = self._sending()
        with traced_send(self._recording, "publish", name, channel, headers) as more:
            message = self._message(queue, name, data, more, correlation_id, message_id, None)
            try:
                if self._connection.transport.capabilities.routing:
                    stored = await self._stored(
                        channel, self._make_exchange, lambda: outbox.publish(channel, message)
                    )
                    if stored == 0:
                        self._counters.unroutable += 1
                elif self._settings.queue.mode == "pubsub" or self._is_pubsub:
                    await self._stored(queue, self._make_queue, lambda: outbox.send(message))
                else:
                    raise UnsupportedError(
                        f"{self._kind} delivers each message to one consumer; use send(), or a "
                        f'broker that can publish (for Redis: mode = "stream")'
                    )
            except MatadorError as error:
                raise self._error("publish", error, queue, message.id) from error
        self._sent()
        return message.id

    @property
    def _kind(self) -> str:
        queue = self._settings.queue
        return queue.type if queue.mode is None else f"{queue.type} in {queue.mode} mode"

    @property
    def _is_pubsub(self) -> bool:
        return self._settings.queue.type == "redis" and self._settings.queue.mode is None

    async def _stored(
        self, place: str, make: Callable[[str], Awaitable[None]], send: Callable[[], Awaitable[T]]
    ) -> T:
        """Send to a queue or an exchange, which is made if it is not there.

        Without a connection nothing can be made: the send waits first. Somebody may have deleted
        what was made before.
        """
        with contextlib.suppress(NotConnectedError, TransportClosedError):
            await make(place)
        try:
            return await send()
        except QueueNotFoundError:
            self._ready -= {place, _exchange_place(place)}
            await make(place)
            return await send()

    async def _make_exchange(self, channel: str) -> None:
        place = _exchange_place(channel)
        if place not in self._ready:
            topology = Topology("channels", queues=[], exchanges=[Exchange(channel)])
            await self._connection.apply(topology)
            self._ready.add(place)

    def _sending(self) -> Outbox:
        if self._outbox is None:
            raise NotStartedError("the service has not been started: use `async with service`")
        if self._stopping is not None and self._worker is None:
            raise ShuttingDownError
        return self._outbox

    def _message(
        self,
        queue: str,
        name: str,
        data: object,
        headers: Mapping[str, str | int] | None,
        correlation_id: str | None,
        message_id: str | None,
        delay: Seconds | None,
    ) -> Message:
        body = encode_data(data, f"the data of {queue!r}", InvalidMessageError)
        given = plain_headers(metadata_headers(headers, "QueueService: headers"))
        if self._settings.queue.compression:
            body, given = compressed(body, given)
        made = message_id or self._clock.new_id()
        correlation = correlation_id or made
        if not isinstance(made, str) or not isinstance(correlation, str):  # pyright: ignore[reportUnnecessaryIsInstance] - users
            raise InvalidMessageError(
                f"message_id and correlation_id must be text, got {made!r} and {correlation!r}"
            )
        return Message(
            made,
            queue,
            body,
            given,
            optional_seconds(delay, "send: delay") or 0.0,
            properties=Properties(routing_key=name, correlation_id=correlation),
        )

    def _sent(self) -> None:
        self._counters.sent += 1
        self._counters.last_message_at = self._clock.now()

    def _error(
        self,
        operation: str,
        error: MatadorError,
        queue: str | None = None,
        message_id: str | None = None,
    ) -> QueueError:
        self._counters.last_error = f"{type(error).__name__}: {error_text(error, SHORT_TEXT)}"
        at = "" if queue is None else f" to {queue!r}"
        made = QueueError(
            f"{self._settings.queue.type}: {operation}{at} failed: {error}",
            queue_type=self._settings.queue.type,
            operation=operation,
            queue=queue,
            message_id=message_id,
        )
        log.error("%s", made, extra={f"matador_{k}": v for k, v in made.as_dict().items()})
        return made

    # -- how it is doing --------------------------------------------------------------------------

    def health_check(self) -> ServiceHealth:
        """How the service is doing. Asks the broker nothing."""
        state: ConnectionStatus = "disconnected"
        if self._outbox is not None:
            state = self._connection.transport.state.status
        stalled = any(one.stalled for one in (() if self._worker is None else self._worker.health))
        return ServiceHealth(
            "healthy" if state == "connected" and not stalled else "unhealthy",
            state,
            self._counters.last_message_at,
            self._counters.last_error,
            self._disconnected_since,
            None if self._outbox is None else self._outbox.circuit,
        )

    def metrics(self) -> ServiceMetrics:
        """Counts since the start."""
        counted = self._counters
        return ServiceMetrics(
            counted.sent,
            counted.received,
            counted.failed + counted.malformed,
            counted.retried,
            counted.dead_lettered,
            counted.duplicates,
        )

    def on(self, event: ServiceEvent, listener: Callable[[object], object]) -> Callable[[], None]:
        """Call ``listener`` for each event, until the returned function is called.

        For ``state``, it gets the ``ConnectionState``. What it raises is logged.
        """
        if event not in ("state", "shutdown"):
            raise ConfigurationError(f"unknown event {event!r}: there are 'state' and 'shutdown'")
        listeners = self._listeners.setdefault(event, [])
        listeners.append(listener)

        def off() -> None:
            if listener in listeners:
                listeners.remove(listener)

        return off

    def _tell(self, event: ServiceEvent, value: object) -> None:
        for listener in list(self._listeners.get(event, ())):
            try:
                listener(value)
            except Exception:
                log.exception("a listener of %r failed", event)

    def connection_changed(self, transport: str, state: ConnectionState) -> None:
        """See ``TransportObserver``."""
        log.info("the connection is %s", state.status)
        if state.status == "connected":
            self._disconnected_since = None
        elif self._disconnected_since is None:
            self._disconnected_since = self._clock.now()
        if state.error is not None:
            self._counters.last_error = error_text(state.error, SHORT_TEXT)
        self._tell("state", state)

    def fell_back(self, message: Message, failed: str, next_: str, error: BaseException) -> None:
        """See ``TransportObserver``."""


def _exchange_place(channel: str) -> str:
    return f"exchange {channel}"
