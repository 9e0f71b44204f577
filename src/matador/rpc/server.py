"""``RpcServer``: handles the commands that clients call."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from hashlib import sha256
from types import TracebackType
from typing import Any, Self, TypeVar

from matador.errors import ConfigurationError, LifecycleError
from matador.messages.connection import Connection
from matador.messages.counters import MessageCounters
from matador.messages.dead_letters import DeadLetterProcessor, processor_of
from matador.messages.functions import MessageFunction, read_function
from matador.messages.handler import MAX_DELIVERIES, HandlingOptions
from matador.messages.health import MessagingHealth
from matador.messages.outbox import Outbox
from matador.messages.recording import recording_of
from matador.model.message import ConnectionState
from matador.model.options import Seconds, optional_seconds, seconds, whole_number
from matador.model.topology import (
    DeadLetterQueue,
    DeadLetters,
    Topology,
    WorkQueue,
    dead_letter_name,
)
from matador.policy.ack import DEAD_LETTER, AckStrategy, DeadLetterOptions
from matador.policy.dedup import Deduplication
from matador.policy.recovery import Recovery
from matador.policy.validation import Validation
from matador.rpc.context import RpcContext
from matador.rpc.handler import RpcHandler, command_of
from matador.rpc.wire import command_name
from matador.runtime.deadline import GRACE, Deadline
from matador.runtime.dedup import Deduplicator
from matador.runtime.process import run as run_process
from matador.runtime.recorder import Recorder
from matador.runtime.settle import Handler
from matador.runtime.worker import DeliveryWorker
from matador.transports.base import Transport
from matador.transports.clock import Clock, SystemClock

log = logging.getLogger("matador.rpc")

F = TypeVar("F", bound=Callable[..., Any])

_NO_CONNECTION = ConnectionState("disconnected")
_NOT_IN_A_NAMESPACE = re.compile(r"[^A-Za-z0-9_-]")


class RpcServer:
    """Handles commands that arrive in a queue. Several servers may share one.

    A call that fails is answered with an error at once, and not tried again. Without a caller that
    waits (``notify``), ``ack`` decides. Requests whose caller has stopped waiting are not run.

    Args:
        url: the URL of the broker, or a transport. A transport that is given is connected, and
            never disconnected.
        queue: the name of the queue, as it is on the broker.
        concurrency: how many requests are handled at once.
        ack: when requests are acknowledged, and how failed notifications are tried again.
        dead_letters: whether requests that failed are kept in ``{queue}.dlq``. None: they are not,
            and the queue is declared plainly. Existing queues keep their arguments.
        validation: what requests must be like.
        deduplication: runs requests with the same key once, and sends its reply to all of them.
        handler_timeout: seconds that a handler may take; None: any time.
        slow_call: seconds after which a call is logged as slow; None: never.
        hide_errors: callers are not told what unexpected exceptions say, only their names. Raise a
            ``RemoteError`` to tell them something.
        create: False: the queue must be there, on RabbitMQ; it is used as it is.
        journal: records what is sent and handled, for the data pipeline:
            ``matador.observe.Journal``. None: nothing is recorded.
        recovery: what happens to replies while there is no connection. By default they wait.

    Raises:
        ConfigurationError: an argument is wrong.

    Example:
        >>> server = RpcServer("amqp://localhost", queue="maths", concurrency=100)
        >>> @server.handler("ADD")
        ... async def add(request: Add, ctx: RpcContext) -> int:
        ...     return request.a + request.b
        >>> server.run()  # until SIGTERM; in a program of yours: async with server
    """

    def __init__(
        self,
        url: str | Transport,
        *,
        queue: str,
        concurrency: int = 100,
        ack: AckStrategy | None = None,
        dead_letters: DeadLetterOptions | bool | None = None,
        validation: Validation | None = None,
        deduplication: Deduplication | None = None,
        handler_timeout: Seconds | None = None,
        slow_call: Seconds | None = None,
        hide_errors: bool = False,
        create: bool = True,
        recovery: Recovery | None = None,
        journal: Recorder | None = None,
        clock: Clock | None = None,
    ) -> None:
        if not isinstance(queue, str) or not queue.strip():  # pyright: ignore[reportUnnecessaryIsInstance] - users
            raise ConfigurationError(f"RpcServer: queue must be a non-empty text, got {queue!r}")
        where = self._where = f"RpcServer({queue!r})"
        self._queue = queue
        self._concurrency = whole_number(concurrency, f"{where}: concurrency", minimum=1)
        self._letters = DeadLetterOptions.of(dead_letters)
        validation = validation or Validation()
        if validation.null is None:
            validation = replace(validation, null=True)
        self._options = HandlingOptions(
            ack=ack or AckStrategy(),
            dead_letters=self._letters.enabled,
            validation=validation,
            timeout=optional_seconds(handler_timeout, f"{where}: handler_timeout", minimum=0.001),
        )
        self._topology = _topology(queue, self._concurrency, self._letters, create)
        self._processor: MessageFunction | None = None
        if self._letters.enabled and self._letters.handler is not None:
            read = _read(self._letters.handler, f"{where}: handler of dead letters")
            self._processor = processor_of(read)
        self._deduplication = deduplication
        self._slow_call = optional_seconds(slow_call, f"{where}: slow_call")
        self._hide_errors = hide_errors
        self._recovery = recovery
        self._clock = clock or SystemClock()
        self._recording = recording_of(journal, "rpc", self._where, self._clock)
        self._connection = Connection(url, where, recovery)
        self._commands: dict[str, MessageFunction] = {}
        self._counters = MessageCounters()
        self._changing = asyncio.Lock()
        self._worker: DeliveryWorker | None = None
        self._letter_worker: DeliveryWorker | None = None
        self._outbox: Outbox | None = None
        self._dedup: Deduplicator | None = None

    def __repr__(self) -> str:
        return f"{self._where[:-1]}, {', '.join(self.commands) or 'no commands'})"

    # -- commands ---------------------------------------------------------------------------------

    def handler(self, command: str) -> Callable[[F], F]:
        """Register a function for a command; see ``register``.

        Example:
            >>> @server.handler("ADD")
            ... async def add(request: Add) -> int:
            ...     return request.a + request.b
        """

        def registered(function: F) -> F:
            self.register(command, function)
            return function

        return registered

    def register(self, command: str, function: Callable[..., Any]) -> None:
        """Handle a command with a function, sync or async, now or while the server runs.

        Its parameters are filled by their types: an ``RpcContext`` gets the context, the other one
        gets the data of the request in its type. What it returns is the reply. A function that was
        registered for the command before is replaced.

        Raises:
            ConfigurationError: the command is empty, or the function cannot be called so.
        """
        name = command_name(command, self._where)
        read = _read(function, f"{self._where}: {name}")
        if name in self._commands:
            log.info("%s: the handler of %s is replaced", self._where, name)
        self._commands[name] = read

    def unregister(self, command: str) -> bool:
        """Handle a command no longer; whether it was handled."""
        return self._commands.pop(command_name(command, self._where), None) is not None

    @property
    def commands(self) -> tuple[str, ...]:
        """The commands that it handles."""
        return tuple(sorted(self._commands))

    @property
    def functions(self) -> Mapping[str, MessageFunction]:
        """The functions that handle them, by command."""
        return dict(sorted(self._commands.items()))

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
        await self.stop()

    async def start(self) -> None:
        """Connect, create the queue, and begin to handle requests. Idempotent.

        Raises:
            LifecycleError: there is no handler.
            ConnectionFailedError: the broker cannot be reached, or refuses.
            QueueNotFoundError: the queue is not there, and ``create`` is False.
        """
        async with self._changing:
            if self._worker is not None:
                return
            if not self._commands:
                raise LifecycleError(
                    f"{self._where} has no handlers; register one with @server.handler(…) first"
                )
            await self._connection.open()
            try:
                await self._start(self._connection.transport)
            except BaseException:
                await self._stop(0.0)
                raise

    async def _start(self, transport: Transport) -> None:
        await self._connection.apply(self._topology)
        self._outbox = Outbox(transport, recovery=self._recovery, clock=self._clock)
        if self._deduplication is not None:
            self._dedup = Deduplicator(self._deduplication)
            await self._dedup.open()
        self._worker = worker = DeliveryWorker(
            transport, clock=self._clock, max_deliveries=MAX_DELIVERIES
        )
        handler = RpcHandler(
            worker,
            self._options,
            commands=self._commands,
            outbox=self._outbox,
            hide_errors=self._hide_errors,
            slow_call=self._slow_call,
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
            await self._process_letters(transport, self._processor)

    async def _process_letters(self, transport: Transport, function: MessageFunction) -> None:
        self._letter_worker = worker = DeliveryWorker(transport, clock=self._clock)
        processor = DeadLetterProcessor(
            worker,
            function,
            arrived=lambda arrival: (arrival, None, command_of(arrival)),
            counters=MessageCounters(),
            clock=self._clock,
        )
        letters = dead_letter_name(self._queue, DEAD_LETTER)
        await worker.start(processor, {letters: self._concurrency})

    async def stop(self, timeout: Seconds = 30.0, *, force: bool = False) -> None:
        """Receive no more requests, wait for those that run, and disconnect. Idempotent.

        Args:
            timeout: seconds to wait. Then handlers are cancelled, and their requests are given
                back: another server runs them. That takes a few seconds at most, even if the
                broker does not answer.
            force: True: do not wait at all.
        """
        limit = seconds(timeout, f"{self._where} stop: timeout")
        if force and self._worker is not None and self._changing.locked():
            await self._worker.interrupt(GRACE)  # a stop that waits ends now
        async with self._changing:
            await self._stop(0.0 if force else limit)

    async def _stop(self, limit: float) -> None:
        outbox, dedup = self._outbox, self._dedup
        workers = [one for one in (self._worker, self._letter_worker) if one is not None]
        deadline = Deadline(limit + GRACE, self._where)
        try:
            await asyncio.gather(*(self._end(worker, limit, deadline) for worker in workers))
            if outbox is not None:
                await outbox.close(min(GRACE, deadline.left))
            if dedup is not None:
                await deadline.do_last(dedup.close(), "close the store of duplicates")
            if self._recording is not None:
                await self._recording.stop()
        finally:
            self._worker = self._letter_worker = self._outbox = self._dedup = None
            await self._connection.close(deadline)

    async def _end(self, worker: DeliveryWorker, limit: float, deadline: Deadline) -> None:
        abandoned = await worker.end(limit, deadline)
        if abandoned:
            log.warning("%s: stopped early: %s", self._where, ", ".join(abandoned))

    async def shutdown(self) -> None:
        """``stop`` with its defaults."""
        await self.stop()

    async def force_shutdown(self) -> None:
        """``stop`` without waiting."""
        await self.stop(force=True)

    def run(self) -> None:
        """Handle requests until SIGTERM or SIGINT, then stop. A second signal forces it."""
        run_process(self)

    # -- what it looks like -----------------------------------------------------------------------

    @property
    def queue(self) -> str:
        """The name of the queue."""
        return self._queue

    @property
    def is_running(self) -> bool:
        """It was started, and not stopped."""
        return self._worker is not None

    @property
    def in_flight(self) -> int:
        """How many requests it is handling."""
        consumers = () if self._worker is None else self._worker.consumers
        return sum(consumer.in_progress for consumer in consumers)

    def health(self) -> MessagingHealth:
        """How it is doing: its connection, and how the queue is being consumed."""
        worker, outbox, counters = self._worker, self._outbox, self._counters
        return MessagingHealth(
            _NO_CONNECTION if outbox is None else self._connection.transport.state,
            () if worker is None else worker.health,
            consumes=True,
            buffered=0 if outbox is None else outbox.buffered,
            last_message_at=counters.last_message_at,
            last_error=counters.last_error,
        )

    def metrics(self) -> MessageCounters:
        """What it has done so far."""
        return replace(self._counters)


def _read(function: Callable[..., Any], where: str) -> MessageFunction:
    return read_function(
        function,
        where,
        context=RpcContext,
        inject={RpcContext: lambda arrived: RpcContext(*arrived)},
    )


def _topology(queue: str, concurrency: int, letters: DeadLetterOptions, create: bool) -> Topology:
    kept: DeadLetterQueue | bool = False
    if letters.enabled:
        kept = DeadLetterQueue(
            max_length=letters.max_length,
            ttl=letters.ttl,
            exchange=letters.exchange,
            routing_key=letters.routing_key,
        )
    return Topology(
        _namespace(queue),
        queues=[WorkQueue(queue, exact=True, create=create, concurrency=concurrency)],
        dead_letters=DeadLetters(unhandled=False, undeliverable=False, dlq=kept),
    )


def _namespace(queue: str) -> str:
    """One for each queue: a transport that several servers share keeps topologies by their name."""
    plain = _NOT_IN_A_NAMESPACE.sub("-", queue)[:40]
    digest = (
        "" if plain == queue else f"-{sha256(queue.encode('utf-8', 'replace')).hexdigest()[:8]}"
    )
    return f"rpc-{plain}{digest}"
