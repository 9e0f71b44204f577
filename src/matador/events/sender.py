"""The sending half of an application: ``send`` and ``send_many``."""

from __future__ import annotations

import logging
from asyncio import AbstractEventLoop, get_running_loop
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, cast

from matador.errors import (
    InvalidEventError,
    NotStartedError,
    ShuttingDownError,
    WrongLoopError,
)
from matador.events.config import AppConfig
from matador.events.dispatcher import as_ours
from matador.events.fanout import PLAIN, FanOut, Order, Outgoing, Plain, Route
from matador.events.hooks import HookSet, Sending
from matador.events.running import Running
from matador.events.short_forms import Surrounding
from matador.model.event import EventType, event_type_of
from matador.model.message import Message, Once
from matador.model.options import Seconds
from matador.model.sending import SendErrors, SendOptions, SendResult, raise_for_errors
from matador.runtime.activity import Activity
from matador.runtime.lifecycle import Lifecycle

log = logging.getLogger("matador.hooks")

_MISSING: Any = object()
_SAME_TIME = 32  # so many events of one call are made in a fraction of a millisecond


class SendsEvents:
    """The state of ``Matador``, and how it sends."""

    def __init__(self, config: AppConfig) -> None:
        self._config = config
        self._transport = config.transport.name
        self._activity = Activity()
        self._lifecycle = Lifecycle(self._activity, config.shutdown)
        self._loop: AbstractEventLoop | None = None
        self._running: Running | None = None

    async def send(
        self,
        payload: Any,
        data: Any = _MISSING,
        /,
        *,
        metadata: Mapping[str, Any] | None = None,
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
            metadata: for debugging; overrides universal metadata and the event's metadata.
            correlation_id: is copied to every message, and to the events that callbacks send.
            delay: seconds until the event may be handled.
            before: for change events, the earlier state, of the same type as the payload.
            priority: higher first, on queues declared with priorities.
            ordering_key: messages with the same key are handled in the order they were sent.

        Raises:
            SendFailedError: a message was not stored, or its outcome is unknown; ``error.result``
                says which, and what was stored. ``send_errors="report"`` returns it instead.
            InvalidEventError: the payload does not match its type; names the field.
            ConfigurationError: an option is invalid.
            NotStartedError, ShuttingDownError: the application is not running.
            WrongLoopError: it was started in another event loop.

        Nothing was sent, except in the case of a ``SendFailedError``.
        """
        running = self._sending()
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
        hooks, fan_out, dispatcher = running.hooks, running.fan_out, running.dispatcher
        trace: str | None = None
        surrounding: Surrounding | None = None
        if hooks.send_wraps:
            return (await self._send_wrapped([(*self._resolve(payload, data), options)]))[0]
        plain = options is PLAIN and data is _MISSING
        route = fan_out.route(payload) if plain else None
        if hooks.send_around is not None:
            found = None
            if route is not None and route.traceable and hooks.short_send is not None:
                try:
                    found = hooks.short_send(route.event.key, self._transport)
                except Exception:
                    log.exception("the hook on_send_enter raised an error, which was ignored")
            if type(found) is str:
                trace = found
            elif found is None:
                event, value = self._resolve(payload, data)
                return await self._send_around(running, event, value, options, route)
            else:
                surrounding = cast("Surrounding", found)
                trace = surrounding.traceparent
        load = hooks.load_universal_metadata
        self._activity.enqueuing += 1
        try:
            universal = None if load is None else await load()
            if route is not None and not universal:
                now, way = self._config.clock.now(), route.only
                made: tuple[Message, Plain] | None = None
                if way is not None and not dispatcher.needs_envelopes:  # as most often
                    made = fan_out.make_message(route, way, payload, trace, now)
                if way is None or made is None:
                    order = fan_out.make_plain(route, payload, trace, now)
                    result = await dispatcher.send(order)
                else:
                    message, sent = made
                    try:
                        failure = await dispatcher.submit(message)
                    except Exception as error:  # noqa: BLE001 - see as_ours
                        failure = as_ours(error)
                    if failure is None:
                        result = dispatcher.stored(way, sent)
                    else:
                        failed = Outgoing(way.target, sent, message, failure)
                        result = await dispatcher.report(Order(route.event, 0, [failed]))
            else:
                event, value = self._resolve(payload, data)
                order = await fan_out.make(event, value, options, universal)
                result = await dispatcher.send(order)
        except BaseException as error:
            if surrounding is not None:
                _finish(surrounding, error)
            raise
        finally:
            self._activity.finished_enqueuing()
        if surrounding is not None:
            _finish(surrounding, None)
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
            NotStartedError, ShuttingDownError, WrongLoopError: see ``send``.

        Example:
            >>> results = await app.send_many(OrderPlaced(str(n), n) for n in range(10_000))
        """
        running = self._sending()
        items = list(events)
        trace: str | None = None
        if not running.hooks.send_wraps and running.hooks.send_around is not None:
            routes = map(running.fan_out.route, items)
            if all(route is not None and route.traceable for route in routes):
                trace = _short_batch(running.hooks, self._transport)
        if running.hooks.send_wraps or (running.hooks.send_around is not None and trace is None):
            given = [_item(item) for item in items]
            return await self._send_wrapped(
                [(*self._resolve(payload, _MISSING), options) for payload, options in given]
            )
        fan_out = running.fan_out
        self._activity.enqueuing += len(items)
        try:
            universal = await _universal(running)
            orders: list[Order] = []
            now: datetime | None = None
            for number, item in enumerate(items):
                route = None if universal else fan_out.route(item)
                if route is not None:
                    if now is None or not number % _SAME_TIME:
                        now = self._config.clock.now()
                    orders.append(fan_out.make_plain(route, item, trace, now))
                    continue
                payload, options = _item(item)
                event, value = self._resolve(payload, _MISSING)
                now = self._config.clock.now()
                order = running.prepared.make(event, value, options, universal, now)
                if order is None:
                    order = await fan_out.make(event, value, options, universal)
                    now = None  # it may have waited
                orders.append(order)
            results = await running.dispatcher.send_all(orders)
        finally:
            self._activity.finished_enqueuing(len(items))
        if self._config.send_errors == "raise":
            raise_for_errors(results)
        return results

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
        return await self._send_wrapped(events, once, send_errors)

    async def _send_around(
        self,
        running: Running,
        event: EventType,
        value: Any,
        options: SendOptions,
        route: Route | None,
    ) -> SendResult:
        """Send one event between ``on_send_enter`` and ``on_send_exit``."""
        around = running.hooks.send_around
        assert around is not None
        sending = Sending((event.key,), 1, self._transport, {})
        self._activity.enqueuing += 1
        states = around.enter(sending)
        failure: BaseException | None = None
        try:
            universal = sending.metadata
            if running.hooks.load_universal_metadata is not None:
                universal = {**(await _universal(running) or {}), **universal}
            trace = None if route is None else running.fan_out.can_carry(route, universal)
            if route is not None and (trace is not None or not universal):
                order = running.fan_out.make_plain(route, value, trace)
            else:
                order = await running.fan_out.make(event, value, options, universal)
            result = await running.dispatcher.send(order)
        except BaseException as error:
            failure = error
            raise
        finally:
            around.exit(sending, states, failure)
            del failure
            self._activity.finished_enqueuing()
        if result.errors and self._config.send_errors == "raise":
            raise_for_errors([result])
        return result

    async def _send_wrapped(
        self,
        events: Sequence[tuple[EventType, Any, SendOptions]],
        once: Once | None = None,
        send_errors: SendErrors | None = None,
    ) -> list[SendResult]:
        """Send inside every ``on_send_wrap``."""
        running = self._sending()
        results: list[SendResult] = []

        async def proceed() -> None:
            universal = {**(await _universal(running) or {}), **sending.metadata}
            orders = await self._orders(running, events, universal)
            results.extend(await running.dispatcher.send_all(orders, once))

        keys = tuple(dict.fromkeys(event.key for event, _, _ in events))
        sending = Sending(keys, len(events), self._transport, {})
        self._activity.enqueuing += len(events)
        try:
            around = running.hooks.send_around
            await running.hooks.wrapped_send(
                sending,
                proceed if around is None else lambda: around.between(sending, proceed()),
            )
        finally:
            self._activity.finished_enqueuing(len(events))
        if (send_errors or self._config.send_errors) == "raise":
            raise_for_errors(results)
        return results

    async def _orders(
        self,
        running: Running,
        events: Sequence[tuple[EventType, Any, SendOptions]],
        universal: Mapping[str, Any],
    ) -> list[Order]:
        """The messages of many events; those of a kind are prepared."""
        make, now_of = running.prepared.make, self._config.clock.now
        orders: list[Order] = []
        now: datetime | None = None
        for number, (event, payload, options) in enumerate(events):
            if now is None or not number % _SAME_TIME:
                now = now_of()
            order = make(event, payload, options, universal, now)
            if order is None:
                order = await running.fan_out.make(event, payload, options, universal)
                now = None  # it may have waited
            orders.append(order)
        return orders

    async def plan_send(
        self, payload: Any, data: Any = _MISSING, /, *, options: SendOptions | None = None
    ) -> Order:
        """The messages that a send would store. Sends nothing; the application need not run.

        Raises:
            InvalidEventError, EventNotRegisteredError: the event could not be sent.
        """
        event, value = self._resolve(payload, data)
        load = HookSet(self._config.hooks).load_universal_metadata
        universal = None if load is None else await load()
        fan_out = FanOut(self._config)
        return await fan_out.make(event, value, options or SendOptions(), universal)

    # -- internals --------------------------------------------------------------------------------

    def _sending(self) -> Running:
        if not self._lifecycle.may_send:
            raise (NotStartedError if self._lifecycle.status == "new" else ShuttingDownError)
        running = self._running
        if running is None or not running.is_open:
            raise NotStartedError
        if self._loop is not get_running_loop():
            raise self._wrong_loop()
        return running

    def _check_loop(self) -> None:
        if self._loop is not None and self._loop is not get_running_loop():
            raise self._wrong_loop()

    def _wrong_loop(self) -> WrongLoopError:
        assert self._loop is not None
        closed = ", which was closed without a shutdown" if self._loop.is_closed() else ""
        return WrongLoopError(
            f"the application was started in another event loop{closed}; use app.producer() here, "
            f"or app.sync() from any thread. Nothing was done"
        )

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


def _short_batch(hooks: HookSet, transport: str) -> str | None:
    """The ``traceparent`` of a batch around which nothing is to be done; None if something is."""
    try:
        return (
            None
            if hooks.short_send is None
            else cast("str | None", hooks.short_send(None, transport))
        )
    except Exception:
        log.exception("the hook on_send_enter raised an error, which was ignored")
        return None


def _finish(surrounding: Surrounding, error: BaseException | None) -> None:
    try:
        surrounding.finish(error)
    except Exception:
        log.exception("the hook on_send_exit raised an error, which was ignored")


async def _universal(running: Running) -> dict[str, Any] | None:
    load = running.hooks.load_universal_metadata
    return None if load is None else await load()


def _item(item: Any) -> tuple[Any, SendOptions]:
    match item:
        case (payload, SendOptions() as options):
            return payload, options
        case _:
            return item, PLAIN
