"""The application: what it sends, what it consumes, and its life between start and shutdown."""

from __future__ import annotations

import logging
from asyncio import AbstractEventLoop, get_running_loop
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

from matador.codec.base import Codec
from matador.codec.headers import HeaderCodec
from matador.codec.json import JsonCodec
from matador.errors import (
    ConfigurationError,
    InvalidEventError,
    LifecycleError,
    NotStartedError,
    ShuttingDownError,
    WrongLoopError,
)
from matador.events.assembly import Concurrency, check_fit, make_handler
from matador.events.checkpoints import CheckpointStore, NoCheckpointStore
from matador.events.dispatcher import Dispatcher
from matador.events.fanout import PLAIN, FanOut, Order, UnsupportedDelays
from matador.events.handler import MalformedStrategy
from matador.events.hooks import Hooks, HookSet
from matador.events.listener import TransportListener
from matador.model.capabilities import DeliveryMode
from matador.model.event import EventType, event_type_of
from matador.model.message import Once, TopologyNote
from matador.model.options import Seconds, suggestion, whole_number
from matador.model.schema import Schema
from matador.model.sending import SendErrors, SendOptions, SendResult, raise_for_errors
from matador.model.topology import Topology
from matador.policy.retry import RetryPolicy, StandardRetryPolicy
from matador.runtime.activity import Activity, AppState
from matador.runtime.health import Health
from matador.runtime.lifecycle import Lifecycle, Shutdown
from matador.runtime.worker import DeliveryWorker
from matador.transports.base import Transport
from matador.transports.clock import Clock, SystemClock
from matador.transports.urls import transport_from_url

log = logging.getLogger("matador")

DEFAULT_MAX_MESSAGE_SIZE = 1024 * 1024
"""Bytes of the largest message, unless told otherwise: 1 MiB."""

_MISSING: Any = object()


