"""``Subscriber``: receives messages by patterns of their routing keys, and runs handlers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar, cast
from uuid import uuid4

from matador.errors import ConfigurationError, LifecycleError, MatadorError
from matador.messages.connection import Connection
from matador.messages.counters import MessageCounters
from matador.messages.dead_letters import DeadLetterProcessor, processor_of
from matador.messages.handler import MAX_DELIVERIES, HandlingOptions
from matador.messages.health import MessagingHealth
from matador.messages.recording import recording_of
from matador.model.message import ConnectionState, Receipt
from matador.model.options import Seconds, optional_seconds, seconds, whole_number
from matador.model.text import SHORT_TEXT, error_text
from matador.model.topology import (
    Binding,
    DeadLetterQueue,
    DeadLetters,
    Exchange,
    Topology,
    WorkQueue,
    dead_letter_name,
)
from matador.policy.ack import DEAD_LETTER, AckStrategy, DeadLetterOptions
from matador.policy.dedup import Deduplication
from matador.policy.recovery import Recovery
from matador.policy.validation import Validation
from matador.pubsub.context import Received
from matador.pubsub.handler import ErrorHandler, SubscriberHandler
from matador.pubsub.publisher import NAMESPACE, exchanges_of, require_routing
from matador.pubsub.registry import Registered, Registry, read_handler
from matador.runtime.deadline import GRACE, Deadline
from matador.runtime.dedup import Deduplicator
from matador.runtime.process import run as run_process
from matador.runtime.recorder import Recorder
from matador.runtime.settle import Handler
from matador.runtime.worker import DeliveryWorker
from matador.transports.base import Routing, Transport
from matador.transports.clock import Clock, SystemClock

log = logging.getLogger("matador.pubsub")

BROADCAST_EXPIRES = 300.0
"""Seconds after which the queue of a broadcast subscriber is deleted if its process has died."""


Function = TypeVar("Function", bound=Callable[..., Any])


class Subscriber:
    """Receives messages by patterns of routing keys, and runs a handler for each.

    With a ``queue``, all subscribers of that name share its messages, and those that are published
    while none of them runs wait. Without one, every subscriber receives every message from its
    start on; its queue is deleted when it is closed.

    Args:
        url: the URL of the broker, or a transport.
        exchange: the exchange to receive from: the name of a topic exchange, or an ``Exchange``.
        queue: the name of the queue. None: a queue of its own, ``{exchange}.{uuid}``.
        ack: when messages are acknowledged, and what happens to failed ones.
        dead_letters: whether and how failed messages are kept. By default they are, in
            ``{queue}.dlq``; without a ``queue`` they are not.
        validation: what messages must be like.
        deduplication: how duplicates are detected. None: not at all.
        recovery: how a lost connection is restored.
        concurrency: how many messages are handled at once.
        handler_timeout: seconds that a handler may take. None: any time. What runs in a thread
            cannot be ended: it is waited for, and a warning is logged.
        continue_on_error: a message is done even if handlers fail: nothing is retried or kept.
        error_handler: called with each error of a handler, and the context of its message.
        priorities: whether messages with a higher priority come first, if it makes the queue.
        journal: records what is sent and handled, for the data pipeline:
            ``matador.observe.Journal``. None: nothing is recorded.
        clock: where time and ids come from.

    Raises:
        ConfigurationError: an argument is wrong.

    Example:
        >>> sub = Subscriber("amqp://localhost", exchange="events", queue="analytics")
        >>> @sub.on("orders.*")
        ... async def orders(message: dict, ctx: MessageContext) -> None:
        ...     print(ctx.routing_key, message)
        >>> sub.run()  # until SIGTERM; in a program of yours: async with sub
    """

    def __init__(
        self,
        url: str | Transport,
        *,
        exchange: str | Exchange,
        queue: str | None = None,
        ack: AckStrategy | None = None,
        dead_letters: DeadLetterOptions | bool | None = None,
        validation: Validation | None = None,
        deduplication: Deduplication | None = None,
        recovery: Recovery | None = None,
        concurrency: int = 10,
        handler_timeout: Seconds | None = None,
        continue_on_error: bool = False,
        error_handler: ErrorHandler | None = None,
        priorities: bool = False,
        journal: Recorder | None = None,
        clock: Clock | None = None,
    ) -> None:
        (self._exchange,) = exchanges_of((exchange,), "[Subscriber]")
        name = self._exchange.name
        where = self._where = f"[Subscriber:{name if queue is None else queue}]"
        if queue is not None and (not isinstance(queue, str) or not queue):  # pyright: ignore[reportUnnecessaryIsInstance] - users
            raise ConfigurationError(f"{where} queue must be a name, got {queue!r}")
        if error_handler is not None and not callable(error_handler):
            raise ConfigurationError(f"{where} error_handler must be a function")
        self._broadcast = queue is None
        self._queue = f"{name}.{uuid4()}" if queue is None else queue
        keeps = not self._broadcast if dead_letters is None else dead_letters
        self._letters = DeadLetterOptions.of(keeps)
        self._concurrency = whole_number(concurrency, f"{where} concurrency", minimum=1)
        self._options = HandlingOptions(
            ack=ack or AckStrategy(),
            dead_letters=self._letters.enabled,
            validation=validation or Validation(),
            timeout=optional_seconds(handler_timeout, f"{where} handler_timeout", minimum=0.001),
        )
        self._dedup_options = deduplication
        self._continues = continue_on_error
        self._error_handler = error_handler
        self._priorities = priorities
        self._clock = clock or SystemClock()
        self._recording = recording_of(journal, "message", self._where, self._clock)
        self._registry = Registry(self._exchange, where)
        self._processor = None
        if self._letters.enabled and self._letters.handler is not None:
            self._processor = processor_of(
                read_handler(self._letters.handler, f"{where} dead letters")
            )
        self._topology()  # a wrong name is an error at once
        self._connection = Connection(url, where, recovery)
        self._counters = MessageCounters()
        self._dedup: Deduplicator | None = None
        self._workers: list[DeliveryWorker] = []
        self._running = False
        self._paused = False
        self._closing: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"Subscriber(exchange={self._exchange.name!r}, queue={self._queue!r})"

    @property
    def queue(self) -> str:
        """The name of its queue."""
        return self._queue

    @property
    def exchange(self) -> Exchange:
        """The exchange that it receives from."""
        return self._exchange

    @property
    def bindings(self) -> Sequence[tuple[str, Registered]]:
        """Each pattern with each of its handlers."""
        return self._registry.bindings

    @property
    def is_broadcast(self) -> bool:
        """Has it a queue of its own, so that every subscriber receives every message?"""
        return self._broadcast

    # -- handlers ---------------------------------------------------------------------------------

    def on(self, *patterns: str) -> Callable[[Function], Function]:
        """Have a function called for each message whose routing key matches a pattern.

        ``*`` stands for one word, ``#`` for any number of words, also none. The function takes the
        data of the message, in the type that its annotation names, and the ``MessageContext`` if it
        has a parameter for it. It may be async; others run in threads. Several functions may match
        a message: they run side by side. One function is called once a message.

        Raises:
            ConfigurationError: a pattern or the function is not valid.
            LifecycleError: the subscriber is running.

        Example:
            >>> @sub.on("orders.*", "invoices.#")
            ... async def store(order: Order) -> None: ...
        """
        if not patterns or callable(patterns[0]):
            raise ConfigurationError(
                f"{self._where} on() takes patterns: @sub.on('orders.*') above the function"
            )

        def register(function: Function) -> Function:
            if self._running:
                raise LifecycleError(f"{self._where} is running: add handlers before its start")
            for pattern in patterns:
                self._registry.add(pattern, function)
            return function

        return register

    async def unbind(self, *patterns: str) -> None:
        """Stop messages for patterns of an earlier version from reaching the queue.

        The bindings of a named queue stay on the broker when the program no longer has a handler
        for them; messages that only they let in become dead letters. Call this after the start,
        once no process with the earlier version runs. Idempotent.

        Raises:
            ConfigurationError: there is a handler for the pattern.
            NotStartedError: it has not been started.
        """
        transport = cast("Routing", self._connection.transport)
        for pattern in patterns:
            if pattern in self._registry.patterns:
                raise ConfigurationError(f"{self._where} has a handler for {pattern!r}")
            await transport.unbind(self._exchange.name, self._queue, pattern)

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
        """Connect, create what is missing on the broker, and begin to receive.

        Raises:
            ConfigurationError: it has no handlers.
            LifecycleError: it has been started.
            ConnectionFailedError: the broker cannot be reached, or refuses.
            UnsupportedError: the transport has no exchanges.
        """
        if self._running:
            raise LifecycleError(f"{self._where} is running already; close it first")
        if not self._registry.handlers:
            raise ConfigurationError(
                f"{self._where} has no handlers: add one with @sub.on('orders.*') before its start"
            )
        self._running, self._closing = True, None
        try:
            await self._start()
        except BaseException:
            await self.close(force=True)
            raise

    async def _start(self) -> None:
        await self._connection.open()
        transport = self._connection.transport
        require_routing(transport, self._where)
        await self._connection.apply(self._topology())
        if self._dedup_options is not None:
            self._dedup = Deduplicator(self._dedup_options)
            await self._dedup.open()
        worker = self._worker(transport)
        handler = SubscriberHandler(
            worker,
            self._options,
            registry=self._registry,
            exchange=self._exchange.name,
            continue_on_error=self._continues,
            error_handler=self._error_handler,
            counters=self._counters,
            dedup=self._dedup,
            clock=self._clock,
        )
        recorded: Handler = handler
        if self._recording is not None:
            self._recording.start(transport.name)
            recorded = self._recording.handling(handler)
        await worker.start(recorded, {self._queue: self._concurrency})
        if self._processor is not None:
            worker = self._worker(transport)
            processor = DeadLetterProcessor(
                worker,
                self._processor,
                arrived=lambda arrival: Received(arrival, self._exchange.name),
                counters=MessageCounters(),
                clock=self._clock,
            )
            letters = dead_letter_name(self._queue, DEAD_LETTER)
            await worker.start(processor, {letters: self._concurrency})
        if self._paused:
            await self.pause()

    def _worker(self, transport: Transport) -> DeliveryWorker:
        worker = DeliveryWorker(
            transport,
            clock=self._clock,
            max_deliveries=MAX_DELIVERIES,
            on_settle_error=self._settle_failed,
        )
        self._workers.append(worker)
        return worker

    async def close(self, timeout: Seconds = 30.0, *, force: bool = False) -> None:
        """Stop receiving, wait for handlers that run, and disconnect. Idempotent.

        Args:
            timeout: seconds to wait for handlers. Then they are cancelled, and their messages go
                back to the queue; the attempt does not count. That takes a few seconds at most,
                even if the broker does not answer.
            force: do not wait for them at all.
        """
        limit = seconds(timeout, f"{self._where} close: timeout")
        if not self._running:
            return
        if self._closing is None:
            self._closing = asyncio.create_task(self._close(0.0 if force else limit))
        elif force:
            await asyncio.gather(*(worker.interrupt(GRACE) for worker in self._workers))
        await asyncio.shield(self._closing)

    async def stop(self, timeout: Seconds = 30.0, *, force: bool = False) -> None:
        """The same as ``close``."""
        await self.close(timeout, force=force)

    async def _close(self, limit: float) -> None:
        deadline = Deadline(limit + GRACE, self._where)
        try:
            for abandoned in await asyncio.gather(
                *(worker.end(limit, deadline) for worker in self._workers)
            ):
                if abandoned:
                    log.warning("%s was closed; given back: %s", self._where, abandoned)
        finally:
            self._workers.clear()
            self._running = False
            await self._release(deadline)

    async def _release(self, deadline: Deadline) -> None:
        """Let go of the queue of a broadcast, of the store of duplicates, and of the connection."""
        try:
            if self._recording is not None:
                await self._recording.stop()
            if self._dedup is not None:
                dedup, self._dedup = self._dedup, None
                await deadline.do_last(dedup.close(), "close the store of duplicates")
            if self._broadcast:
                await deadline.do_last(self._delete_queue(), "delete its queue")
        except Exception:  # it is closed all the same
            log.exception("%s: could not release everything", self._where)
        finally:
            await self._connection.close(deadline)

    async def _delete_queue(self) -> None:
        try:
            transport = self._connection.transport
            if isinstance(transport, Routing):
                await transport.delete_queue(self._queue)
        except MatadorError as error:  # the broker deletes it by itself
            log.info("%s: its queue is deleted in %g s: %s", self._where, BROADCAST_EXPIRES, error)

    async def shutdown(self) -> None:
        """``close`` with its defaults."""
        await self.close()

    async def force_shutdown(self) -> None:
        """Close at once: handlers that run are cancelled, and their messages are given back."""
        await self.close(force=True)

    def run(self) -> None:
        """Run until SIGTERM or SIGINT, then close. A second signal forces it."""
        run_process(self)

    async def pause(self) -> None:
        """Receive nothing until ``resume``. Handlers that run go on. Others are not affected."""
        self._paused = True
        await asyncio.gather(*(worker.pause() for worker in self._workers))

    async def resume(self) -> None:
        """Receive again."""
        self._paused = False
        for worker in self._workers:
            worker.resume()

    # -- how it is doing --------------------------------------------------------------------------

    @property
    def is_running(self) -> bool:
        """It was started, and not closed."""
        return self._running

    @property
    def counters(self) -> MessageCounters:
        """What has happened so far."""
        return self._counters

    def health(self) -> MessagingHealth:
        """The state of the connection, and how the queue is being consumed."""
        consumers = tuple(one for worker in self._workers for one in worker.health)
        state = ConnectionState("disconnected")
        if self._workers:
            state = self._connection.transport.state
        return MessagingHealth(
            state,
            consumers,
            consumes=True,
            last_message_at=self._counters.last_message_at,
            last_error=self._counters.last_error,
        )

    # -- inside -----------------------------------------------------------------------------------

    def _topology(self) -> Topology:
        letters = self._letters
        key = letters.routing_key
        queue = WorkQueue(
            self._queue,
            exact=True,
            create=True,
            priorities=self._priorities,
            expires=BROADCAST_EXPIRES if self._broadcast else None,
        )
        kept = DeadLetterQueue(
            enabled=letters.enabled,
            max_length=letters.max_length,
            ttl=letters.ttl,
            exchange=letters.exchange,
            routing_key=key,
        )
        return Topology(
            NAMESPACE,
            queues=[queue],
            dead_letters=DeadLetters(unhandled=False, undeliverable=False, dlq=kept),
            exchanges=[self._exchange],
            bindings=[
                Binding(self._exchange.name, self._queue, pattern)
                for pattern in self._registry.patterns
            ],
        )

    def _settle_failed(self, receipt: Receipt, error: MatadorError) -> None:
        self._counters.last_error = f"{type(error).__name__}: {error_text(error, SHORT_TEXT)}"
