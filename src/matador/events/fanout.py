"""Fan-out: one event becomes one envelope per enabled subscriber. The payload is encoded once."""

from __future__ import annotations

import hashlib
import inspect
import logging
import re
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias

import msgspec

from matador.codec.base import (
    BlankStencil,
    DecodedPayload,
    Encoded,
    PayloadEncoder,
    Preparing,
    RawEnvelope,
    Stencil,
    filling_blanks,
    preparing,
)
from matador.codec.headers import HeaderCodec
from matador.codec.json import JsonCodec
from matador.errors import (
    ConfigurationError,
    DelaysNotSupportedError,
    InProcessCannotRunStubError,
    InvalidEventError,
    MatadorError,
    MessageTooLargeError,
    SubscriberNotRegisteredError,
)
from matador.events.config import AppConfig, UnsupportedDelays
from matador.events.plain import TRACEPARENT, Plain
from matador.model.envelope import ROOM_FOR_ERRORS, Docket, Envelope
from matador.model.event import EventType
from matador.model.message import Message
from matador.model.options import seconds, suggestion
from matador.model.sending import SendOptions
from matador.model.subscriber import AnySubscriber, SubscriberStub
from matador.model.text import lone_surrogate
from matador.model.topology import Topology, WorkQueue

log = logging.getLogger("matador.send")

PLAIN = SendOptions()
"""Options of a send that has none."""

_Choice: TypeAlias = tuple[str, tuple[str, ...] | None, str | None]

_NO_TRACE = f"00-{'f' * 32}-{'f' * 16}-ff"
_PLAIN_TRACE = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}", re.ASCII)
_LONG_DELAY = 3600.0
_MOST_CHOICES = 1000
_SOME_TIME = datetime(2026, 11, 15, tzinfo=UTC)
_IDS = uuid.UUID("8a4a1b39-8f5c-5d0e-9b0c-6d1c4f6f9a11")  # never change it: ids depend on it
_OF_IDS = hashlib.sha1(_IDS.bytes, usedforsecurity=False)


class Target(msgspec.Struct, frozen=True):
    """A subscriber and its queues: first its own, then the fallbacks."""

    subscriber: AnySubscriber
    queues: tuple[WorkQueue, ...]
    names: tuple[str, ...]


class Outgoing(msgspec.Struct):
    """One envelope to be sent: its message, or the error why there is none, and warnings."""

    target: Target
    sent: Envelope[Any] | Plain
    message: Message | None
    error: MatadorError | None = None
    warnings: tuple[str, ...] = ()

    @property
    def envelope(self) -> Envelope[Any]:
        """The envelope. That of a plain one is created here, because it is rarely needed."""
        return self.sent.envelope if isinstance(self.sent, Plain) else self.sent


class Order(msgspec.Struct):
    """One event to be sent: its messages, and how many subscribers were skipped."""

    event: EventType
    skipped: int
    outgoing: list[Outgoing]


class Traced(msgspec.Struct, frozen=True):
    """A stencil with a ``traceparent`` in its metadata, which is filled in afterwards.

    ``place`` is where it is, counted from the end of the body.
    """

    stencil: Stencil
    place: int

    def __call__(self, id: str, data: msgspec.Raw, now: datetime, traceparent: str) -> Encoded:
        """The encoded envelope."""
        made = self.stencil(id, data, now)
        body = made.body
        start = len(body) - self.place
        end = start + len(_NO_TRACE)
        return Encoded(body[:start] + traceparent.encode() + body[end:], made.headers)


class Way(msgspec.Struct, frozen=True):
    """How a plain envelope reaches one subscriber. Only id, payload and time are added."""

    target: Target
    queue: str
    docket: Docket
    stencil: Stencil
    traced: BlankStencil | None


class Route(msgspec.Struct, frozen=True):
    """The fast path of an event that is always sent to every subscriber."""

    event: EventType
    encode: PayloadEncoder
    ways: tuple[Way, ...]
    traceable: bool  # can all of them carry a ``traceparent``?
    only: Way | None  # the way to its subscriber, if there is a single one


