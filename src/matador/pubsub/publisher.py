"""``Publisher``: publishes messages to exchanges and waits for the broker's confirmation."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Self, Unpack, cast

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
from matador.model.arguments import check_arguments
from matador.model.message import Message, Properties
from matador.model.options import Seconds, optional_seconds, whole_number
from matador.model.text import SHORT_TEXT, error_text
from matador.model.topology import Exchange, Topology
from matador.policy.circuit import CircuitBreaker
from matador.policy.recovery import Recovery
from matador.runtime.blocking import AtLoopEnd, Blocking, blocking
from matador.runtime.message_service import MessageService, check_ids, metadata_headers
from matador.runtime.outbox import Parcel
from matador.runtime.service import ServiceOptions
from matador.transports.base import Transport

log = logging.getLogger("matador.pubsub")

DEFAULT_EXCHANGE = "amq.topic"
NAMESPACE = "matador"

_LONGEST_KEY = 255  # bytes, in AMQP
_WHERE = "Publisher"
_TTL = f"{_WHERE}: ttl"
_LAST_SENDS = 1.0  # seconds for the broker at the end of an event loop

ExchangeLike = str | Exchange
"""The name of a topic exchange, or an ``Exchange`` of any type."""


class Published(msgspec.Struct, frozen=True, gc=False):
    """A message that the broker has stored.

    Attributes:
        message_id: its id.
        routing_key: the key it was published with.
        exchanges: the exchanges it was published to.
        queues: the number of queues that stored it; 1 on brokers that only report that there are
            any. 0: no binding matched, so the message was dropped.

    Example:
        >>> published = await publisher.publish("orders.created", {"id": 1})
        >>> published.queues
        2
    """

    message_id: str
    routing_key: str
    exchanges: tuple[str, ...]
    queues: int


class Publisher(MessageService):
    """Publishes messages to exchanges. Used by many tasks of one event loop at once.

    Connects on first use, or by ``start`` or ``async with``. A web process that only has publishers
    consumes nothing.

    Args:
        url: the URL of the broker, or a transport.
        exchange: the exchange to publish to, or several; the first is the default of ``publish``.
            A name is a topic exchange; ``Exchange(name, type)`` has another type. They are
            created if they are missing.
        recovery: the buffer for sends without a connection.
        circuit_breaker: sends fail at once while the broker keeps failing. None: never.
        on_unroutable: called with the ``Published`` of a message that matched no binding.
        shutdown: how long a shutdown waits by default for sends in flight.
        **options: see ``ServiceOptions``.

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
        **options: Unpack[ServiceOptions],
    ) -> None:
        self._exchanges = {one.name: one for one in exchanges_of(exchange, _WHERE)}
        self._default = (next(iter(self._exchanges)),)
        check_arguments(_WHERE, circuit_breaker=circuit_breaker)
        self._breaker = circuit_breaker
        if on_unroutable is not None and not callable(on_unroutable):
            raise ConfigurationError(f"{_WHERE}: on_unroutable must be a function")
        self._on_unroutable = on_unroutable
        self._declared: set[str] = set()
        self._at_loop_end: AtLoopEnd | None = None
        super().__init__(_WHERE, url, recovery=recovery or Recovery(), **options)

    def __repr__(self) -> str:
        return f"Publisher(exchange={self._default[0]!r})"

    _elsewhere = (
        "make another one for this loop, or use publisher.sync(), which any thread may call"
    )

    def another(self) -> Self:
        other = super().another()
        other._declared, other._at_loop_end = set(), None
        return other

    def sync(self) -> SyncPublisher:
        """The blocking form of the publisher, for code without an event loop. See ``Blocking``.

        Example:
            >>> publisher.sync().publish("orders.created", {"id": 1}).queues
            2
        """
        return self._blocking(SyncPublisher)

    # -- life -------------------------------------------------------------------------------------

    async def _open(self, transport: Transport) -> None:
        require_routing(transport, _WHERE)
        self._declared.clear()
        await self._declare(self._exchanges)
        self._open_outbox(transport, recovery=self._recovery, breaker=self._breaker)

    async def _used_first(self) -> None:
        """Connect. Without a shutdown, the publisher is closed when the event loop ends."""
        await self.start()
        if self._at_loop_end is None:
            self._at_loop_end = await AtLoopEnd.of(partial(self.shutdown, _LAST_SENDS))

    async def shutdown(self, timeout: Seconds | None = None) -> None:
        await super().shutdown(timeout)
        ending, self._at_loop_end = self._at_loop_end, None
        if ending is not None:
            await ending.forget()

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
            correlation_id: the id that related messages share; the id of the message by default.
            message_id: identifies the message, also to detect duplicates; a new UUID by default.
            persistent: False: the message need not survive a restart of the broker.
            priority: higher ones are received first, where queues have priorities.
            ttl: seconds after which the message is obsolete: subscribers then delete it unhandled.

        Raises:
            InvalidMessageError: the message is not valid.
            BufferFullError, BufferExpiredError, CircuitOpenError: there is no connection.
            PublishError: one of several exchanges failed.
            MatadorError: the error of the transport.

        Example:
            >>> await publisher.publish("orders.created", {"id": 1}, priority=5)
        """
        to = self._default
        if exchange is not None or self._outbox is None:
            to = await self._to(exchange)

        async def send(more: Mapping[str, object] | None) -> Published:
            message = self._message(
                routing_key,
                encode_data(data, "the data", InvalidMessageError),
                metadata_headers(more, _WHERE),
                correlation_id,
                message_id,
                persistent,
                priority,
                optional_seconds(ttl, _TTL),
            )
            if len(to) != 1:
                return await self._posted_to_all(message, to)
            try:
                queues = await self._send(self._parcel(message, routing_key, to[0]))
            except MatadorError as error:
                self._counters.note_error(error)
                if isinstance(error, QueueNotFoundError):
                    await self._declare(to)  # the next publish finds it
                raise
            return self._published(message, to, queues)

        return await self._sending("publish", routing_key, ", ".join(to), metadata, send)

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

        Example:
            >>> messages = [("orders.created", {"id": 1}), ("orders.paid", {"id": 1})]
            >>> [one.queues for one in await publisher.publish_many(messages)]
            [2, 1]
        """
        to = await self._to(exchange)
        if len(to) != 1:
            raise InvalidMessageError(f"{_WHERE}: publish_many takes one exchange, got {to!r}")
        given = list(_pairs(messages))

        async def send(more: Mapping[str, object] | None) -> list[Published]:
            headers = metadata_headers(more, _WHERE)
            made: list[Message] = []
            for place, (key, data) in enumerate(given):
                body = encode_data(data, f"the data of message {place}", InvalidMessageError)
                made.append(self._message(key, body, headers, correlation_id, None, persistent))
            found = await self._posted_many(
                [self._parcel(one, key, to[0]) for (key, _), one in zip(given, made, strict=True)]
            )
            outcomes = [
                self._published(message, to, one) if isinstance(one, int) else one
                for message, one in zip(made, found, strict=True)
            ]
            errors = [one for one in found if not isinstance(one, int)]
            if errors:
                raise PublishError(
                    f"{len(errors)} of {len(made)} messages were not published: {_text(errors[0])}",
                    outcomes,
                ) from errors[0]
            return cast("list[Published]", outcomes)

        names = tuple(dict.fromkeys(key for key, _ in given))
        return await self._sending("publish", names, to[0], metadata, send, len(given))

    # -- state --------------------------------------------------------------------------

    @property
    def is_ready(self) -> bool:
        """Whether it is started and connected, and the circuit breaker is not open."""
        return self._outbox is not None and self.health().status == "healthy"

    @property
    def topology(self) -> Topology:
        """The exchanges that it creates."""
        return Topology(NAMESPACE, exchanges=self._exchanges.values())

    @property
    def exchange(self) -> str:
        """The default exchange."""
        return self._default[0]

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
                f"{_WHERE}: the routing key must be a text like 'orders.created', got {key!r}"
            )
        if len(key) * 4 > _LONGEST_KEY and len(key.encode("utf-8", "replace")) > _LONGEST_KEY:
            raise InvalidMessageError(
                f"{_WHERE}: the routing key {key[:40]!r}… is longer than {_LONGEST_KEY} bytes"
            )
        check_ids(_WHERE, message_id, correlation_id)
        if priority is not None:
            whole_number(priority, f"{_WHERE}: priority", minimum=0)
        id_ = message_id or self._clock.new_id()
        expires_at = None if ttl is None else self._clock.time() + ttl
        properties = Properties(
            key, None, correlation_id or id_, None, expires_at, transient=not persistent
        )
        return Message(id_, "", body, headers, 0.0, priority, None, properties)

    async def _to(self, given: str | Sequence[str] | None) -> tuple[str, ...]:
        """The exchanges to publish to, created if missing."""
        if self._outbox is None:
            await self._used_first()
        if given is None:
            return self._default
        names = (given,) if isinstance(given, str) else tuple(given)
        if not names:
            raise InvalidMessageError(f"{_WHERE}: exchange is empty: name at least one")
        if not self._declared.issuperset(names):
            await self._declare(names)
        return names

    async def _declare(self, names: Iterable[str]) -> None:
        new = [self._exchanges.get(name) or Exchange(name) for name in dict.fromkeys(names)]
        await self._broker.apply(Topology(NAMESPACE, exchanges=new))
        self._declared.update(one.name for one in new)

    async def _posted_to_all(self, message: Message, to: tuple[str, ...]) -> Published:
        """Publish to several exchanges."""
        key = _key(message)
        found = await self._posted_many([self._parcel(message, key, one) for one in to])
        errors = [one for one in found if not isinstance(one, int)]
        if errors:
            raise PublishError(
                f"{key!r} was not published to {len(errors)} of {len(to)} exchanges: "
                f"{_text(errors[0])}",
                found,
            ) from errors[0]
        return self._published(message, to, sum(one for one in found if isinstance(one, int)))

    async def _posted_many(self, parcels: Sequence[Parcel]) -> Sequence[int | MatadorError]:
        """The outcome of each message.

        Recreates deleted exchanges, so that the next publish finds them.
        """
        found = await self._send_many(parcels)
        missing = False
        for outcome in found:
            if not isinstance(outcome, int):
                self._counters.note_error(outcome)
                missing = missing or isinstance(outcome, QueueNotFoundError)
        if missing:
            await self._declare(one.exchange for one in parcels if one.exchange is not None)
        return found

    def _published(self, message: Message, to: tuple[str, ...], queues: int) -> Published:
        published = Published(message.id, _key(message), to, queues)
        if not queues and self._on_unroutable is not None:
            try:
                self._on_unroutable(published)
            except Exception:
                log.exception("on_unroutable of a publisher failed")
        return published


