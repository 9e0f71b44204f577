"""Fan-out: one event becomes one message per enabled subscriber. The payload is encoded once.

The parts that the messages of an event share are prepared on first use: their queues, and the text
of their dockets. Each message adds its id, payload, time and the options of the send.
"""

from __future__ import annotations

import hashlib
import inspect
import logging
import uuid
from collections.abc import Awaitable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias, cast

import msgspec

from matador.codec.base import (
    DecodedPayload,
    Encoded,
    PayloadEncoder,
    Stencil,
    preparing,
)
from matador.codec.headers import HeaderCodec
from matador.codec.json import JsonCodec
from matador.codec.payload import PayloadCodec
from matador.codec.plain import unencodable_key
from matador.errors import (
    ConfigurationError,
    DelaysNotSupportedError,
    EventNotRegisteredError,
    InProcessCannotRunStubError,
    InvalidEventError,
    MatadorError,
    MessageTooLargeError,
    SubscriberNotRegisteredError,
)
from matador.events.config import AppConfig, UnsupportedDelays
from matador.model.envelope import ROOM_FOR_ERRORS, Docket, Envelope
from matador.model.event import EventType
from matador.model.message import Message
from matador.model.options import seconds, suggestion
from matador.model.sending import SendOptions
from matador.model.subscriber import AnySubscriber, SubscriberStub
from matador.model.text import lone_surrogate
from matador.model.topology import Topology, WorkQueue
from matador.runtime.facts import Kind, Sent
from matador.runtime.outbox import Parcel

log = logging.getLogger("matador.send")

PLAIN = SendOptions()
"""Options of a send that has none."""

_Kind: TypeAlias = tuple[str, tuple[str, ...] | None, str | None]
"""The key of an event, the chosen subscribers and the queue."""

_LONG_DELAY = 3600.0
_MOST_KINDS = 1000
_SOME_TIME = datetime(2026, 11, 15, tzinfo=UTC)
_IDS = uuid.UUID("8a4a1b39-8f5c-5d0e-9b0c-6d1c4f6f9a11")  # never change it: ids depend on it
_OF_IDS = hashlib.sha1(_IDS.bytes, usedforsecurity=False)


class Target(msgspec.Struct, frozen=True):
    """A subscriber and its queues: first its own, then the fallbacks."""

    subscriber: AnySubscriber
    queues: tuple[WorkQueue, ...]
    names: tuple[str, ...]


class SubscriberLane(msgspec.Struct, frozen=True):
    """How the messages of an event reach one subscriber. ``stencil``: None if the codec has none or
    the subscriber cannot be reached; ``error``: the reason; ``elsewhere``: it is a stub."""

    target: Target
    subscriber: str
    queue: str
    docket: Docket
    kind: Kind
    stencil: Stencil | None
    error: MatadorError | None
    elsewhere: bool


class Prepared(msgspec.Struct, frozen=True):
    """The messages of an event to some subscribers.

    ``keeps_id``: the id in the options is the id of the only message. ``conditional``: some
        subscribers have a condition (``enabled``).
    """

    event: EventType
    encode: PayloadEncoder
    lanes: tuple[SubscriberLane, ...]
    keeps_id: bool
    conditional: bool


class _More(msgspec.Struct, frozen=True):
    """The data of the messages of one event besides its payload.

    ``special``: they use options that a transport may not support.
    """

    id: str | None = None
    before: msgspec.Raw | None = None
    correlation_id: str | None = None
    metadata: dict[str, Any] | None = None
    delay: float = 0.0
    due: datetime | None = None
    due_at: float | None = None
    special: bool = False


_NOTHING = _More()


class Outgoing(Parcel, gc=False, kw_only=True):
    """A message of an event on its way to one subscriber.

    Attributes:
        lane: its subscriber and queues.
        error: why it was not stored.
        warnings: options that were left out because the transport does not support them.
        sendable: False if it cannot be sent at all: ``error`` says why.
        posted: its future outcome in the outbox.
    """

    lane: SubscriberLane
    error: MatadorError | None = None
    warnings: tuple[str, ...] = ()
    sendable: bool = True
    posted: Awaitable[int | MatadorError] | None = None

    @property
    def target(self) -> Target:
        """The subscriber and its queues."""
        return self.lane.target