class FanOut:
    """Creates the messages for events. Sends nothing itself."""

    def __init__(self, config: AppConfig) -> None:
        schema, topology = config.schema, config.topology
        capabilities = config.transport.capabilities
        self._codec = config.used_codec
        self._sends_json = type(config.used_codec) is JsonCodec
        self._writes_json = type(config.used_codec) in (JsonCodec, HeaderCodec)
        self._topology = topology
        self._capabilities = capabilities
        self._clock = config.clock
        self.largest, self._why = _limit(config.max_message_size, capabilities.max_message_size)
        """The largest body that is sent, in bytes."""
        self._unsupported_delays: UnsupportedDelays = config.unsupported_delays
        self._targets: dict[str, tuple[Target, ...]] = {
            event.key: tuple(_target(topology, one) for one in subscribers)
            for event, subscribers in schema
        }
        self._choices: dict[_Choice, tuple[Target, ...]] = {}
        self._routes: dict[type[Any], Route] = {
            event.payload: route for event, _ in schema if (route := self._route(event)) is not None
        }

    def _route(self, event: EventType) -> Route | None:
        codec = preparing(self._codec)
        targets = self._targets[event.key]
        in_process = self._capabilities.in_process
        if codec is None or event.metadata:
            return None
        if any(
            one.subscriber.enabled is not None
            or (in_process and isinstance(one.subscriber, SubscriberStub))
            for one in targets
        ):
            return None
        try:
            ways = tuple(_way(codec, event, target) for target in targets)
            traceable = all(way.traced is not None for way in ways)
            only = ways[0] if len(ways) == 1 else None
            return Route(event, codec.payload_encoder(event), ways, traceable, only)
        except InvalidEventError:  # raised when the event is sent
            return None

    def route(self, payload: object) -> Route | None:
        """The fast path for a payload, if there is one.

        Only for events without options and without universal metadata.
        """
        return self._routes.get(type(payload))

    def make_plain(
        self,
        route: Route,
        payload: Any,
        traceparent: str | None = None,
        now: datetime | None = None,
    ) -> Order:
        """``make`` for an event without options: the same messages in less time.

        With ``traceparent``, of which ``can_carry`` is true, that is their only metadata.

        Raises:
            InvalidEventError: the payload does not match its type.
        """
        data = route.encode(payload)
        json = data if self._writes_json else None
        now = now or self._clock.now()
        outgoing: list[Outgoing] = []
        for way in route.ways:
            id_ = self._clock.new_id()
            if traceparent is None or way.traced is None:
                encoded = way.stencil(id_, data, now)
            else:
                encoded = way.traced(id_, data, now, traceparent)
            plain = Plain(id_, payload, way.docket, now, traceparent, json)
            target, size = way.target, len(encoded.body)
            if size <= self.largest:
                message = Message(id_, way.queue, encoded.body, encoded.headers)
                outgoing.append(Outgoing(target, plain, message))
            else:
                error = MessageTooLargeError(size, self.largest, why=self._why)
                outgoing.append(Outgoing(target, plain, None, error))
        return Order(route.event, 0, outgoing)

    def make_message(
        self, route: Route, way: Way, payload: Any, traceparent: str | None, now: datetime
    ) -> tuple[Message, Plain] | None:
        """``make_plain`` for the only subscriber; None if the message is too large.

        Raises:
            InvalidEventError: the payload does not match its type.
        """
        data = route.encode(payload)
        id_ = self._clock.new_id()
        if traceparent is None or way.traced is None:
            encoded = way.stencil(id_, data, now)
        else:
            encoded = way.traced(id_, data, now, traceparent)
        body = encoded.body
        if len(body) > self.largest:
            return None
        json = data if self._writes_json else None
        plain = Plain(id_, payload, way.docket, now, traceparent, json)
        return Message(id_, way.queue, body, encoded.headers), plain

    def can_carry(self, route: Route, metadata: Mapping[str, Any] | None) -> str | None:
        """The ``traceparent`` of these metadata, if there is nothing else in them, and the fast
        path can carry it."""
        found = metadata.get(TRACEPARENT) if metadata and len(metadata) == 1 else None
        if not isinstance(found, str) or _PLAIN_TRACE.fullmatch(found) is None:
            return None
        return found if route.traceable else None

    async def make(
        self,
        event: EventType,
        payload: Any,
        options: SendOptions,
        universal: Mapping[str, Any] | None,
    ) -> Order:
        """The messages for one event, with a payload, plain data, or a ``DecodedPayload``.

        Raises:
            InvalidEventError: the payload, ``before`` or the metadata is invalid.
            ConfigurationError: an option is invalid.
            SubscriberNotRegisteredError: the event has no such subscriber.
            QueueNotFoundError: the topology has no such queue.
        """
        targets = self.targets(event, options)
        payload, data = self.encoded(event, payload)
        before = options.before
        raw_before = None if before is None else self._codec.encode_payload(event, before)
        metadata = merged_metadata(event, universal, options.metadata)
        if options is not PLAIN:
            _check(options)
        now = self._clock.now()
        delay = 0.0 if options.delay is None else seconds(options.delay, "delay")
        due = _due(now, delay) if delay else None
        order = Order(event, 0, [])
        for target in targets:
            subscriber = target.subscriber
            if subscriber.enabled is not None and not await _is_enabled(subscriber):
                order.skipped += 1
                continue
            docket = Docket(
                event_key=event.key,
                target_subscriber=subscriber.name,
                created_at=now,
                attempts=1,
                importance=subscriber.importance,
                event_description=event.description,
                scheduled_for=due,
                correlation_id=options.correlation_id,
                metadata=metadata,
            )
            id_ = self._clock.new_id() if options.id is None else _id(options, subscriber.name)
            raw = Envelope(id_, data, docket, raw_before)
            envelope = Envelope(raw.id, payload, docket, before)
            order.outgoing.append(self._outgoing(target, envelope, raw, options, delay))
        return order

    def encoded(self, event: EventType, payload: Any) -> tuple[Any, msgspec.Raw]:
        """A payload, plain data or a ``DecodedPayload``: the payload, and its bytes.

        Raises:
            InvalidEventError: the payload does not match its type.
        """
        if type(payload) is DecodedPayload:
            if self._sends_json:
                return payload.payload, payload.json
            payload = payload.payload
        return payload, self._codec.encode_payload(event, payload)

    def targets(self, event: EventType, options: SendOptions) -> tuple[Target, ...]:
        """The subscribers that an event is sent to, enabled or not.

        Raises:
            SubscriberNotRegisteredError: the event has no such subscriber.
            QueueNotFoundError: the topology has no such queue.
        """
        targets = self._targets.get(event.key, ())
        if options.subscribers is None and options.queue is None:
            return targets
        wanted = None if options.subscribers is None else tuple(options.subscribers)
        choice = (event.key, wanted, options.queue)
        known = self._choices.get(choice)
        targets = self._chosen(event, targets, options) if known is None else known
        if known is None and len(self._choices) < _MOST_CHOICES:
            self._choices[choice] = targets
        return targets

    def _chosen(
        self, event: EventType, targets: tuple[Target, ...], options: SendOptions
    ) -> tuple[Target, ...]:
        wanted, queue = options.subscribers, options.queue
        if wanted is not None:
            known = {target.subscriber.name: target for target in targets}
            for name in wanted:
                if name not in known:
                    raise SubscriberNotRegisteredError(
                        f"event {event.key!r} has no subscriber {name!r}{suggestion(name, known)}"
                    )
            targets = tuple(known[name] for name in dict.fromkeys(wanted))
        if queue is not None:
            found = self._topology.queue(queue)
            name = self._topology.full_name(queue)
            targets = tuple(Target(one.subscriber, (found,), (name,)) for one in targets)
        return targets

    def _outgoing(
        self,
        target: Target,
        envelope: Envelope[Any],
        raw: RawEnvelope,
        options: SendOptions,
        delay: float,
    ) -> Outgoing:
        can = self._capabilities
        if can.in_process and isinstance(target.subscriber, SubscriberStub):
            error = InProcessCannotRunStubError(
                f"subscriber {target.subscriber.name!r} is a stub, but the in-process transport "
                f"delivers only within this process"
            )
            return Outgoing(target, envelope, None, error)
        warnings: list[str] = []
        if delay:
            problem = self._delay_problem(delay)
            if problem is not None and self._unsupported_delays == "error":
                return Outgoing(target, envelope, None, DelaysNotSupportedError(problem))
            if problem is not None:
                warnings.append(f"{problem}; sent without the delay")
                delay = 0.0
            elif delay > _LONG_DELAY:
                log.warning(
                    "%s for %s is delayed by %.1f hours; the broker must keep it until then",
                    envelope.docket.event_key,
                    target.subscriber.name,
                    delay / 3600,
                )
        priority, ordering_key = options.priority, options.ordering_key
        if priority is not None and not (can.priorities and target.queues[0].priorities):
            what = "queue" if can.priorities else "transport"
            warnings.append(f"sent without its priority: the {what} does not support priorities")
            priority = None
        if ordering_key is not None and can.ordering != "partition":
            warnings.append("sent without its ordering key: the transport does not support it")
            ordering_key = None
        try:
            encoded = self._codec.encode(raw)
            if (size := len(encoded.body)) > self.largest:
                raise MessageTooLargeError(size, self.largest, why=self._why)
        except MessageTooLargeError as error:  # a codec may have a limit of its own
            return Outgoing(target, envelope, None, error)
        message = Message(
            raw.id, target.names[0], encoded.body, encoded.headers, delay, priority, ordering_key
        )
        return Outgoing(target, envelope, message, None, tuple(warnings))

    def _delay_problem(self, delay: float) -> str | None:
        if not self._capabilities.delays:
            return "the transport cannot delay messages"
        longest = self._capabilities.max_delay
        if longest is not None and delay > longest:
            return f"the transport cannot delay messages by {delay:g} s; the limit is {longest:g} s"
        return None