class SyncPublisher(Blocking[Publisher]):
    """``publisher.sync()``: a publisher for code without an event loop. See ``Blocking``.

    Example:
        >>> events = Publisher("amqp://localhost", exchange="events").sync()
        >>> events.publish("orders.created", {"id": 1})
    """

    _called = "publisher"

    publish = blocking(Publisher.publish)
    publish_many = blocking(Publisher.publish_many)


def exchanges_of(given: Any, where: str) -> list[Exchange]:
    """The exchanges that were given.

    Raises:
        ConfigurationError: there are none, or one is not valid.
    """
    several: list[Any] = [given]
    if isinstance(given, list | tuple):
        several = list(cast("Sequence[Any]", given))
    if not several:
        raise ConfigurationError(f"{where}: exchange is empty: name at least one")
    for one in several:
        if not isinstance(one, str | Exchange) or not one:
            raise ConfigurationError(f"{where}: exchange must be a name, got {one!r}")
    made = [one if isinstance(one, Exchange) else Exchange(one) for one in several]
    Topology(NAMESPACE, exchanges=made)  # checks the names
    return made


def require_routing(transport: Transport, where: str) -> None:
    """Raise ``UnsupportedError`` unless the transport has exchanges."""
    if not transport.capabilities.routing:
        raise UnsupportedError(
            f"{where}: the transport {transport.name!r} has no exchanges; use memory, SQLite, "
            f"RabbitMQ or Redis"
        )


def _key(message: Message) -> str:
    properties = message.properties
    return "" if properties is None else properties.routing_key or ""


def _pairs(given: Iterable[tuple[str, object]]) -> Iterable[tuple[str, object]]:
    for place, one in enumerate(given):
        if not isinstance(one, tuple | list) or len(one) != 2:  # pyright: ignore[reportUnnecessaryIsInstance] - users
            raise InvalidMessageError(
                f"{_WHERE}: message {place} must be a pair of routing key and data, got {one!r}"
            )
        yield one


def _text(error: BaseException) -> str:
    return f"{type(error).__name__}: {error_text(error, SHORT_TEXT)}"