class Application:
    """An application: what it sends, what it consumes, and over which transport.

    All methods belong to the event loop in which it was started, and raise ``WrongLoopError`` in
    another; ``sync()`` gives the same to code without one, ``producer()`` to another loop. An
    application can be started again after a shutdown.

    Args:
        transport: a URL such as ``sqlite:///shop.db``, or a transport object.
        schema: events and their subscribers.
        topology: queues; without one, namespace ``matador`` with one queue ``events``.
        consume_from: queues to consume, by name; empty for an application that only sends.
        codec: how envelopes become bytes; JSON by default, on AMQP with the docket in headers.
        retry: the retry policy.
        delivery: ``at-least-once`` (default) or ``at-most-once``; subscribers may differ.
        shutdown: how long a graceful shutdown may take, as ``Shutdown`` or seconds.
        checkpoints: where resumable subscribers keep their steps.
        hooks: one hook object, or several.
        malformed: what becomes of bytes that are not an envelope.
        max_message_size: bytes; larger messages are refused at send, and not read.
        send_errors: ``raise`` (default): ``send`` raises ``SendFailedError`` if a message could not
            be stored; ``report``: it returns, and ``SendResult.errors`` says so.
        unsupported_delays: what becomes of delays the transport cannot keep.
        clock: where time and ids come from; tests pass their own.

    Example:
        >>> app = Matador("sqlite:///shop.db", schema=schema, consume_from=["events"])
        >>> async with app:
        ...     await app.send(OrderPlaced(order_id="1", amount=5))
    """

    def __init__(
        self,
        transport: str | Transport,
        *,
        schema: Schema,
        topology: Topology | None = None,
        consume_from: Iterable[str] = (),
        codec: Codec | None = None,
        retry: RetryPolicy | None = None,
        delivery: DeliveryMode = "at-least-once",
        shutdown: Shutdown | Seconds | None = None,
        checkpoints: CheckpointStore | None = None,
        hooks: Hooks | Sequence[Hooks] | None = None,
        malformed: MalformedStrategy = "dead-letter",
        max_message_size: int = DEFAULT_MAX_MESSAGE_SIZE,
        unsupported_delays: UnsupportedDelays = "error",
        send_errors: SendErrors = "raise",
        clock: Clock | None = None,
    ) -> None:
        _check_choice("delivery", delivery, ("at-least-once", "at-most-once"))
        _check_choice("malformed", malformed, ("dead-letter", "reject", "ignore"))
        _check_choice("unsupported_delays", unsupported_delays, ("error", "deliver-now"))
        _check_choice("send_errors", send_errors, ("raise", "report"))
        if not isinstance(schema, Schema):  # pyright: ignore[reportUnnecessaryIsInstance] - users
            raise ConfigurationError(f"Matador: schema must be a Schema, got {schema!r}")
        self._url = transport if isinstance(transport, str) else None
        self._transport = transport_from_url(transport) if isinstance(transport, str) else transport
        self._schema = schema
        self._topology = topology or Topology("matador", queues=["events"])
        self._consume_from = self._queue_names(consume_from)
        self._codec: Codec | None = codec
        self._retry: RetryPolicy = retry if retry is not None else StandardRetryPolicy()
        self._delivery: DeliveryMode = delivery
        self._shutdown = Shutdown.of(shutdown)
        self._checkpoints: CheckpointStore = (
            NoCheckpointStore() if checkpoints is None else checkpoints  # one may be empty
        )
        self._hook_objects = _hook_objects(hooks)
        self._malformed: MalformedStrategy = malformed
        self._max_message_size = whole_number(
            max_message_size, "Matador: max_message_size", minimum=1
        )
        self._unsupported_delays: UnsupportedDelays = unsupported_delays
        self._send_errors: SendErrors = send_errors
        self._clock: Clock = clock or SystemClock()
        self._activity = Activity()
        self._lifecycle = Lifecycle(self._activity, self._shutdown)
        self._loop: AbstractEventLoop | None = None
        self._hooks = HookSet()
        self._listener = TransportListener()
        self._transport.observe(self._listener)
        self._fan_out: FanOut | None = None
        self._dispatcher: Dispatcher | None = None
        self._worker: DeliveryWorker | None = None

    def __repr__(self) -> str:
        consuming = ", ".join(self._consume_from) or "nothing"
        return f"<Matador on {self._transport!r}, consuming {consuming}, {self._lifecycle.status}>"

    # -- what it is made of -----------------------------------------------------------------------

    @property
    def schema(self) -> Schema:
        """Events and their subscribers."""
        return self._schema

    @property
    def topology(self) -> Topology:
        """The queues."""
        return self._topology

    @property
    def transport(self) -> Transport:
        """The broker."""
        return self._transport

    @property
    def codec(self) -> Codec:
        """How envelopes become bytes."""
        if self._codec is not None:
            return self._codec
        headers = self._transport.capabilities.docket_in_headers
        return HeaderCodec() if headers else JsonCodec()

    @property
    def checkpoints(self) -> CheckpointStore:
        """Where resumable subscribers keep their steps."""
        return self._checkpoints

    @property
    def clock(self) -> Clock:
        """Where time and ids come from."""
        return self._clock

    @property
    def consume_from(self) -> tuple[str, ...]:
        """The queues it consumes, by name."""
        return self._consume_from

    @property
    def state(self) -> AppState:
        """What is going on: idle or not, how many being processed, how many being sent.

        Example:
            >>> app.state.is_idle
            True
        """
        return AppState(self._lifecycle.status, self._activity.processing, self._activity.enqueuing)

    def health(self) -> Health:
        """How it is doing: its connection, and how each queue is being consumed.

        Example:
            >>> app.health().status
            'healthy'
        """
        queues = () if self._worker is None else self._worker.health
        return Health(self._transport.state, queues)

    @property
    def worker(self) -> DeliveryWorker | None:
        """The receiving half, while the application consumes."""
        return self._worker

    def configure(
        self,
        *,
        transport: Transport | None = None,
        schema: Schema | None = None,
        consume_from: Iterable[str] | None = None,
        checkpoints: CheckpointStore | None = None,
        hooks: Sequence[Hooks] = (),
        send_errors: SendErrors | None = None,
    ) -> None:
        """Change how it will run, before it is started: for tools and tests.

        What is not given stays. ``hooks`` come before those it has.

        Raises:
            LifecycleError: it is running.
            QueueNotFoundError: a queue to consume that the topology does not have.

        Example:
            >>> app.configure(transport=MemoryTransport(), consume_from=["events"])
        """
        if self._lifecycle.status not in ("new", "stopped"):
            raise LifecycleError("a running application cannot be changed; shut it down first")
        if consume_from is not None:
            self._consume_from = self._queue_names(consume_from)
        if transport is not None:
            self._url = None
            self._transport = transport
            self._transport.observe(self._listener)
        if schema is not None:
            self._schema = schema
        if checkpoints is not None:
            self._checkpoints = checkpoints
        if send_errors is not None:
            self._send_errors = send_errors
        self._hook_objects = (*hooks, *self._hook_objects)

    @contextmanager
    def configured(
        self,
        *,
        transport: Transport | None = None,
        consume_from: Iterable[str] | None = None,
        checkpoints: CheckpointStore | None = None,
        hooks: Sequence[Hooks] = (),
        clock: Clock | None = None,
    ) -> Generator[Self]:
        """``configure`` for a while; afterwards it is as it was. It must be stopped by then.

        Example:
            >>> with app.configured(transport=MemoryTransport()):
            ...     async with app: ...
        """
        names = ("_url", "_transport", "_consume_from", "_checkpoints", "_hook_objects", "_clock")
        before = {name: getattr(self, name) for name in names}
        self.configure(
            transport=transport, consume_from=consume_from, checkpoints=checkpoints, hooks=hooks
        )
        if clock is not None:
            self._clock = clock
        try:
            yield self
        finally:
            for name, value in before.items():
                setattr(self, name, value)

    def producer(self) -> Self:
        """The same application, not started, that only sends: for another thread or event loop.

        It has a connection of its own if this one is running.

        Raises:
            LifecycleError: it is running, and a second connection cannot be made.
        """
        transport: str | Transport = self._transport
        if self._lifecycle.status not in ("new", "stopped"):
            if self._url is None or self._transport.capabilities.in_process:
                raise LifecycleError(
                    f"the application is running on {self._transport.name}, which cannot be opened "
                    f"a second time from here; shut it down first, or make it with a URL"
                )
            transport = self._url
        return type(self)(
            transport,
            schema=self._schema,
            topology=self._topology,
            codec=self._codec,
            delivery=self._delivery,
            shutdown=self._shutdown,
            hooks=self._hook_objects,
            max_message_size=self._max_message_size,
            unsupported_delays=self._unsupported_delays,
            send_errors=self._send_errors,
            clock=self._clock,
        )

    def check(self) -> None:
        """Check that schema, topology and transport go together, as a start does first.

        Raises:
            InvalidSchemaError, SubscriberIsStubError, UnsupportedError: see ``start``.
        """
        check_fit(
            self._schema,
            self._topology,
            self._transport,
            consume_from=self._consume_from,
            delivery=self._delivery,
            checkpoints=self._checkpoints,
        )

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
        """Check everything, connect, apply the topology, and consume. A second call does nothing.

        Raises:
            InvalidSchemaError: with every problem of the schema.
            SubscriberIsStubError: a queue to be consumed receives messages for a stub.
            UnsupportedError: the transport does not support a delivery mode that is asked for.
            ConnectionFailedError: the broker cannot be reached.
            WrongLoopError: it was started in another event loop, and not shut down.
        """
        self._check_loop()
        self._loop = get_running_loop()
        await self._lifecycle.start(self._start)

    async def stop_receiving(self) -> bool:
        """Receive no more, but go on sending. False if it was not receiving."""
        self._check_loop()
        if self._worker is None or not self._lifecycle.begin_stop_receiving():
            return False
        await self._worker.stop_receiving()
        self._lifecycle.receiving_stopped()
        return True

    async def resume_receiving(self) -> bool:
        """Receive again after ``stop_receiving``, over the same connection.

        What was received before is finished first. False if receiving was not stopped.
        """
        self._check_loop()
        return await self._lifecycle.resume(self._receive_again)

    async def wait_idle(self, timeout: Seconds | None = None) -> bool:
        """Wait until nothing is being processed or sent. False if ``timeout`` passed first."""
        self._check_loop()
        return await self._activity.wait_idle(timeout)

    async def shutdown(self, timeout: Seconds | None = None) -> None:
        """Stop receiving, let running callbacks and sends finish, stop sending, disconnect.

        After ``timeout`` seconds (default: that of ``shutdown=``, 30) it is forced: callbacks are
        cancelled, their messages given back, and the log says what was abandoned. Idempotent;
        concurrent calls wait for the same shutdown.
        """
        self._check_loop()
        await self._lifecycle.shutdown(self, timeout)

    async def force_shutdown(self) -> None:
        """Shut down now, cutting short what runs. Also hurries a shutdown that is under way."""
        self._check_loop()
        self._lifecycle.hurry()
        await self._lifecycle.shutdown(self, 0)

    # -- sending ----------------------------------------------------------------------------------

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

        ``send(OrderPlaced("1", 5))`` and ``send(OrderPlaced, {"order_id": "1", "amount": 5})`` are
        the same; the second is the way for a ``TypedDict``. An event without subscribers is sent
        to nobody, which is no error.

        Args:
            metadata: for debugging; merged over universal and event metadata.
            correlation_id: travels with every message and what their callbacks send.
            delay: seconds until it may be handled.
            before: the earlier state, of the payload's type, for change events.
            priority: higher first, on queues that are declared with priorities.
            ordering_key: messages with one key are handled in the order sent.

        Raises:
            SendFailedError: a message could not be stored, or may not be; ``error.result`` says
                which, and what was stored. With ``send_errors="report"`` that is returned instead.
            InvalidEventError: the payload does not fit its type; the field is named.
            ConfigurationError: an option that cannot be, such as a delay that never ends.
            NotStartedError, ShuttingDownError: not in a state to send.
            WrongLoopError: it was started in another event loop.

        Unless it is a ``SendFailedError``, nothing was sent.
        """
        fan_out, dispatcher = self._sending()
        load = self._hooks.load_universal_metadata
        self._activity.enqueuing += 1
        try:
            universal = None if load is None else await load()
            if (
                data is _MISSING
                and not universal
                and metadata is None
                and correlation_id is None
                and delay is None
                and before is None
                and priority is None
                and ordering_key is None
                and (route := fan_out.route(payload)) is not None
            ):
                order = fan_out.make_plain(route, payload)
            else:
                options = SendOptions(
                    metadata=metadata,
                    correlation_id=correlation_id,
                    delay=delay,
                    before=before,
                    priority=priority,
                    ordering_key=ordering_key,
                )
                event, value = self._resolve(payload, data)
                order = await fan_out.make(event, value, options, universal)
            result = await dispatcher.send(order)
        finally:
            self._activity.finished_enqueuing()
        if result.errors and self._send_errors == "raise":
            raise_for_errors([result])
        return result

    async def send_many(
        self, events: Iterable[Any | tuple[Any, SendOptions]], /
    ) -> list[SendResult]:
        """Send many events, in order, in few round trips: the fast path. A result for each.

        Items are payloads, or pairs of a payload and its ``SendOptions``. All are checked before
        any is sent. One that fails does not keep the others from being sent.

        Raises:
            SendFailedError: some could not be stored; raised once, when all have their outcome.
                ``error.results`` has the results of all events, in order, ``error.result`` is the
                first with errors. With ``send_errors="report"`` they are returned instead.
            InvalidEventError, ConfigurationError: something does not fit; nothing was sent.
            NotStartedError, ShuttingDownError, WrongLoopError: as of ``send``.

        Example:
            >>> results = await app.send_many(OrderPlaced(str(n), n) for n in range(10_000))
        """
        fan_out, dispatcher = self._sending()
        items = list(events)
        self._activity.enqueuing += len(items)
        try:
            universal = await self._universal()
            orders: list[Order] = []
            for item in items:
                route = None if universal else fan_out.route(item)
                if route is not None:
                    orders.append(fan_out.make_plain(route, item))
                    continue
                payload, options = _item(item)
                event, value = self._resolve(payload, _MISSING)
                orders.append(await fan_out.make(event, value, options, universal))
            results = await dispatcher.send_all(orders)
        finally:
            self._activity.finished_enqueuing(len(items))
        if self._send_errors == "raise":
            raise_for_errors(results)
        return results

    async def publish(
        self,
        events: Sequence[tuple[EventType, Any, SendOptions]],
        *,
        once: Once | None = None,
        send_errors: SendErrors | None = None,
    ) -> list[SendResult]:
        """``send_many`` for pipelines: each event is named, and its data may be plain.

        With ``once`` and ids of their own (``SendOptions.id``), events may be sent again by a
        sender that does not know how far it came: those that arrived are not stored again where
        ``transport.capabilities.once`` says so. ``send_errors`` is the application's unless given.

        Raises:
            SendFailedError, InvalidEventError: as of ``send_many``.

        Example:
            >>> placed = app.schema.event("order.placed")
            >>> options = SendOptions(id="order-1")
            >>> await app.publish([(placed, {"order_id": "1", "amount": 5}, options)],
            ...                   once=Once("import-2026"))
        """
        fan_out, dispatcher = self._sending()
        orders: list[Order] = []
        self._activity.enqueuing += len(events)
        try:
            universal = await self._universal()
            for event, value, options in events:
                orders.append(await fan_out.make(event, value, options, universal))
            results = await dispatcher.send_all(orders, once)
        finally:
            self._activity.finished_enqueuing(len(events))
        if (send_errors or self._send_errors) == "raise":
            raise_for_errors(results)
        return results

    async def check_send(self, payload: Any, data: Any = _MISSING, /) -> EventType:
        """Check that an event could be sent, and send nothing.

        Raises:
            InvalidEventError, EventNotRegisteredError: it could not.
        """
        event, value = self._resolve(payload, data)
        self._schema.event(event)
        self.codec.encode_payload(event, value)
        return event

    async def plan_send(
        self, payload: Any, data: Any = _MISSING, /, *, options: SendOptions | None = None
    ) -> Order:
        """The messages a send would store, and for whom; nothing is sent or need be started.

        Raises:
            InvalidEventError, EventNotRegisteredError: it could not be sent.
        """
        event, value = self._resolve(payload, data)
        load = HookSet(self._hook_objects).load_universal_metadata
        universal = None if load is None else await load()
        return await self._new_fan_out().make(event, value, options or SendOptions(), universal)

    # -- operating --------------------------------------------------------------------------------

    async def apply_topology(self) -> Sequence[TopologyNote]:
        """Create the queues that are missing; what the transport could not honour."""
        self._check_loop()
        notes = await self._transport.apply_topology(self._topology)
        for note in notes:
            log.warning("topology: %s%s", f"{note.queue}: " if note.queue else "", note.text)
        return notes

    # -- inside -----------------------------------------------------------------------------------

    def _sending(self) -> tuple[FanOut, Dispatcher]:
        if not self._lifecycle.may_send:
            raise (NotStartedError if self._lifecycle.status == "new" else ShuttingDownError)
        if self._fan_out is None or self._dispatcher is None:
            raise NotStartedError
        if self._loop is not get_running_loop():
            raise self._wrong_loop()
        return self._fan_out, self._dispatcher

    def _check_loop(self) -> None:
        if self._loop is not None and self._loop is not get_running_loop():
            raise self._wrong_loop()

    def _wrong_loop(self) -> WrongLoopError:
        assert self._loop is not None
        closed = " (which is closed: it was never shut down)" if self._loop.is_closed() else ""
        return WrongLoopError(
            f"the application was started in another event loop{closed} than the one that uses it "
            f"now; use app.producer() here, or app.sync() from any thread. Nothing was done"
        )

    def _resolve(self, payload: Any, data: Any) -> tuple[EventType, Any]:
        if data is not _MISSING:
            if isinstance(payload, str):
                return self._schema.event(payload), data
            return event_type_of(payload), data
        if isinstance(payload, type):
            raise InvalidEventError(
                f"{payload.__name__} is a class: send an instance of it, or its data as the second"
            )
        return event_type_of(type(payload)), payload  # pyright: ignore[reportUnknownArgumentType] - of Any

    async def _universal(self) -> dict[str, Any] | None:
        load = self._hooks.load_universal_metadata
        return None if load is None else await load()

    def _queue_names(self, queues: Iterable[str]) -> tuple[str, ...]:
        given = [queues] if isinstance(queues, str) else list(queues)
        return tuple(dict.fromkeys(self._topology.queue(name).name for name in given))

    def _new_fan_out(self) -> FanOut:
        return FanOut(
            schema=self._schema,
            topology=self._topology,
            codec=self.codec,
            capabilities=self._transport.capabilities,
            clock=self._clock,
            max_message_size=self._max_message_size,
            unsupported_delays=self._unsupported_delays,
        )

    async def _start(self) -> None:
        try:
            await self._open()
        except BaseException:
            self._loop = None
            raise
        if self._hooks.on_start is not None:
            await self._hooks.on_start()

    async def _open(self) -> None:
        self.check()
        self._hooks = HookSet(self._hook_objects)
        self._listener.hooks = self._hooks
        await self._transport.connect()
        try:
            await self.apply_topology()
            await self._checkpoints.open()
            self._fan_out = self._new_fan_out()
            self._dispatcher = Dispatcher(self._transport, self._hooks)
            if self._consume_from:
                self._worker = await self._start_worker()
        except BaseException:
            await self._close()
            raise

    async def _receive_again(self) -> None:
        before = self._worker
        if before is not None:
            await before.finish()
            await before.close()
            self._worker = await self._start_worker()

    async def _start_worker(self) -> DeliveryWorker:
        worker = DeliveryWorker(
            self._transport,
            activity=self._activity,
            clock=self._clock,
            max_deliveries=self._retry.max_deliveries,
        )
        handler = make_handler(
            worker,
            transport=self._transport,
            schema=self._schema,
            topology=self._topology,
            codec=self.codec,
            retry=self._retry,
            hooks=self._hooks,
            checkpoints=self._checkpoints,
            sender=self,
            clock=self._clock,
            delivery=self._delivery,
            malformed=self._malformed,
            max_message_size=self._max_message_size,
        )
        concurrency = Concurrency(self._schema, self._topology, self._hooks)
        queues = [self._topology.full_name(queue) for queue in self._consume_from]
        try:
            await worker.start(
                handler,
                {queue: await concurrency.of(queue) for queue in queues},
                read_ahead=concurrency.may_read_ahead,
                ask_concurrency=concurrency.ask,
            )
        except BaseException:
            await worker.stop_receiving()
            await worker.interrupt(self._shutdown.grace)
            await worker.close()
            raise
        return worker

    # -- called by the life cycle -----------------------------------------------------------------

    async def finish_receiving(self) -> None:
        """Wait for running callbacks and their settlements. Called by the shutdown."""
        if self._worker is not None:
            await self._worker.finish()

    async def interrupt_receiving(self, grace: float) -> list[str]:
        """Cut running callbacks short. Called by the shutdown."""
        return [] if self._worker is None else await self._worker.interrupt(grace)

    async def close(self) -> None:
        """Release everything. Called by the shutdown, last."""
        try:
            await self._close()
            if self._hooks.on_stop is not None:
                await self._hooks.on_stop()
        finally:
            self._loop = None  # it may be started in another one

    async def _close(self) -> None:
        worker, self._worker = self._worker, None
        self._fan_out = None
        self._dispatcher = None
        if worker is not None:
            await worker.close()
        await self._checkpoints.close()
        await self._transport.disconnect()
        await self._listener.drain()


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        allowed = " or ".join(repr(choice) for choice in choices)
        raise ConfigurationError(
            f"Matador: {name} must be {allowed}, got {value!r}{suggestion(str(value), choices)}"
        )


def _hook_objects(hooks: Hooks | Sequence[Hooks] | None) -> tuple[Hooks, ...]:
    if hooks is None:
        return ()
    return tuple(hooks) if isinstance(hooks, Sequence) else (hooks,)


def _item(item: Any) -> tuple[Any, SendOptions]:
    match item:
        case (payload, SendOptions() as options):
            return payload, options
        case _:
            return item, PLAIN