def _limit(ours: int, brokers: int | None) -> tuple[int, str]:
    """The largest body to send, in bytes, and an explanation if the broker sets the limit.

    Leaves room for the errors that retries add, but never more than a quarter of the limit.
    """
    if brokers is None:
        return ours, ""
    room = min(ROOM_FOR_ERRORS, brokers // 4)
    if brokers - room >= ours:
        return ours, ""
    return brokers - room, f": the broker accepts {brokers:,}, and retries add up to {room:,}"


def _due(now: datetime, delay: float) -> datetime:
    try:
        return now + timedelta(seconds=delay)
    except OverflowError as error:
        raise ConfigurationError(
            f"delay must end before the year 10000, got {delay:g} seconds"
        ) from error


def derived_id(*parts: str) -> str:
    """A UUID of version 5 that is always the same for the same parts.

    Does not use ``uuid.uuid5``, which takes four times as long.
    """
    sha = _OF_IDS.copy()
    sha.update("\x1f".join(parts).encode("utf-8", "surrogatepass"))
    digest = sha.hexdigest()
    variant = "89ab"[int(digest[16], 16) & 3]
    return f"{digest[:8]}-{digest[8:12]}-5{digest[13:16]}-{variant}{digest[17:20]}-{digest[20:32]}"


def _id(options: SendOptions, subscriber: str) -> str:
    assert options.id is not None
    if options.subscribers is not None and len(options.subscribers) == 1:
        return options.id
    return derived_id(options.id, subscriber)


def _target(topology: Topology, subscriber: AnySubscriber) -> Target:
    queue: WorkQueue | None = (
        topology.default_queue if subscriber.queue is None else topology.queue(subscriber.queue)
    )
    chain: list[WorkQueue] = []
    while queue is not None:
        chain.append(queue)
        queue = None if queue.fallback is None else topology.queue(queue.fallback)
    return Target(subscriber, tuple(chain), tuple(topology.full_name(one.name) for one in chain))


def plain_docket(event: EventType, target: Target) -> Docket:
    """The docket of an event to a subscriber, sent without options at some time."""
    return Docket(
        event_key=event.key,
        target_subscriber=target.subscriber.name,
        created_at=_SOME_TIME,
        attempts=1,
        importance=target.subscriber.importance,
        event_description=event.description,
    )


def _way(codec: Preparing, event: EventType, target: Target) -> Way:
    docket = plain_docket(event, target)
    return Way(target, target.names[0], docket, codec.prepare(docket), _traced(codec, docket))


def _traced(codec: Preparing, docket: Docket) -> BlankStencil | None:
    """The stencil for traced events, if the codec writes metadata as text."""
    docket = msgspec.structs.replace(docket, metadata={TRACEPARENT: _NO_TRACE})
    stencil = codec.prepare(docket)
    body, mark = stencil("", msgspec.Raw(b"null"), _SOME_TIME).body, _NO_TRACE.encode()
    if body.count(mark) != 1:
        return None
    filling = filling_blanks(codec)
    if filling is not None:
        return filling.prepare_blank(docket, _NO_TRACE)
    return Traced(stencil, len(body) - body.index(mark))


async def _is_enabled(subscriber: AnySubscriber) -> bool:
    try:
        answer = subscriber.enabled() if subscriber.enabled is not None else True
        return bool(await answer if inspect.isawaitable(answer) else answer)
    except Exception:
        log.exception("enabled() of %r raised an error; treated as enabled", subscriber.name)
        return True


def merged_metadata(
    event: EventType, universal: Mapping[str, Any] | None, given: Mapping[str, Any] | None
) -> dict[str, Any]:
    """The metadata of a send: overrides that of the event, which overrides universal metadata."""
    if given is not None and not _is_mapping(given):
        raise InvalidEventError(f"event {event.key!r}: metadata must be a mapping, got {given!r}")
    if not universal and not event.metadata:
        return dict(given) if given else {}
    return {**(universal or {}), **event.metadata, **(given or {})}


def _is_mapping(given: object) -> bool:
    return type(given) is dict or isinstance(given, Mapping)  # the second check is slow


def _check(options: SendOptions) -> None:
    priority = options.priority
    if priority is not None and (
        isinstance(priority, bool) or not isinstance(priority, int) or priority < 0  # pyright: ignore[reportUnnecessaryIsInstance] - users
    ):
        raise ConfigurationError(f"priority must be a whole number >= 0, got {priority!r}")
    _check_text("correlation_id", options.correlation_id)
    _check_text("ordering_key", options.ordering_key)
    _check_text("id", options.id)


def _check_text(name: str, value: str | None) -> None:
    if value is None or (type(value) is str and value.isascii()):
        return
    if not isinstance(value, str):  # pyright: ignore[reportUnnecessaryIsInstance] - users
        raise ConfigurationError(f"{name} must be a string, got {value!r}")
    if (half := lone_surrogate(value)) is not None:
        raise ConfigurationError(f"{name} {half}, which no broker can store")
