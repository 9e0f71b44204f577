"""``QueueService``: sends and publishes messages, and runs the consumers of channels."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, Unpack, cast

from msgspec import structs

from matador.channels.compression import compressed, decompressed
from matador.channels.declare import (
    Consumer,
    check_concurrency,
    check_name,
    consumers_of,
    queue_name,
)
from matador.channels.settings import Settings
from matador.channels.way import ChannelRoute, ChannelWay, read_consumer
from matador.codec.data import encode_data
from matador.errors import (
    ConfigurationError,
    InvalidMessageError,
    LifecycleError,
    MatadorError,
    NotConnectedError,
    QueueError,
    QueueNotFoundError,
    UnsupportedError,
)
from matador.model.arguments import check_arguments
from matador.model.message import Delivery, Message, Properties, Receipt
from matador.model.options import Seconds, optional_seconds, optional_whole_number, suggestion
from matador.model.topology import Binding, DeadLetters, Exchange, Topology, WorkQueue
from matador.policy.ack import AckStrategy, DeadLetterOptions
from matador.policy.circuit import CircuitBreaker
from matador.policy.recovery import Recovery
from matador.policy.retry import may_run_again
from matador.runtime.blocking import Blocking, blocking
from matador.runtime.functions import Fill, MessageFunction
from matador.runtime.health import Health
from matador.runtime.message_service import (
    MessageReceiver,
    ReceiverOptions,
    check_ids,
    metadata_headers,
)
from matador.runtime.messages import (
    ENCODING,
    MessageContext,
    MessageReader,
    MessageRoute,
    MessageWork,
    routing_key_of,
)
from matador.runtime.outbox import Parcel
from matador.transports.base import Routing, Transport
from matador.transports.credentials import without_secrets

log = logging.getLogger("matador.channels")

_UNUSED = 60.0  # seconds after which the queue of a service that died is deleted


class QueueService(MessageReceiver):
    """Sends and publishes messages, and runs the consumers of channels, according to its settings.

    Args:
        settings: see ``Settings``.
        channels: classes with ``@channel``, or objects of such classes. Without channels, it only
            sends.
        concurrency: how many messages of each consumer are handled at once, unless ``@consume``
            sets it. None: ``prefetch`` of the settings.
        circuit_breaker: None: none.
        transport: a transport to use instead of the one in the settings.
        **options: see ``ReceiverOptions``.

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
        concurrency: int | None = None,
        circuit_breaker: CircuitBreaker | None = CircuitBreaker(),  # noqa: B008 - frozen
        transport: Transport | None = None,
        **options: Unpack[ReceiverOptions],
    ) -> None:
        if not isinstance(settings, Settings):  # pyright: ignore[reportUnnecessaryIsInstance] - users
            raise ConfigurationError(
                f"QueueService: settings must be Settings, got {without_secrets(repr(settings))}; "
                f"create them with Settings(QueueSettings(type=…, url=…)) or Settings.load(FILE)"
            )
        self._settings = settings
        check_arguments("QueueService", circuit_breaker=circuit_breaker)
        self._breaker = circuit_breaker
        self._concurrency = settings.queue.prefetch
        if concurrency is not None:
            self._concurrency = check_concurrency(concurrency, "QueueService: concurrency")
        given: ReceiverOptions = {
            "ack": AckStrategy(
                requeue=settings.retry.enabled,
                max_retries=settings.retry.max_attempts,
                retry_delay=settings.retry.delay,
            ),
            "recovery": Recovery(),
            "shutdown": settings.shutdown.timeout,
        }
        super().__init__(
            "QueueService",
            settings.queue.address if transport is None else transport,
            letters=DeadLetterOptions(settings.dead_letter_queue.enabled),
            context=MessageContext,
            **{**given, **options},
        )
        self._channels = tuple(channels)
        self._routes = self._read(channels)
        self._ready: set[str] = set()
        self._broadcasts: dict[str, str] = {}
        self._remaking: dict[str, asyncio.Task[None]] = {}

    @classmethod
    def from_config(
        cls,
        path: str | Path | None = None,
        *,
        channels: Sequence[object] = (),
        concurrency: int | None = None,
        **options: Unpack[ReceiverOptions],
    ) -> QueueService:
        """A service with the settings of a TOML file and of the environment; see ``Settings.load``.

        Other arguments are those of ``QueueService``.

        Raises:
            ConfigurationError: a setting or a channel is wrong. Nothing was connected.

        Example:
            >>> service = QueueService.from_config("matador.toml", channels=[Orders])
        """
        settings = Settings.load(path)
        return cls(settings, channels=channels, concurrency=concurrency, **options)

    def __repr__(self) -> str:
        return f"QueueService({self._settings.queue.type!r}, consumers={len(self._routes)})"

    _elsewhere = "use service.sync(), which any thread may call, or another one for this loop"

    def another(self) -> Self:
        other = super().another()
        other._ready, other._broadcasts, other._remaking = set(), {}, {}
        other._routes = other._read(self._channels)  # consumers may take the service
        return other

    def sync(self) -> SyncQueueService:
        """The blocking form of the service, for code without an event loop. See ``Blocking``.

        If it has channels, it consumes them, too.

        Example:
            >>> service.sync().send("orders", "created", OrderCreated("1"))
        """
        return self._blocking(SyncQueueService)

    @property
    def consumers(self) -> Mapping[str, tuple[Consumer, MessageFunction]]:
        """The consumers of its channels and how they are called, by queue."""
        return {queue: (route.consumer, route.function) for queue, route in self._routes.items()}

    @property
    def topology(self) -> Topology | None:
        """The queues of its consumers and the exchanges of their channels; None: it only sends.

        The queue of each running service for published messages is not part of it.
        """
        if not self._routes:
            return None
        channels = dict.fromkeys(route.consumer.channel for route in self._routes.values())
        return Topology(
            "channels",
            queues=[
                self._work_queue(queue).named(concurrency=route.concurrency)
                for queue, route in self._routes.items()
            ],
            dead_letters=self._kept(),
            exchanges=channels,
        )

    @property
    def reader(self) -> MessageReader:
        """The reader of the messages stored in the queues of its consumers."""
        limit = self._validation.max_size
        return MessageReader(
            self._validation,
            name_of=routing_key_of,
            routes_of=self._routes_of,
            body_of=lambda delivery: decompressed(delivery, limit),
        )

    def _routes_of(self, delivery: Delivery, queue: str) -> Sequence[MessageRoute]:
        found = self._routes.get(queue)
        return () if found is None else (found,)

    def _letter_arguments(self, work: MessageWork) -> MessageContext:
        return MessageContext(work, None, "")

    def _read(self, channels: Sequence[object]) -> dict[str, ChannelRoute]:
        found: dict[str, ChannelRoute] = {}
        also: dict[type[Any], Fill] = {
            QueueService: lambda _: self,
            cast("type[Any]", Transport): lambda _: self._broker.transport,
        }
        for given in channels:
            for consumer in consumers_of(given):
                if consumer.queue in found:
                    raise ConfigurationError(
                        f"two consumers for {consumer.name!r} of channel {consumer.channel!r}: "
                        f"a message is consumed by one method"
                    )
                found[consumer.queue] = self._route_to(consumer, read_consumer(consumer, also))
        return found

    def _route_to(self, consumer: Consumer, function: MessageFunction) -> ChannelRoute:
        options, work = consumer.options, consumer.work
        if consumer.dead_letters is not None:
            self._read_processor(consumer.dead_letters)  # a wrong function is an error at once
        if work is not None and work.consumer_timeout is not None:
            options = options.copy()
            options.setdefault("timeout", work.consumer_timeout)
        made = structs.asdict(self._route(function, options))
        concurrency = consumer.concurrency or self._concurrency
        if not function.batch:
            return ChannelRoute(consumer=consumer, concurrency=concurrency, **made)
        where = f"@consume({consumer.name!r}) of channel {consumer.channel!r}: a batch"
        if self._manual:
            raise ConfigurationError(f"{where} cannot be used with AckStrategy(mode='manual')")
        size = consumer.batch_size or self._settings.queue.batch_size
        check_concurrency(size * concurrency, f"{where}: batch_size times concurrency")
        made |= {"is_async": True, "limit": made["timeout"], "timeout": None}
        return ChannelRoute(consumer=consumer, concurrency=concurrency, batch_size=size, **made)

    def _letters_of(self, queue: str) -> DeadLetterOptions:
        route = self._routes.get(self._broadcasts.get(queue, queue))
        return (route and route.consumer.dead_letters) or self._letters

    def _processor_of(self, queue: str) -> MessageFunction | None:
        if queue in self._broadcasts:
            return None  # its dead letters go to the queue of its consumer
        return self._read_processor(self._letters_of(queue))

    def _work_queue(self, queue: str) -> WorkQueue:
        """The queue of a consumer. One that is not declared here has no options."""
        route = self._routes.get(queue)
        work = (route and route.consumer.work) or WorkQueue(queue)
        letters = self._kept(self._letters_of(queue))
        return work.named(name=queue, dead_letters=letters)

    # -- life -------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Connect, create missing queues, and start to consume. A second call does nothing.

        Raises:
            QueueError: the broker cannot be reached, or refuses.

        Example:
            >>> await service.start()  # or: async with service
        """
        try:
            await super().start()
        except LifecycleError:
            raise
        except MatadorError as error:
            raise self._error("connect", error) from error

    @property
    def _consumes(self) -> bool:
        return bool(self._routes)

    async def _open(self, transport: Transport) -> None:
        self._open_outbox(transport, recovery=self._recovery, breaker=self._breaker)
        self._ready.clear()
        if not self._routes:
            return
        self._at_end("delete its queues", self._delete_broadcasts)
        self._at_end("stop making queues again", self._stop_remaking)
        queues = {queue: route.slots for queue, route in self._routes.items()}
        for queue in queues:
            await self._make(queue)
        if transport.capabilities.routing:
            queues |= await self._make_broadcasts()
        await self._receive(
            transport,
            lambda options, worker: ChannelWay(
                options, self._routes, self._broadcasts, self.send, worker.calls
            ),
            queues,
            read_ahead=self._reads_ahead,
        )

    def _reads_ahead(self, queue: str) -> bool:
        """Batches do not need it: they take messages that arrive together."""
        route = self._routes[self._broadcasts.get(queue, queue)]
        return route.batch_size is None and may_run_again(route.idempotent)

    async def _make(self, place: str) -> None:
        """Create the queue of a consumer, or the exchange of a channel, once."""
        if place in self._ready:
            return
        if "." in place:  # a queue: names of channels have no dots
            topology = Topology("channels", queues=[self._work_queue(place)])
        else:
            topology = Topology("channels", queues=[], exchanges=[Exchange(place)])
        await self._broker.apply(topology)
        self._ready.add(place)

    def _settlement_failed(self, receipt: Receipt, error: Exception) -> None:
        """Recreate a queue whose dead-letter queue was deleted, so that the settlement succeeds.

        Some transports do this themselves, but not after ``delete_queue``.
        """
        super()._settlement_failed(receipt, error)
        if isinstance(error, QueueNotFoundError):
            queue = self._broadcasts.get(receipt.queue, receipt.queue)  # it keeps the letters
            if queue in self._routes and queue not in self._remaking:
                self._ready.discard(queue)
                self._remaking[queue] = asyncio.create_task(self._make_again(queue))

    async def _make_again(self, queue: str) -> None:
        try:
            await self._make(queue)
        except MatadorError as error:
            log.warning("%s: deleted queues could not be created again: %s", queue, error)
        finally:
            self._remaking.pop(queue, None)

    async def _make_broadcasts(self) -> dict[str, int]:
        """Create queues for messages published while this service runs: one for each consumer, so
        that consumers do not wait for each other."""
        made: dict[str, int] = {}
        nothing_kept = DeadLetters(unhandled=False, undeliverable=False)
        for queue, route in self._routes.items():
            consumer, name = route.consumer, f"{queue}.{self._clock.new_id()}"
            work = self._work_queue(queue).named(
                name=name, expires=_UNUSED, type=None, retention=None, dead_letters=nothing_kept
            )
            topology = Topology(
                "channels",
                queues=[work],
                exchanges=[Exchange(consumer.channel)],
                bindings=[Binding(consumer.channel, name, consumer.name)],
            )
            await self._broker.apply(topology)
            self._broadcasts[name] = queue
            made[name] = route.slots
        return made

    async def _stop_remaking(self) -> None:
        for task in self._remaking.values():
            task.cancel()
        self._remaking.clear()  # a consumer that has not started does not do it

    async def _delete_broadcasts(self) -> None:
        queues, self._broadcasts = self._broadcasts, {}
        for queue in queues:
            transport = self._broker.transport
            try:
                if isinstance(transport, Routing):
                    await transport.delete_queue(queue)
            except MatadorError as error:  # it expires by itself
                log.debug("the queue %s was not deleted: %s", queue, error)

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
        priority: int | None = None,
    ) -> str:
        """Send a message to one consumer; returns its id once it is safely stored.

        ``headers``: those that brokers and Matador write themselves are left out, so that the
        headers of a received message may be passed on. ``priority``: higher ones are received
        first, where the queue has priorities.

        Example:
            >>> id = await service.send("orders", "created", OrderCreated("1"), delay=60)

        Raises:
            QueueError: it was not stored, or the outcome is unknown. The cause has the reason.
            InvalidMessageError: the data cannot be written as JSON, or is not of the type that the
                consumer takes, if that is declared here; or a header is neither text nor a number.
            ConfigurationError: the channel is declared here, and has no such consumer.
        """
        return await self._post(
            "send", channel, name, data, headers, correlation_id, message_id, priority, delay
        )

    async def publish(
        self,
        channel: str,
        name: str,
        data: object,
        *,
        headers: Mapping[str, str | int] | None = None,
        correlation_id: str | None = None,
        message_id: str | None = None,
        priority: int | None = None,
    ) -> str:
        """Publish a message to every running service that consumes it; returns its id.

        Only services that are running receive it. Returns once the broker has stored it for them.

        Example:
            >>> id = await service.publish("orders", "created", OrderCreated("1"))

        Raises:
            QueueError: it was not published, or this broker cannot publish. The cause says why.
            InvalidMessageError, ConfigurationError: see ``send``.
        """
        return await self._post(
            "publish", channel, name, data, headers, correlation_id, message_id, priority
        )

    def _post(
        self,
        operation: str,
        channel: str,
        name: str,
        data: object,
        headers: Mapping[str, str | int] | None,
        correlation_id: str | None,
        message_id: str | None,
        priority: int | None,
        delay: Seconds | None = None,
    ) -> Awaitable[str]:
        queue = queue_name(check_name(channel, operation), check_name(name, operation))
        self._check_declared(operation, channel, name, queue)
        self._may_send()
        publishes = operation == "publish"

        async def post(more: Mapping[str, Any] | None) -> str:
            body = encode_data(data, f"the data of {queue!r}", InvalidMessageError)
            self._check_data(queue, body)
            message = self._message(
                queue, name, body, more, correlation_id, message_id, priority, delay
            )
            try:
                exchange = channel if publishes and self._has_exchanges else None
                await self._stored(
                    exchange or queue, self._parcel(message, name, exchange, body=body)
                )
            except MatadorError as error:
                raise self._error(operation, error, queue, message.id) from error
            return message.id

        return self._sending(operation, name, channel if publishes else queue, headers, post)

    def _check_declared(self, operation: str, channel: str, name: str, queue: str) -> None:
        """Refuse a misspelled name. Channels that are not declared here belong to other services.

        Raises:
            ConfigurationError: the channel is declared here, and has no such consumer.
        """
        if queue in self._routes:
            return
        routes = self._routes.values()
        names = [one.consumer.name for one in routes if one.consumer.channel == channel]
        if names:
            raise ConfigurationError(
                f"{operation}: channel {channel!r} has no consumer {name!r}, only "
                f"{', '.join(names)}{suggestion(name, names)}; add a method with "
                f"@consume({name!r}), or, if another service has it, {operation} with a "
                f"QueueService that does not declare the channel"
            )

    def _check_data(self, queue: str, body: bytes) -> None:
        """Check the data of a message as the consumer will, if it is declared here.

        Raises:
            InvalidMessageError: it would not be consumed.
        """
        route = self._routes.get(queue)
        if route is None or route.function.decode is None or route.function.takes is Any:
            return
        try:
            route.function.decode(body)
        except Exception as error:  # including errors of a user's validator
            raise InvalidMessageError(f"the data of {queue!r}: {error}") from error

    @property
    def _has_exchanges(self) -> bool:
        """Whether the broker has exchanges to publish to. Redis pub/sub publishes to its queues.

        Raises:
            UnsupportedError: it cannot publish at all.
        """
        can = self._broker.transport.capabilities
        if can.routing:
            return True
        if "at-least-once" not in can.delivery_modes:  # every listener receives sends
            return False
        queue = self._settings.queue
        kind = queue.type if queue.mode is None else f"{queue.type} in {queue.mode} mode"
        if self.given_transport is not None:
            kind = self.given_transport.name
        raise UnsupportedError(
            f"{kind} delivers each message to one consumer; use send(), or a broker that can "
            f'publish (for Redis: mode = "stream")'
        )

    async def _stored(self, place: str, parcel: Parcel) -> None:
        """Send to a queue or an exchange, and create it if it does not exist.

        The queue of another service is only created if it is missing, because that service knows
        its options. Without a connection, nothing can be created, so the send waits first. A queue
        that was created before may have been deleted.
        """
        if place in self._routes or parcel.exchange is not None:
            with contextlib.suppress(NotConnectedError):
                await self._make(place)
        try:
            await self._send(parcel)
        except QueueNotFoundError:
            self._ready.discard(place)
            await self._make(place)
            await self._send(parcel)

    def _message(
        self,
        queue: str,
        name: str,
        body: bytes,
        headers: Mapping[str, Any] | None,
        correlation_id: str | None,
        message_id: str | None,
        priority: int | None,
        delay: Seconds | None,
    ) -> Message:
        given = dict(metadata_headers(headers, "QueueService: headers"))
        given.pop(ENCODING, None)  # of a received message that is passed on
        if self._settings.queue.compression:
            body, given = compressed(body), {**given, ENCODING: "gzip"}
        check_ids("QueueService", message_id, correlation_id)
        made = message_id or self._clock.new_id()
        correlation = correlation_id or made
        return Message(
            made,
            queue,
            body,
            given,
            optional_seconds(delay, "send: delay") or 0.0,
            optional_whole_number(priority, "send: priority", minimum=0),
            properties=Properties(routing_key=name, correlation_id=correlation),
        )

    def _error(
        self,
        operation: str,
        error: MatadorError,
        queue: str | None = None,
        message_id: str | None = None,
    ) -> QueueError:
        self._counters.note_error(error)
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

    # -- state --------------------------------------------------------------------------

    def health_check(self) -> Health:
        """The health of the service. The same as ``health``.

        Example:
            >>> service.health_check().connection_state
            'connected'
        """
        return self.health()


class SyncQueueService(Blocking[QueueService]):
    """``service.sync()``: a service for code without an event loop. See ``Blocking``.

    Example:
        >>> service = QueueService.from_config("matador.toml").sync()
        >>> service.send("orders", "created", OrderCreated("1"))
    """

    _called = "service"

    send = blocking(QueueService.send)
    publish = blocking(QueueService.publish)
