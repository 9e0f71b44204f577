"""The sending half of an application: ``send`` and ``send_many``."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from matador.errors import (
    InvalidEventError,
    SendFailedError,
    SendUnconfirmedError,
    may_be_stored,
)
from matador.events.config import AppConfig
from matador.events.fanout import PLAIN, FanOut, Order, Outgoing
from matador.model.event import EventType, event_type_of
from matador.model.message import Once
from matador.model.options import Seconds
from matador.model.sending import (
    SendErrors,
    SendOptions,
    SendResult,
    SentTo,
    raise_for_errors,
)
from matador.model.text import storable_text
from matador.runtime.connection import Connection
from matador.runtime.facts import NotSent
from matador.runtime.hooks import HookSet, Sending
from matador.runtime.outbox import Outbox, Parcel
from matador.runtime.service import Service

log = logging.getLogger("matador.send")

_MISSING: Any = object()
_SAME_TIME = 32  # this number of events is created in a fraction of a millisecond


class SendsEvents(Service):
    """The sending half of ``Matador``, with its state."""

    def __init__(self, config: AppConfig) -> None:
        super().__init__(
            "the application",
            Connection(config.transport, "the application", owned=True),
            hooks=config.hooks,
            clock=config.clock,
            shutdown=config.shutdown,
            connect_timeout=config.connect_timeout,
        )
        self._config = config
        self._transport = config.transport.name
        self._fan_out: FanOut  # set at the start, when the capabilities are known

    async def send(
        self,
        payload: Any,
        data: Any = _MISSING,
        /,
        *,
        metadata: object = None,
        correlation_id: str | None = None,
        delay: Seconds | None = None,
        before: Any = None,
        priority: int | None = None,
        ordering_key: str | None = None,
    ) -> SendResult:
        """Send one event to every enabled subscriber; returns when each message is stored.

        ``send(OrderPlaced("1", 5))`` and ``send(OrderPlaced, {"order_id": "1", "amount": 5})`` do
        the same; use the second form for a ``TypedDict``. Sending an event without subscribers
        does nothing and is not an error.

        Args:
            metadata: for debugging: a mapping, or an instance of the event's type of metadata.
                Overrides universal metadata and the event's metadata.
            correlation_id: is copied to every message, and to the events that callbacks send.
            delay: seconds until the event may be handled.
            before: for change events, the earlier state, of the same type as the payload.
            priority: higher first, on queues declared with priorities.
            ordering_key: messages with the same key are handled in the order they were sent.

        Raises:
            SendFailedError: a message was not stored, or its outcome is unknown; ``error.result``
                says which, and what was stored. ``send_errors="report"`` returns it instead.
            EventNotRegisteredError: the event is not in the schema.
            InvalidEventError: the payload or the metadata does not match its type; names the field.
            ConfigurationError: an option is invalid.
            NotStartedError, ShuttingDownError: the application is not running.
            WrongLoopError: it was started in another event loop.

        Nothing was sent, except in the case of a ``SendFailedError``.
        """
        outbox, hooks, fan_out = self._may_send(), self._hooks, self._fan_out
        options = PLAIN
        if not (
            metadata is None
            and correlation_id is None
            and delay is None
            and before is None
            and priority is None
            and ordering_key is None
        ):
            options = SendOptions(
                metadata=metadata,
                correlation_id=correlation_id,
                delay=delay,
                before=before,
                priority=priority,
                ordering_key=ordering_key,
            )
        prepared = fan_out.known.get(payload.__class__) if options is PLAIN else None
        if prepared is None or data is not _MISSING:
            event, payload = self._resolve(payload, data)
            prepared = fan_out.prepare(event, options)
        if hooks.send_around is not None or hooks.load_universal_metadata is not None:
            (result,) = await self._send_all([(prepared.event, payload, options)])
            return result
        self._activity.enqueuing += 1
        try:
            skipped = 0
            if prepared.conditional:
                enabled = await fan_out.enabled(prepared)
                skipped = len(prepared.lanes) - len(enabled.lanes)
                prepared = enabled
            outgoing = fan_out.make(prepared, payload, options, None, self._clock.now())
            event = prepared.event
            for one in outgoing:
                if one.sendable:
                    one.posted = outbox.post(one)
            for one in outgoing:
                if one.posted is not None and not isinstance(found := await one.posted, int):
                    one.error = found
            result = self._stored(event, skipped, outgoing) or await self._result(
                outbox, Order(event, skipped, outgoing)
            )
        finally:
            self._activity.finished_enqueuing()
        if result.errors and self._config.send_errors == "raise":
            raise_for_errors([result])
        return result

    async def send_many(
        self, events: Iterable[Any | tuple[Any, SendOptions]], /
    ) -> list[SendResult]:
        """Send many events, in order and in few round trips. Returns a result for each.

        Items are payloads, or pairs of a payload and its ``SendOptions``. All are checked before
        any is sent. If one fails, the others are still sent.

        Raises:
            SendFailedError: some messages were not stored; raised after all have been sent.
                ``error.results`` has the results of all events, in order; ``error.result`` is the
                first with errors. ``send_errors="report"`` returns them instead.
            InvalidEventError, ConfigurationError: an event or option is invalid; nothing was sent.
            EventNotRegisteredError, NotStartedError, ShuttingDownError, WrongLoopError: see
                ``send``.

        Example:
            >>> results = await app.send_many(OrderPlaced(str(n), n) for n in range(10_000))
        """
        self._may_send()
        given: list[tuple[EventType, Any, SendOptions]] = []
        fan_out = self._fan_out
        for item in events:
            known = fan_out.known.get(item.__class__)
            if known is None:
                match item:
                    case (payload, SendOptions() as options):
                        given.append((*self._resolve(payload, _MISSING), options))
                        continue
                    case _:
                        event, item = self._resolve(item, _MISSING)
                        known = fan_out.prepare(event, PLAIN)
            given.append((known.event, item, PLAIN))
        return await self._send_all(given)

    async def publish(
        self,
        events: Sequence[tuple[EventType, Any, SendOptions]],
        *,
        once: Once | None = None,
        send_errors: SendErrors | None = None,
    ) -> list[SendResult]:
        """``send_many`` for pipelines, with named events whose data may be plain.

        With ``once`` and explicit ids (``SendOptions.id``), a sender may safely send events again
        after a crash: on transports with ``capabilities.once``, messages that were stored before
        are not stored again. ``send_errors`` overrides the application's option.

        Raises:
            SendFailedError, InvalidEventError: see ``send_many``.

        Example:
            >>> placed = app.schema.event("order.placed")
            >>> options = SendOptions(id="order-1")
            >>> await app.publish([(placed, {"order_id": "1", "amount": 5}, options)],
            ...                   once=Once("import-2026"))
        """
        return await self._send_all(events, once, send_errors)

    async def plan_send(
        self, payload: Any, data: Any = _MISSING, /, *, options: SendOptions | None = None
    ) -> Order:
        """The messages that a send would store. Sends nothing; the application need not run.

        Raises:
            InvalidEventError, EventNotRegisteredError: the event could not be sent.
        """
        event, value = self._resolve(payload, data)
        universal = await HookSet(self._config.hooks).universal_metadata()
        fan_out, options = FanOut(self._config), options or SendOptions()
        prepared = fan_out.prepare(event, options)
        enabled = await fan_out.enabled(prepared)
        skipped = len(prepared.lanes) - len(enabled.lanes)
        now = self._clock.now()
        return Order(event, skipped, fan_out.make(enabled, value, options, universal, now))

    # -- internals --------------------------------------------------------------------------------

    async def _send_all(
        self,
        events: Sequence[tuple[EventType, Any, SendOptions]],
        once: Once | None = None,
        send_errors: SendErrors | None = None,
    ) -> list[SendResult]:
        """Send events together, between the ``on_send_enter`` and ``on_send_exit`` hooks."""
        outbox, around = self._may_send(), self._hooks.send_around
        universal: dict[str, Any] | None = None
        sending = states = None
        self._activity.enqueuing += len(events)
        failure: BaseException | None = None
        try:
            if around is not None:
                keys = tuple(dict.fromkeys(event.key for event, _, _ in events))
                sending = Sending("event", "send", keys, "", len(events), self._transport, {})
                states = around.enter(sending)
                universal = sending.metadata
            if self._hooks.load_universal_metadata is not None:
                universal = {**(await self._hooks.universal_metadata() or {}), **(universal or {})}
            orders = await self._orders(events, universal)
            ready = [one for order in orders for one in order.outgoing if one.sendable]
            outcomes = await outbox.send_many(ready, once)
            for one, outcome in zip(ready, outcomes, strict=True):
                one.error = None if isinstance(outcome, int) else outcome
            results = [
                self._stored(order.event, order.skipped, order.outgoing)
                or await self._result(outbox, order, once)
                for order in orders
            ]
            if (send_errors or self._config.send_errors) == "raise":
                raise_for_errors(results)
            return results
        except BaseException as error:
            failure = error
            raise
        finally:
            if around is not None and states is not None:
                around.exit(sending, states, failure)
            del failure
            self._activity.finished_enqueuing(len(events))

    async def _orders(
        self,
        events: Sequence[tuple[EventType, Any, SendOptions]],
        universal: Mapping[str, Any] | None,
    ) -> list[Order]:
        fan_out, now_of = self._fan_out, self._clock.now
        orders: list[Order] = []
        now: datetime | None = None
        last: EventType | None = None
        last_options, of_last = PLAIN, None
        for number, (event, payload, options) in enumerate(events):
            if of_last is None or event is not last or options is not last_options:
                last, last_options = event, options
                of_last = fan_out.prepare(event, options)
            prepared, skipped = of_last, 0
            if prepared.conditional:
                enabled = await fan_out.enabled(prepared)
                skipped = len(prepared.lanes) - len(enabled.lanes)
                prepared, now = enabled, None  # it may have waited
            if now is None or not number % _SAME_TIME:
                now = now_of()
            outgoing = fan_out.make(prepared, payload, options, universal, now)
            orders.append(Order(event, skipped, outgoing))
        return orders

    async def _result(self, outbox: Outbox, order: Order, once: Once | None = None) -> SendResult:
        """The result of an event, after trying the fallback queues and calling the hooks."""
        sent: list[SentTo] = []
        errors: list[SendFailedError] = []
        for one in order.outgoing:
            lane, queue = one.lane, one.lane.queue
            if one.error is not None and one.sendable and len(lane.target.names) > 1:
                queue = await self._fall_back(outbox, order, one, once)
            if one.error is not None:
                errors.append(await self._failed(order, one, queue))
                continue
            transport = one.transport or self._transport
            sent.append(SentTo(lane.subscriber, queue, one.message.id, transport))
            for text in one.warnings:
                await self._warn(order, one, queue, text)
        return SendResult(order.event.key, len(sent), order.skipped, tuple(errors), tuple(sent))

    async def _fall_back(
        self, outbox: Outbox, order: Order, one: Outgoing, once: Once | None
    ) -> str:
        """Try the fallback queues in order. Returns the name of the last one tried."""
        names = one.lane.target.names
        queue = names[0]
        unknown: list[str] = []
        for next_ in names[1:]:
            if one.error is None:
                break
            failed, error = queue, one.error
            if may_be_stored(error):
                unknown.append(failed)
            queue = next_
            message = msgspec.structs.replace(one.message, queue=next_)
            again = Parcel(message, None, one.fact and one.fact.stored_in(queue=next_))
            (found,) = await outbox.send_many([again], once)
            one.transport = again.transport
            one.error = None if isinstance(found, int) else found
            then = f"{next_} failed too" if one.error is not None else f"sent to {next_} instead"
            text = f"could not send to queue {failed} ({error}); {then}"
            await self._warn(order, one, next_, text, error)
        if one.error is not None and unknown and not may_be_stored(one.error):
            text = f"{one.error}; {', '.join(unknown)} may have stored it"
            one.error = SendUnconfirmedError(text, cause=one.error)
        return queue

    async def _warn(
        self,
        order: Order,
        one: Outgoing,
        queue: str,
        text: str,
        error: BaseException | None = None,
    ) -> None:
        log.warning("%s for %s: %s", order.event.key, one.lane.subscriber, text)
        if self._hooks.on_enqueue_warning is not None and one.fact is not None:
            fact = one.fact.stored_in(queue=queue)
            await self._hooks.on_enqueue_warning(NotSent(fact, error, text))

    async def _failed(self, order: Order, one: Outgoing, queue: str) -> SendFailedError:
        cause, subscriber = one.error, one.lane.subscriber
        was = "may or may not have been" if may_be_stored(cause) else "was not"
        error = SendFailedError(
            f"{order.event.key} {was} sent to {subscriber} ({queue}): {cause}",
            queue=queue,
            subscriber=subscriber,
            cause=cause,
        )
        log.error("%s", storable_text(str(error)))
        if self._hooks.on_enqueue_error is not None and one.fact is not None:
            fact = one.fact.stored_in(queue=queue)
            await self._hooks.on_enqueue_error(NotSent(fact, error))
        return error

    def _stored(
        self, event: EventType, skipped: int, outgoing: Sequence[Outgoing]
    ) -> SendResult | None:
        """The result of an event whose messages were all stored as requested; else None."""
        sent: list[SentTo] = []
        for one in outgoing:
            lane = one.lane
            if one.error is not None or one.warnings:
                return None
            transport = one.transport or self._transport
            sent.append(SentTo(lane.subscriber, lane.queue, one.message.id, transport))
        return SendResult(event.key, len(sent), skipped, (), tuple(sent))

    def _resolve(self, payload: Any, data: Any) -> tuple[EventType, Any]:
        if data is not _MISSING:
            if isinstance(payload, str):
                return self._config.schema.event(payload), data
            return event_type_of(payload), data
        if isinstance(payload, type):
            raise InvalidEventError(
                f"{payload.__name__} is a class: send an instance, or pass the data as the second "
                f"argument"
            )
        return event_type_of(type(payload)), payload  # pyright: ignore[reportUnknownArgumentType] - of Any
