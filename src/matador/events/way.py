"""Events as a way in: how an envelope is read, called, retried and described."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import msgspec

from matador.codec.base import PayloadDecoder, RawEnvelope, preparing
from matador.codec.json_text import duplicate_key, find_duplicate_key
from matador.errors import (
    AmbiguousPayloadError,
    DecodeError,
    EventNotRegisteredError,
    InvalidEventError,
    MatadorError,
    MessageTooLargeError,
    SubscriberIsStubError,
    SubscriberNotRegisteredError,
)
from matador.events.config import AppConfig
from matador.events.context import EventContext, SyncContext
from matador.model.envelope import MOST_ATTEMPTS, ROOM_FOR_ERRORS, Envelope
from matador.model.event import EventType
from matador.model.message import Delivery, Message
from matador.model.subscriber import Callback, Subscriber, SubscriberStub
from matador.model.text import SHORT_TEXT, error_text, storable_text
from matador.model.topology import DeadLetterKind
from matador.policy.retry import RetryContext, RetryLater, RetryPolicy
from matador.runtime.dead_letters import CHANGED, Contents, Edit, Fresh, without_reason
from matador.runtime.dedup import Deduplicator
from matador.runtime.error_headers import error_headers
from matador.runtime.facts import Received
from matador.runtime.way import (
    Asked,
    Call,
    Failure,
    Refusal,
    RefusalKind,
    Route,
    Scope,
    WayIn,
    Work,
)


class EventRoute(Route, frozen=True, kw_only=True):
    """A subscriber of an event, and how it reads the payload."""

    event: EventType
    subscriber: Subscriber[Any]
    decode: PayloadDecoder
    callback: Callback
    is_plain: bool
    is_payload: bool


class EventWork(Work, gc=False):
    """An envelope for a subscriber. ``raw`` has its payload as it arrived; ``opened``, decoded."""

    if TYPE_CHECKING:
        route: EventRoute  # pyright: ignore[reportIncompatibleVariableOverride] - or _UNKNOWN

    raw: RawEnvelope = None  # pyright: ignore[reportAssignmentType] - always given
    opened: Envelope[Any] | None = None


class EventWay(WayIn):
    """Events of one application."""

    def __init__(self, config: AppConfig, app: Any) -> None:
        self._config = config
        self._app = app
        self._schema = config.schema
        self._codec = config.used_codec
        self._decode = self._codec.decode
        self._policy = config.used_retry
        self._clock = config.clock
        self._transport = config.transport.name
        self._max_size = config.max_message_size
        self._topology = config.topology
        self.malformed = config.malformed
        self.open = self._decode_payload
        timeouts = {
            config.topology.full_name(queue.name): queue.consumer_timeout
            for queue in config.topology.queues
            if queue.consumer_timeout is not None
        }
        routes = {
            (key, one.name): self._route(event, one)
            for event, subscribers in config.schema
            for key in event.keys
            for one in subscribers
            if isinstance(one, Subscriber)
        }
        self._routes = routes
        self._limited = {
            queue: {
                names: msgspec.structs.replace(route, timeout=route.subscriber.timeout or limit)
                for names, route in routes.items()
            }
            for queue, limit in timeouts.items()
        }

    def _route(self, event: EventType, one: Subscriber[Any]) -> EventRoute:
        prepared = preparing(self._codec)
        return EventRoute(
            handler=one.name,
            idempotent=one.idempotent,
            timeout=one.timeout or self._config.timeout,
            at_most_once=(one.delivery or self._config.delivery) == "at-most-once",
            is_async=one.is_async,
            takes_context=one.takes_context,
            event=event,
            subscriber=one,
            callback=one.callback,
            is_plain=one.is_plain,
            is_payload=one.is_bare,
            decode=partial(self._codec.decode_payload, event)
            if prepared is None
            else prepared.payload_decoder(event),
        )

    # -- read -------------------------------------------------------------------------------------

    def read(self, delivery: Delivery) -> Work | Refusal:
        body, receipt = delivery.body, delivery.receipt
        try:
            if delivery.problem is not None or len(body) > self._max_size:
                raw = self._decode_odd(delivery)
            else:
                raw = self._decode(body, delivery.headers, self._clock)
        except DecodeError as error:
            return Refusal(delivery, error, "malformed")
        if receipt.attempts_elsewhere:
            attempts = min(raw.docket.attempts + receipt.attempts_elsewhere, MOST_ATTEMPTS)
            raw = _noted(raw, attempts=attempts)
        docket, routes = raw.docket, self._routes
        if self._limited:
            routes = self._limited.get(receipt.queue, routes)
        route = routes.get((docket.event_key, docket.target_subscriber))
        if route is None:
            work = EventWork(delivery, _UNKNOWN, raw.id, docket.attempts, None, raw)
            return Refusal(delivery, self._unknown(raw), "unhandled", work)
        if docket.event_description is None:  # the headers of RabbitMQ do not carry it
            # Just decoded, so nothing else refers to it; a copy would cost a microsecond.
            msgspec.structs.force_setattr(docket, "event_description", route.event.description)
        return EventWork(delivery, route, raw.id, docket.attempts, None, raw)

    def _decode_odd(self, delivery: Delivery) -> RawEnvelope:
        """Decode a message that exceeds the limit for sending, because retries add their errors."""
        if delivery.problem is not None:
            raise DecodeError(delivery.problem)
        size, limit = len(delivery.body), self._max_size
        if size <= limit + ROOM_FOR_ERRORS:
            raw = self._decode(delivery.body, delivery.headers, self._clock)
            if raw.docket.last_error is not None:
                return raw
        raise DecodeError(str(MessageTooLargeError(size, limit)))

    def _unknown(self, raw: RawEnvelope) -> MatadorError:
        key, name = raw.docket.event_key, raw.docket.target_subscriber
        if key not in self._schema:
            return EventNotRegisteredError(f"event {key!r} is not in the schema")
        if isinstance(self._schema.find_subscriber(key, name), SubscriberStub):
            return SubscriberIsStubError(f"subscriber {name!r} of {key!r} is only a stub here")
        return SubscriberNotRegisteredError(f"event {key!r} has no subscriber {name!r}")

    def _decode_payload(self, work: EventWork) -> Refusal | None:
        raw, decode = work.raw, work.route.decode
        try:
            before = None if raw.before is None else decode(raw.before)
            work.opened = Envelope(raw.id, decode(raw.data), raw.docket, before)
        except AmbiguousPayloadError as error:
            return Refusal(work.delivery, DecodeError(str(error)), "malformed")
        except InvalidEventError as error:
            return Refusal(work.delivery, error, "undeliverable", work)
        return None

    # -- call -------------------------------------------------------------------------------------

    def call(self, work: EventWork, scope: Scope | None) -> Call:
        route, envelope = work.route, work.opened
        if route.is_plain:
            return route.callback(envelope)
        assert envelope is not None
        if route.is_payload:
            return route.callback(envelope.data)
        signature, context = route.subscriber.signature, None
        if route.takes_context:
            kind = EventContext if route.is_async else SyncContext
            context = kind(envelope, work.delivery, self._app, scope)
        positional: list[Any] = []
        named: dict[str, Any] = {}
        for one in signature.parameters:
            value = envelope if one.kind is Envelope else context
            value = envelope.data if one.kind is None else value
            if one.keyword is None:
                positional.append(value)
            else:
                named[one.keyword] = value
        bound = partial(route.callback, *positional, **named)
        return _awaiting(bound) if route.is_async else bound

    # -- decide -----------------------------------------------------------------------------------

    def policy(self, work: EventWork) -> RetryPolicy:
        return (
            self._policy if work.route is _UNKNOWN else work.route.subscriber.retry or self._policy
        )

    def retry_context(
        self, work: EventWork, error: Exception, asked: Asked, random: float
    ) -> RetryContext:
        return replace(
            super().retry_context(work, error, asked, random),
            envelope=work.opened or work.raw,
            subscriber=getattr(work.route, "subscriber", None),
        )

    def dead_letters(self, queue: str, kind: RefusalKind) -> DeadLetterKind | None:
        found: DeadLetterKind = "unhandled" if kind == "unhandled" else "undeliverable"
        topology = self._topology
        letters = topology.dead_letters
        if topology.has_queue(queue):
            letters = topology.letters_of(topology.queue(queue))
        return found if letters[found].enabled else None

    def successor(self, work: EventWork, failure: Failure) -> Message:
        raw, receipt, decision = work.raw, work.delivery.receipt, failure.decision
        docket, longest = raw.docket, failure.longest_text
        text = error_text(failure.error, longest)
        first = text if docket.first_error is None else docket.first_error
        changes: dict[str, Any] = {
            "first_error": storable_text(first, longest),
            "last_error": text,
        }
        delay = 0.0
        if isinstance(decision, RetryLater):
            delay = decision.delay
            changes["attempts"] = docket.attempts + 1
            changes["scheduled_for"] = self._clock.now() + timedelta(seconds=delay)
        else:
            changes["original_queue"] = docket.original_queue or receipt.queue
        docket = msgspec.structs.replace(docket, **changes)
        encoded = self._codec.encode(msgspec.structs.replace(raw, docket=docket))
        headers = encoded.headers
        if failure.ran and not failure.bare and not isinstance(decision, RetryLater):
            headers = {**headers, **error_headers(failure.error)}
        return Message(
            raw.id,
            receipt.queue,
            encoded.body,
            headers,
            delay,
            receipt.priority,
            receipt.ordering_key,
            None if failure.bare else work.delivery.properties,
            name=docket.event_key,
        )

    # -- describe ---------------------------------------------------------------------------------

    def fact(self, work: EventWork) -> Received:
        raw = work.raw
        docket = raw.docket
        due, known = docket.scheduled_for, work.route is not _UNKNOWN
        return Received(
            "event",
            raw.id,
            docket.event_key,
            docket.target_subscriber,
            self._transport,
            work.delivery,
            docket.attempts,
            docket.created_at.timestamp(),
            None if due is None else due.timestamp(),
            docket.correlation_id,
            docket.metadata,
            docket.importance,
            known,
            work.route.subscriber if known else None,
            work.opened or raw,
        )

    def unread(self, delivery: Delivery) -> Received:
        now = self._clock.time()
        return Received(
            "event", delivery.id, "", "", self._transport, delivery, 1, now, known=False
        )

    def label(self, work: EventWork) -> str:
        docket = work.raw.docket
        name, key = docket.target_subscriber, docket.event_key
        return f"{storable_text(name, SHORT_TEXT)} of {storable_text(key, SHORT_TEXT)}"

    def duplicate_key(self, work: EventWork, dedup: Deduplicator) -> str:
        key = dedup.key_of(work.id, work.delivery.body, lambda: self.keyed(work))
        return f"{work.delivery.receipt.queue}:{work.route.handler}:{key}"


_UNKNOWN = cast("EventRoute", Route(handler=""))
"""The route of an event that has no subscriber here."""


async def _awaiting(bound: Any) -> Any:
    """Call a function that is not an ``async def`` itself, but returns an awaitable."""
    return await bound()


class EventReader:
    """Reads and renews the stored messages of an application. See ``StoredReader``."""

    def __init__(self, config: AppConfig) -> None:
        self._codec = config.used_codec
        self._schema = config.schema
        self._clock = config.clock

    def read(self, delivery: Delivery, queue: str) -> Contents:
        try:
            raw = self._decoded(delivery)
        except DecodeError as error:
            return Contents(id=delivery.id, problem=str(error))
        docket = raw.docket
        return Contents(
            id=raw.id,
            name=docket.event_key,
            receiver=docket.target_subscriber,
            attempts=docket.attempts,
            first_error=docket.first_error,
            last_error=docket.last_error,
            correlation_id=docket.correlation_id,
            metadata=docket.metadata,
            created_at=docket.created_at,
            original_queue=docket.original_queue,
            plain=lambda: self.plain(raw.data),
            envelope=raw,
        )

    def plain(self, raw: msgspec.Raw | None) -> Any:
        """A payload as plain data, whatever the type of its event; None if it is no object."""
        try:
            return None if raw is None else self._codec.decode_payload(_ANY_EVENT, raw)
        except InvalidEventError:
            return None

    def renewed(self, delivery: Delivery, queue: str, edit: Edit | None = None) -> Fresh:
        try:
            raw = self._decoded(delivery)
        except DecodeError:
            if edit is not None:
                raise
            return Fresh(delivery.body, without_reason(delivery.headers), delivery.properties)
        if edit is not None:
            event = self._schema.find(raw.docket.event_key) or _ANY_EVENT
            if edit.expected is not None and self.plain(raw.data) != edit.expected:
                raise InvalidEventError(CHANGED)
            raw = msgspec.structs.replace(raw, data=self._codec.encode_payload(event, edit.data))
        docket = msgspec.structs.replace(
            raw.docket, attempts=1, first_error=None, last_error=None, scheduled_for=None
        )
        encoded = self._codec.encode(msgspec.structs.replace(raw, docket=docket))
        return Fresh(encoded.body, encoded.headers, delivery.properties)

    def checkpoint_id(self, delivery: Delivery, id: str, queue: str) -> str:
        return id

    def _decoded(self, delivery: Delivery) -> RawEnvelope:
        body = delivery.body
        raw = self._codec.decode(body, delivery.headers, self._clock)
        if body[:1] in b"{ \t\r\n" and (twice := find_duplicate_key(body)) is not None:
            raise DecodeError(duplicate_key(twice))
        return raw


_ANY_EVENT = EventType("any", "Any object at all.", dict)


def _noted(raw: RawEnvelope, **changes: Any) -> RawEnvelope:
    return msgspec.structs.replace(raw, docket=msgspec.structs.replace(raw.docket, **changes))
