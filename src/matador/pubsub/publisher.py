"""``Publisher``: publishes messages to exchanges; what returns is confirmed by the broker."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, cast

import msgspec

from matador.codec.data import encode_data
from matador.errors import (
    ConfigurationError,
    InvalidMessageError,
    MatadorError,
    PublishError,
    QueueNotFoundError,
    UnsupportedError,
)
from matador.messages.connection import Connection
from matador.messages.counters import MessageCounters
from matador.messages.health import MessagingHealth
from matador.messages.metadata import metadata_headers
from matador.messages.outbox import Outbox
from matador.messages.recording import recording_of, traced_send
from matador.model.message import ConnectionState, Message, Properties
from matador.model.options import Seconds, optional_seconds, seconds
from matador.model.text import SHORT_TEXT, error_text
from matador.model.topology import Exchange, Topology
from matador.policy.circuit import CircuitBreaker
from matador.policy.recovery import Recovery
from matador.runtime.deadline import Deadline
from matador.runtime.recorder import Recorder
from matador.transports.base import Transport
from matador.transports.clock import Clock, SystemClock

log = logging.getLogger("matador.pubsub")

DEFAULT_EXCHANGE = "amq.topic"
NAMESPACE = "matador"

_LONGEST_KEY = 255  # bytes, in AMQP
_WHERE = "[Publisher]"

ExchangeLike = str | Exchange
"""The name of a topic exchange, or an ``Exchange`` of any type."""


class Published(msgspec.Struct, frozen=True, gc=False):
    """A message that the broker has stored.

    Attributes:
        message_id: its id.
        routing_key: the key it was published with.
        exchanges: the exchanges it was published to.
        queues: in how many queues it was stored; 1 on brokers that only say that there are any.
            0: no queue wanted it, so it is gone.

    Example:
        >>> published = await publisher.publish("orders.created", {"id": 1})
        >>> published.queues
        2
    """

    message_id: str
    routing_key: str
    exchanges: tuple[str, ...]
    queues: int


class Publisher:
    """Publishes messages to exchanges. Used by many tasks of one event loop at once.

    Connects when it is first used, or by ``start`` or ``async with``. A web process that has only
    publishers consumes nothing.

    Args:
        url: the URL of the broker, or a transport.
        exchange: the exchange to publish to, or several; the first is the default of ``publish``.
            A name is a topic exchange; ``Exchange(name, type)`` has another type. They are
            created if they are missing.
        recovery: sends wait for a lost connection in a buffer.
        circuit_breaker: sends fail at once while the broker keeps failing. None: never.
        on_unroutable: called with the ``Published`` of a message that no queue wanted.
        journal: records what is sent and handled, for the data pipeline:
            ``matador.observe.Journal``. None: nothing is recorded.
        clock: where time and ids come from.

    Raises:
        ConfigurationError: an argument is wrong.

    Example:
        >>> async with Publisher("amqp://localhost", exchange="events") as publisher:
        ...     await publisher.publish("orders.created", {"id": 1})
    """

    def __init__(
        self,
        url: str | Transport,
        *,
        exchange: ExchangeLike | Sequence[ExchangeLike] = DEFAULT_EXCHANGE,
        recovery: Recovery | None = None,
        circuit_breaker: CircuitBreaker | None = CircuitBreaker(),  # noqa: B008 - frozen
        on_unroutable: Callable[[Published], object] | None = None,
        journal: Recorder | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._exchanges = {one.name: one for one in exchanges_of(exchange, _WHERE)}
        self._default = (next(iter(self._exchanges)),)
        self._recovery = recovery or Recovery()
        self._breaker = circuit_breaker
        if on_unroutable is not None and not callable(on_unroutable):
            raise ConfigurationError(f"{_WHERE} on_unroutable must be a function")
        self._on_unroutable = on_unroutable
        self._clock = clock or SystemClock()
        self._recording = recording_of(journal, "message", _WHERE, self._clock)
        self._connection = Connection(url, _WHERE, self._recovery)
        self._outbox: Outbox | None = None
        self._starting: asyncio.Lock | None = None
        self._declared: set[str] = set()
        self._counters = MessageCounters()

    def __repr__(self) -> str:
        return f"Publisher(exchange={self._default[0]!r})"

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
        await self.close()

    async def start(self) -> None:
        """Connect, and create the exchanges that are missing. Idempotent.

        Raises:
            ConnectionFailedError: the broker cannot be reached, or refuses.
            UnsupportedError: the transport has no exchanges.
        """
        await self._started()

    async def _started(self) -> Outbox:
        if self._outbox is not None:
            return self._outbox
        if self._starting is None:
            self._starting = asyncio.Lock()
        async with self._starting:
            if self._outbox is None:
                await self._connection.open()
                try:
                    require_routing(self._connection.transport, _WHERE)
                    await self._declare(*self._exchanges)
                except BaseException:
                    await self._connection.close()
                    raise
                if self._recording is not None:
                    self._recording.start(self._connection.transport.name)
                self._outbox = Outbox(
                    self._connection.transport,
                    recovery=self._recovery,
                    breaker=self._breaker,
                    clock=self._clock,
                    recording=self._recording,
                )
            return self._outbox

    async def close(self, timeout: Seconds = 30.0) -> None:
        """Send what is left, for at most ``timeout`` seconds, and disconnect. Idempotent.

        Sends that are given up fail with ``ShuttingDownError``. Those that the broker has not
        confirmed fail with ``SendUnconfirmedError``: they may be stored. It can be started again.
        """
        limit = seconds(timeout, f"{_WHERE} close: timeout")
        outbox, self._outbox = self._outbox, None
        self._starting = None  # of this event loop
        if outbox is None:
            return
        deadline = Deadline(limit, _WHERE)
        try:
            await outbox.close(limit)
        finally:
            self._declared.clear()
            if self._recording is not None:
                await self._recording.stop()
            await self._connection.close(deadline)

    # -- publishing -------------------------------------------------------------------------------

    async def publish(
        self,
        routing_key: str,
        data: object,
        *,
        exchange: str | Sequence[str] | None = None,
        metadata: Mapping[str, object] | None = None,
        correlation_id: str | None = None,
        message_id: str | None = None,
        persistent: bool = True,
        priority: int | None = None,
        ttl: Seconds | None = None,
    ) -> Published:
        """Publish a message; returns once the broker has confirmed it.

        Args:
            routing_key: subscribers match their patterns against it, such as ``orders.created``.
            data: anything that can be written as JSON: plain data, dataclasses, msgspec structs,
                attrs classes, pydantic models.
            exchange: another exchange than the default one, or several.
            metadata: headers of the message. Names that start with ``x-retry``, ``x-hermes`` or
                ``x-matador`` are reserved, and left out.
            correlation_id: traces what belongs together; the id of the message by default.
            message_id: identifies the message, also to detect duplicates; a new UUID by default.
            persistent: False: the message need not survive a restart of the broker.
            priority: higher ones are received first, where queues have priorities.
            ttl: seconds after which nobody needs the message: subscribers then delete it unseen.

        Raises:
            InvalidMessageError: the message is not valid.
            BufferFullError, BufferExpiredError, CircuitOpenError: there is no connection.
            PublishError: one of several exchanges failed.
            MatadorError: what the transport said.
        """
        outbox = self._outbox or await self._started()
        to = self._default if exchange is None else await self._to(exchange)
        span = traced_send(self._recording, "publish", routing_key, ", ".join(to), metadata)
        with span as metadata:
            return await self._publish(
                outbox,
                to,
                routing_key,
                data,
                metadata,
                correlation_id,
                message_id,
                persistent,
                priority,
                ttl,
            )

    async def _publish(
        self,
        outbox: Outbox,
        to: tuple[str, ...],
        routing_key: str,
        data: object,
        metadata: Mapping[str, object] | None,
        correlation_id: str | None,
        message_id: str | None,
        persistent: bool,
        priority: int | None,
        ttl: Seconds | None,
    ) -> Published:
        message = self._message(
            routing_key,
            encode_data(data, "the data", InvalidMessageError),
            metadata_headers(metadata, _WHERE),
            correlation_id,
            message_id,
            persistent,
            priority,
            optional_seconds(ttl, f"{_WHERE} ttl"),
        )
        if len(to) == 1:
            try:
                queues = await outbox.publish(to[0], message)
                self._counters.last_message_at = self._clock.now()
                return self._published(message, to, queues)
            except QueueNotFoundError as error:
                await self._declare_again(to, [error])
                raise
            except MatadorError as error:
                self._note(error)
                raise
        found = await outbox.publish_many([(name, message) for name in to])
        await self._declare_again(to, found)
        errors = self._errors(found)
        if errors:
            raise PublishError(
                f"{routing_key!r} was not published to {len(errors)} of {len(to)} exchanges: "
                f"{_text(errors[0])}",
                found,
            ) from errors[0]
        return self._published(message, to, sum(one for one in found if isinstance(one, int)))

    async def publish_many(
        self,
        messages: Iterable[tuple[str, object]],
        *,
        exchange: str | None = None,
        metadata: Mapping[str, object] | None = None,
        correlation_id: str | None = None,
        persistent: bool = True,
    ) -> list[Published]:
        """Publish messages, given by routing key and data, in order and in few round trips.

        Arguments are those of ``publish``, for all messages.

        Raises:
            InvalidMessageError: a message is not valid; nothing was published.
            PublishError: some were not published; ``outcomes`` says which, and why.
        """
        outbox = self._outbox or await self._started()
        to = self._default if exchange is None else await self._to(exchange)
        destination = ", ".join(to)
        with traced_send(self._recording, "publish", destination, destination, metadata) as more:
            return await self._publish_many(outbox, to, messages, more, correlation_id, persistent)

    async def _publish_many(
        self,
        outbox: Outbox,
        to: tuple[str, ...],
        messages: Iterable[tuple[str, object]],
        metadata: Mapping[str, object] | None,
        correlation_id: str | None,
        persistent: bool,
    ) -> list[Published]:
        headers = metadata_headers(metadata, _WHERE)
        made = [
            self._message(
                key,
                encode_data(data, f"the data of message {place}", InvalidMessageError),
                headers,
                correlation_id,
                None,
                persistent,
            )
            for place, (key, data) in enumerate(_pairs(messages))
        ]
        if len(to) != 1:
            raise InvalidMessageError(f"{_WHERE} publish_many takes one exchange, got {to!r}")
        found = await outbox.publish_many([(to[0], one) for one in made])
        await self._declare_again(to, found)
        self._counters.last_message_at = self._clock.now()
        errors = self._errors(found)
        outcomes = [
            self._published(message, to, one) if isinstance(one, int) else one
            for message, one in zip(made, found, strict=True)
        ]
        if errors:
            raise PublishError(
                f"{len(errors)} of {len(made)} messages were not published: {_text(errors[0])}",
                outcomes,
            ) from errors[0]
        return cast("list[Published]", outcomes)

    # -- how it is doing --------------------------------------------------------------------------

    @property
    def is_ready(self) -> bool:
        """It is started and connected, and the circuit breaker is not open."""
        return self._outbox is not None and self.health().status == "healthy"

    @property
    def exchange(self) -> str:
        """The exchange that it publishes to unless told otherwise."""
        return self._default[0]

    @property
    def counters(self) -> MessageCounters:
        """What has happened so far."""
        return self._counters

    def health(self) -> MessagingHealth:
        """The state of the connection, the buffer and the circuit breaker."""
        outbox = self._outbox
        if outbox is None:
            return MessagingHealth(ConnectionState("disconnected"))
        return MessagingHealth(
            self._connection.transport.state,
            circuit=outbox.circuit,
            buffered=outbox.buffered,
            last_message_at=self._counters.last_message_at,
            last_error=self._counters.last_error,
        )

    # -- inside -----------------------------------------------------------------------------------

    def _message(
        self,
        key: str,
        body: bytes,
        headers: Mapping[str, str | int],
        correlation_id: str | None,
        message_id: str | None,
        persistent: bool,
        priority: int | None = None,
        ttl: float | None = None,
    ) -> Message:
        if not isinstance(key, str) or not key:  # pyright: ignore[reportUnnecessaryIsInstance] - users
            raise InvalidMessageError(
                f"{_WHERE} the routing key must be a text like 'orders.created', got {key!r}"
            )
        if len(key) * 4 > _LONGEST_KEY and len(key.encode("utf-8", "replace")) > _LONGEST_KEY:
            raise InvalidMessageError(
                f"{_WHERE} the routing key {key[:40]!r}… is longer than {_LONGEST_KEY} bytes"
            )
        id_ = message_id or self._clock.new_id()
        expires_at = None if ttl is None else self._clock.time() + ttl
        properties = Properties(
            key, None, correlation_id or id_, None, expires_at, transient=not persistent
        )
        return Message(id_, "", body, headers, 0.0, priority, None, properties)

    async def _to(self, given: str | Sequence[str]) -> tuple[str, ...]:
        names = (given,) if isinstance(given, str) else tuple(given)
        if not names:
            raise InvalidMessageError(f"{_WHERE} exchange is empty: name at least one")
        if not self._declared.issuperset(names):
            await self._declare(*names)
        return names

    async def _declare(self, *names: str) -> None:
        new = [self._exchanges.get(name) or Exchange(name) for name in dict.fromkeys(names)]
        await self._connection.apply(Topology(NAMESPACE, exchanges=new))
        self._declared.update(names)

    async def _declare_again(self, to: tuple[str, ...], found: Sequence[object]) -> None:
        """Make exchanges again that somebody has deleted: the next publish finds them."""
        for one in found:
            if isinstance(one, QueueNotFoundError):
                self._note(one)
                await self._declare(*to)
                return

    def _published(self, message: Message, to: tuple[str, ...], queues: int) -> Published:
        counters = self._counters
        counters.sent += 1
        properties = message.properties
        key = "" if properties is None else properties.routing_key or ""
        published = Published(message.id, key, to, queues)
        if not queues:
            counters.unroutable += 1
            self._unroutable(published)
        return published

    def _unroutable(self, published: Published) -> None:
        log.debug("no queue wanted %s, key %s", published.message_id, published.routing_key)
        if self._on_unroutable is not None:
            try:
                self._on_unroutable(published)
            except Exception:
                log.exception("on_unroutable of a publisher failed")

    def _errors(self, found: Sequence[int | BaseException]) -> list[BaseException]:
        errors = [one for one in found if isinstance(one, BaseException)]
        for error in errors:
            if not isinstance(error, Exception):
                raise error
            self._note(error)
        return errors

    def _note(self, error: Exception) -> None:
        self._counters.failed += 1
        self._counters.last_error = _text(error)


def exchanges_of(given: Any, where: str) -> list[Exchange]:
    """The exchanges that were given.

    Raises:
        ConfigurationError: there are none, or one is not valid.
    """
    several: list[Any] = [given]
    if isinstance(given, list | tuple):
        several = list(cast("Sequence[Any]", given))
    if not several:
        raise ConfigurationError(f"{where} exchange is empty: name at least one")
    for one in several:
        if not isinstance(one, str | Exchange) or not one:
            raise ConfigurationError(f"{where} exchange must be a name, got {one!r}")
    made = [one if isinstance(one, Exchange) else Exchange(one) for one in several]
    Topology(NAMESPACE, exchanges=made)  # checks the names
    return made


def require_routing(transport: Transport, where: str) -> None:
    """Raise ``UnsupportedError`` unless the transport has exchanges."""
    if not transport.capabilities.routing:
        raise UnsupportedError(
            f"{where} the transport {transport.name!r} has no exchanges; use memory, SQLite, "
            f"RabbitMQ or Redis"
        )


def _pairs(given: Iterable[tuple[str, object]]) -> Iterable[tuple[str, object]]:
    for place, one in enumerate(given):
        if not isinstance(one, tuple | list) or len(one) != 2:  # pyright: ignore[reportUnnecessaryIsInstance] - users
            raise InvalidMessageError(
                f"{_WHERE} message {place} must be a pair of routing key and data, got {one!r}"
            )
        yield one


def _text(error: BaseException) -> str:
    return f"{type(error).__name__}: {error_text(error, SHORT_TEXT)}"