class Order(msgspec.Struct, frozen=True, gc=False):
    """One event to be sent: its messages, and how many subscribers were skipped."""

    event: EventType
    skipped: int
    outgoing: list[Outgoing]


class FanOut:
    """Creates the messages for events. Sends nothing itself.

    Args:
        config: of the application.
        tells: whether to create facts, because a hook needs them.
    """

    def __init__(self, config: AppConfig, *, tells: bool = False) -> None:
        schema, topology = config.schema, config.topology
        capabilities = config.transport.capabilities
        self._codec = config.used_codec
        self._preparing = preparing(self._codec)
        self._metadata_codec = PayloadCodec("json")
        self._sends_json = type(self._codec) is JsonCodec
        self._writes_json = type(self._codec) in (JsonCodec, HeaderCodec)
        self._topology = topology
        self._capabilities = capabilities
        self._transport = config.transport.name
        self._tells = tells
        self._new_id = config.clock.new_id
        self._largest, self._why = _limit(config.max_message_size, capabilities.max_message_size)
        self._unsupported_delays: UnsupportedDelays = config.unsupported_delays
        self._schema = schema
        self._targets: dict[str, tuple[Target, ...]] = {
            event.key: tuple(_target(topology, one) for one in subscribers)
            for event, subscribers in schema
        }
        self._prepared: dict[_Kind, Prepared] = {}
        self.known: dict[type[Any], Prepared] = {}
        """Events that were sent without options before, by the type of their payload."""

    # -- shared by the messages of an event ---------------------------------------------

    def prepare(self, event: EventType, options: SendOptions) -> Prepared:
        """The subscribers and queues of an event, prepared on first use.

        Raises:
            EventNotRegisteredError: the event is not in the schema.
            SubscriberNotRegisteredError: the event has no such subscriber.
            QueueNotFoundError: the topology has no such queue.
        """
        wanted = options.subscribers
        kind = event.key, wanted if wanted is None else tuple(wanted), options.queue
        found = self._prepared.get(kind)
        if found is None or found.event is not event:
            found = self._prepare(event, options)
            if len(self._prepared) < _MOST_KINDS:
                self._prepared[kind] = found
            if kind[1] is None and kind[2] is None:
                self.known[event.payload] = found
        return found

    def _prepare(self, event: EventType, options: SendOptions) -> Prepared:
        if event.key not in self._schema:
            raise EventNotRegisteredError(
                f"event {event.key!r} is not in the schema of this application"
            )
        targets = self._chosen(event, options)
        chosen, codec = options.subscribers, self._preparing
        encode: PayloadEncoder | None = None
        if codec is not None:
            try:
                encode = codec.payload_encoder(event)
            except InvalidEventError:  # raised when the event is sent
                encode = None
        return Prepared(
            event,
            encode or (lambda payload: self._codec.encode_payload(event, payload)),
            tuple(self._lane(event, target) for target in targets),
            chosen is not None and len(chosen) == 1,
            any(one.subscriber.enabled is not None for one in targets),
        )

    def _lane(self, event: EventType, target: Target) -> SubscriberLane:
        subscriber = target.subscriber
        docket = Docket(
            event_key=event.key,
            target_subscriber=subscriber.name,
            created_at=_SOME_TIME,
            attempts=1,
            importance=subscriber.importance,
            event_description=event.description,
        )
        error: MatadorError | None = None
        elsewhere = isinstance(subscriber, SubscriberStub)
        if self._capabilities.in_process and elsewhere:
            error = InProcessCannotRunStubError(
                f"subscriber {subscriber.name!r} is a stub, but the in-process transport "
                f"delivers only within this process"
            )
        stencil: Stencil | None = None
        if self._preparing is not None and error is None:
            try:
                stencil = self._preparing.prepare(docket)
            except InvalidEventError:  # raised when the event is sent
                stencil = None
        name, queue = subscriber.name, target.names[0]
        kind = Kind(
            "event", event.key, name, queue, self._transport, docket.importance, event.description
        )
        return SubscriberLane(target, name, queue, docket, kind, stencil, error, elsewhere)

    def _chosen(self, event: EventType, options: SendOptions) -> tuple[Target, ...]:
        targets = self._targets.get(event.key, ())
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

    async def enabled(self, prepared: Prepared) -> Prepared:
        """Only the subscribers that are enabled now."""
        lanes = [
            lane
            for lane in prepared.lanes
            if lane.target.subscriber.enabled is None or await _is_enabled(lane.target.subscriber)
        ]
        return msgspec.structs.replace(prepared, lanes=tuple(lanes), conditional=False)

    # -- the messages of one event ----------------------------------------------------------------

    def make(
        self,
        prepared: Prepared,
        payload: Any,
        options: SendOptions,
        universal: Mapping[str, Any] | None,
        now: datetime,
    ) -> list[Outgoing]:
        """The messages for one event, with a payload, plain data, or a ``DecodedPayload``.

        Raises:
            InvalidEventError: the payload, ``before`` or the metadata is invalid.
            ConfigurationError: an option is invalid.
        """
        if type(payload) is DecodedPayload:
            data = payload.json if self._sends_json else prepared.encode(payload.payload)
            payload = payload.payload
        else:
            data = prepared.encode(payload)
        more = _NOTHING
        event = prepared.event
        if options is not PLAIN or universal or event.metadata or event.metadata_type is not None:
            more = self._more(event, options, universal, now)
        new_id, fact, key = self._new_id, None, event.key
        outgoing: list[Outgoing] = []
        for lane in prepared.lanes:
            id_ = new_id() if more.id is None else _id(more.id, prepared, lane)
            if self._tells:
                fact = Sent(
                    lane.kind,
                    id_,
                    now.timestamp(),
                    data if self._writes_json else None,
                    payload,
                    more.due_at,
                    more.correlation_id,
                    more.metadata,
                    options.before,
                )
            stencil = lane.stencil
            if more.special or stencil is None:
                outgoing.append(self._special(lane, id_, data, more, options, now, fact))
                continue
            encoded = stencil(id_, data, now, more.before, more.correlation_id, more.metadata)
            body = encoded.body
            message = Message(
                id_, lane.queue, body, encoded.headers, elsewhere=lane.elsewhere, name=key
            )
            one = Outgoing(message, None, fact, lane=lane)
            if len(body) > self._largest:
                one.sendable, one.error = False, self._too_large(encoded)
            outgoing.append(one)
        return outgoing

    def _more(
        self,
        event: EventType,
        options: SendOptions,
        universal: Mapping[str, Any] | None,
        now: datetime,
    ) -> _More:
        """The data of the messages of one event besides its payload."""
        _check(options)
        before = None if options.before is None else self._before(event, options.before)
        delay = 0.0 if options.delay is None else seconds(options.delay, "delay")
        metadata = None
        if (typed := event.typed_metadata) is not None:
            metadata = self._typed_metadata(event, typed, universal, options.metadata) or None
        elif universal or event.metadata or options.metadata is not None:
            metadata = _merged(event, universal, options.metadata) or None
        special = delay or options.priority is not None or options.ordering_key is not None
        due = _due(now, delay) if delay else None
        return _More(
            options.id,
            before,
            options.correlation_id,
            metadata,
            delay,
            due,
            None if due is None else due.timestamp(),
            bool(special),
        )

    def _before(self, event: EventType, before: Any) -> msgspec.Raw:
        try:
            return self._codec.encode_payload(event, before)
        except InvalidEventError as error:
            raise _placed(event, "before", error) from error

    def _typed_metadata(
        self,
        event: EventType,
        typed: EventType,
        universal: Mapping[str, Any] | None,
        given: object,
    ) -> dict[str, Any]:
        """The merged metadata, unchanged: the type only checks it."""

        encode = self._metadata_codec.encode_payload
        if typed.payload in type(given).__mro__:
            try:
                given = msgspec.json.decode(encode(typed, given))
            except InvalidEventError as error:
                raise _placed(event, "metadata", error) from error
        merged = _merged(event, universal, given)
        try:
            encode(typed, merged)
        except InvalidEventError as error:
            key = unencodable_key(merged)
            where = "metadata" if key is None else f"metadata[{key!r}]"
            raise _placed(event, where, error) from error
        return merged

    def _too_large(self, encoded: Encoded) -> MessageTooLargeError:
        return MessageTooLargeError(len(encoded.body), self._largest, why=self._why)

    def _special(
        self,
        lane: SubscriberLane,
        id: str,
        data: msgspec.Raw,
        more: _More,
        options: SendOptions,
        now: datetime,
        fact: Sent | None,
    ) -> Outgoing:
        """A message with options that a transport may not support, or without a stencil."""

        def unsendable(error: MatadorError) -> Outgoing:
            nothing = Message(id, lane.queue, b"")
            return Outgoing(nothing, None, fact, lane=lane, error=error, sendable=False)

        if lane.error is not None:
            return unsendable(lane.error)
        can, target, delay = self._capabilities, lane.target, more.delay
        warnings: list[str] = []
        if delay:
            problem = self._delay_problem(delay)
            if problem is not None and self._unsupported_delays == "error":
                return unsendable(DelaysNotSupportedError(problem))
            if problem is not None:
                warnings.append(f"{problem}; sent without the delay")
                delay = 0.0
            elif delay > _LONG_DELAY:
                log.warning(
                    "%s for %s is delayed by %.1f hours; the broker must keep it until then",
                    lane.docket.event_key,
                    lane.subscriber,
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
        docket = msgspec.structs.replace(
            lane.docket,
            created_at=now,
            scheduled_for=more.due,
            correlation_id=more.correlation_id,
            metadata=more.metadata or {},
        )
        try:
            encoded = self._codec.encode(Envelope(id, data, docket, more.before))
        except MessageTooLargeError as error:  # a codec may have a limit of its own
            return unsendable(error)
        if len(encoded.body) > self._largest:
            return unsendable(self._too_large(encoded))
        body, headers = encoded.body, encoded.headers
        message = Message(
            id,
            lane.queue,
            body,
            headers,
            delay,
            priority,
            ordering_key,
            elsewhere=lane.elsewhere,
            name=lane.docket.event_key,
        )
        return Outgoing(message, None, fact, lane=lane, warnings=tuple(warnings))

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


def _id(given: str, prepared: Prepared, lane: SubscriberLane) -> str:
    return given if prepared.keeps_id else derived_id(given, lane.subscriber)


def _target(topology: Topology, subscriber: AnySubscriber) -> Target:
    queue: WorkQueue | None = (
        topology.default_queue if subscriber.queue is None else topology.queue(subscriber.queue)
    )
    chain: list[WorkQueue] = []
    while queue is not None:
        chain.append(queue)
        queue = None if queue.fallback is None else topology.queue(queue.fallback)
    return Target(subscriber, tuple(chain), tuple(topology.full_name(one.name) for one in chain))


async def _is_enabled(subscriber: AnySubscriber) -> bool:
    try:
        answer = subscriber.enabled() if subscriber.enabled is not None else True
        return bool(await answer if inspect.isawaitable(answer) else answer)
    except Exception:
        log.exception("enabled() of %r raised an error; treated as enabled", subscriber.name)
        return True


def _placed(event: EventType, where: str, error: InvalidEventError) -> InvalidEventError:
    """The error with the argument to which it belongs."""
    prefix = f"event {event.key!r}: "
    return type(error)(f"{prefix}{where}: {str(error).removeprefix(prefix)}")


def _merged(event: EventType, universal: Mapping[str, Any] | None, given: object) -> dict[str, Any]:
    """The metadata of a send: overrides that of the event, which overrides universal metadata."""
    merged = {**(universal or {}), **event.metadata}
    if given is None:
        return merged
    if not isinstance(given, Mapping):
        kind = event.metadata_type
        type_ = "" if kind is None else f" or an instance of {kind.__name__}"
        raise InvalidEventError(
            f"event {event.key!r}: metadata must be a mapping{type_}, got {given!r}"
        )
    return {**merged, **cast("Mapping[str, Any]", given)}


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
