"""``Service``: the lifecycle of everything that sends or receives, from start to shutdown.

Applications, job queues and workers, RPC clients and servers, publishers, subscribers and queue
services derive from it. It owns the connection, the workers, the outbox, the hooks and the
counters. A subclass decides what to open and what to consume.
"""

from __future__ import annotations

import asyncio
import logging
from asyncio import AbstractEventLoop, current_task, get_running_loop
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from functools import partial
from threading import get_ident
from types import TracebackType
from typing import Any, Literal, Self, TypeAlias, TypedDict, TypeVar, Unpack, get_type_hints

from matador.errors import (
    ConfigurationError,
    LifecycleError,
    NotStartedError,
    ShuttingDownError,
    WrongLoopError,
)
from matador.model.arguments import check_arguments
from matador.model.message import ConnectionState, Message, Receipt
from matador.model.options import Seconds, seconds, suggestion, whole_number
from matador.model.text import SHORT_TEXT, error_text
from matador.model.topology import Topology
from matador.policy.circuit import CircuitBreaker
from matador.policy.dedup import Deduplication
from matador.policy.recovery import Recovery
from matador.runtime.activity import Activity, AppState
from matador.runtime.checkpoints import CheckpointStore
from matador.runtime.connection import Connection
from matador.runtime.dead_letters import DeadLetterOffice, StoredReader
from matador.runtime.deadline import Deadline
from matador.runtime.dedup import Deduplicator
from matador.runtime.facts import moment
from matador.runtime.health import ConsumerHealth, Health, SenderHealth, health_status
from matador.runtime.hooks import (
    ConnectionChange,
    Hooks,
    HookSet,
    TransportFallback,
    hook_objects,
)
from matador.runtime.metrics import Counters, Metrics
from matador.runtime.outbox import Carry, Outbox
from matador.runtime.pipeline import Pipeline, longest_delay
from matador.runtime.process import run as run_process
from matador.runtime.way import WayIn
from matador.runtime.worker import DeliveryWorker
from matador.transports.base import Ending, Subscription, Transport
from matador.transports.clock import Clock, SystemClock

log = logging.getLogger("matador")

F = TypeVar("F")

Status: TypeAlias = Literal[
    "new",
    "starting",
    "running",
    "stopping-receive",
    "waiting-handlers",
    "stopping-enqueue",
    "disconnecting",
    "stopped",
]

_SENDING: frozenset[Status] = frozenset({"running", "stopping-receive", "waiting-handlers"})
_LEAST_PATIENCE = 1.0  # seconds that the broker has to answer, even with ``timeout=0``
_NO_CONNECTION = ConnectionState("disconnected")


@dataclass(frozen=True, slots=True, init=False)
class Shutdown:
    """The limits of a shutdown: seconds for a graceful one, then seconds for giving messages back.

    Example:
        >>> Shutdown(timeout=60).grace
        5.0
    """

    timeout: float
    grace: float

    def __init__(self, timeout: Seconds = 30.0, *, grace: Seconds = 5.0) -> None:
        object.__setattr__(self, "timeout", seconds(timeout, "shutdown: timeout"))
        object.__setattr__(self, "grace", seconds(grace, "shutdown: grace"))

    @classmethod
    def of(cls, given: Shutdown | Seconds | None) -> Shutdown:
        """The options themselves, or a timeout alone."""
        if given is None:
            return cls()
        return given if isinstance(given, Shutdown) else cls(given)


class ServiceOptions(TypedDict, total=False):
    """Options of everything that sends or receives.

    Attributes:
        hooks: the hooks to call: ``Journal``, ``Metrics``, ``Tracing``, your own ``Hooks``; one
            object or several.
        shutdown: how long a shutdown waits by default.
        connect_timeout: seconds for which to retry the first connection.
        clock: the source of time and ids.
    """

    hooks: Hooks | Sequence[Hooks] | None
    shutdown: Shutdown | Seconds | None
    connect_timeout: Seconds
    clock: Clock | None


def check_options(given: Mapping[str, object], kind: type, where: str) -> None:
    """Refuse options that are not in a ``TypedDict``.

    Raises:
        ConfigurationError: names the option, and a similar one if there is one.
    """
    known = get_type_hints(kind)
    for name in given:
        if name not in known:
            raise ConfigurationError(f"{where}: unknown option {name!r}{suggestion(name, known)}")


class Service:
    """A service that sends or receives, with a start and a shutdown in bounded time.

    It can be started again after a shutdown, in another event loop if need be.

    Args:
        where: its description for errors and logs: ``RpcServer('maths')``.
        connection: the transport; None: the subclass sets ``_connection`` before it starts.
        **options: see ``ServiceOptions``.
    """

    def __init__(
        self, where: str, connection: Connection | None, **options: Unpack[ServiceOptions]
    ) -> None:
        self._where = where
        self._connection: Connection | None = connection
        check_arguments(where, clock=options.get("clock"))
        self._clock: Clock = options.get("clock") or SystemClock()
        self._hook_objects = hook_objects(options.get("hooks"), where)
        self._hooks = HookSet(self._hook_objects)
        self._shutdown_options = Shutdown.of(options.get("shutdown"))
        timeout = options.get("connect_timeout", 0.0)
        self._connect_timeout = seconds(timeout, f"{where}: connect_timeout")
        self._counters = Counters()
        self._form: Any = None
        self.tested_in: AbstractEventLoop | None = None
        """The event loop of the test that runs the service. Its blocking forms use that loop, too.
        """
        self._begin_anew()

    def _begin_anew(self) -> None:
        """Reset to the state before the start."""
        self._activity = Activity(self._has_due)
        self._last_hook: asyncio.Task[None] | None = None
        self._status: Status = "new"
        self._loop: AbstractEventLoop | None = None
        self._thread = 0
        self._starting: asyncio.Task[None] | None = None
        self._stopping: asyncio.Task[None] | None = None
        self._hurry = asyncio.Event()
        self._workers: list[DeliveryWorker] = []
        self._outbox: Outbox | None = None
        self._dedup: Deduplicator | None = None
        self._closers: list[tuple[str, Callable[[], Coroutine[Any, Any, object]]]] = []
        self._paused = False
        self._disconnected_since: float | None = None
        self._lost: set[str] = set()

    def another(self) -> Self:
        """An unstarted copy, with its own connection if it was made with a URL.

        For another event loop or process. ``sync()`` runs one.

        Raises:
            LifecycleError: it was made with a transport object, which is connected.
        """
        other = copy(self)
        other._counters, other._form = Counters(), None
        other._begin_anew()
        if self._connection is not None:
            other._connection = self._connection.another()
        return other

    @property
    def given_transport(self) -> Transport | None:
        """The transport object given by the caller, if a shutdown does not disconnect it."""
        return None if self._connection is None else self._connection.given

    def _blocking(self, kind: Callable[[Self], F]) -> F:
        """Its blocking form: shared by all threads until it is shut down."""
        if self._form is None or self._form.has_ended:
            self._form = kind(self)
        return self._form

    # -- for subclasses ---------------------------------------------------------------------

    _handles_rest = True
    """At shutdown, handle messages that still wait in memory while there is time."""

    _elsewhere = "make another one for this loop"
    """The hint for callers in another event loop."""

    def _check(self) -> None:
        """Check the configuration, before anything is connected."""

    async def _open(self, transport: Transport) -> None:
        """Create queues, the outbox and workers, on a connected transport."""

    def _receiving_stopped(self) -> None:
        """Called once receiving has stopped."""

    def _cut_short(self, running: int) -> None:
        """Called before running handlers are canceled, because the shutdown timed out."""

    async def _close(self, deadline: Deadline) -> None:
        """Release the resources of ``_open``, before the connection is closed."""

    def _connection_state_changed(self, state: ConnectionState) -> None:
        """Called when the connection state changed."""

    def _settlement_failed(self, receipt: Receipt, error: Exception) -> None:
        """Called when a settlement failed. The settler retries it if that can help."""
        self._counters.note_error(error)

    # -- parts that a subclass opens --------------------------------------------------------------

    def _open_outbox(
        self,
        transport: Transport,
        *,
        recovery: Recovery | None = None,
        breaker: CircuitBreaker | None = None,
        carry: Carry | None = None,
    ) -> Outbox:
        self._outbox = Outbox(
            transport,
            counters=self._counters,
            tell=self._hooks.sent,
            recovery=recovery,
            breaker=breaker,
            clock=self._clock,
            carry=carry,
        )
        return self._outbox

    async def _open_dedup(self, options: Deduplication | None) -> Deduplicator | None:
        if options is not None:
            self._dedup = Deduplicator(options)
            self._at_end("close the store of duplicates", self._dedup.close)
            await self._dedup.open()
        return self._dedup

    def _at_end(self, what: str, close: Callable[[], Coroutine[Any, Any, object]]) -> None:
        """Register ``close`` for the end of this run, or for a failed start, in bounded time.

        Called in reverse order, before the connection is closed.
        """
        self._closers.append((what, close))

    async def _consume(
        self,
        transport: Transport,
        way: WayIn | Callable[[DeliveryWorker], WayIn],
        queues: Mapping[str, int],
        *,
        max_deliveries: int = 5,
        checkpoints: CheckpointStore | None = None,
        dedup: Deduplicator | None = None,
        manual: bool = False,
        minds_deadlines: bool = True,
        delays: bool = True,
        hooks: HookSet | None = None,
        counters: Counters | None = None,
        read_ahead: Callable[[str], bool] = lambda _: True,
        ask_concurrency: Callable[[str], Awaitable[int]] | None = None,
        around: Callable[[Subscription], Subscription] = lambda inner: inner,
    ) -> DeliveryWorker:
        """Start to receive from queues, given by their full names with their concurrency.

        ``hooks`` and ``counters``: replace those of the service, for internal consumers.
        """
        hooks, counters = hooks or self._hooks, counters or self._counters
        worker = DeliveryWorker(
            transport,
            activity=self._activity,
            counters=counters,
            clock=self._clock,
            max_deliveries=max_deliveries,
            on_settle_error=self._settlement_failed,
            hooks=hooks,
        )
        capabilities = transport.capabilities
        can_delay = capabilities.delays or capabilities.delays_retries
        longest = longest_delay(can_delay, capabilities.max_delay) if delays else 0.0
        pipeline = Pipeline(
            way if isinstance(way, WayIn) else way(worker),
            worker.calls,
            settler=worker.settler,
            leases=worker.leases,
            hooks=hooks,
            counters=counters,
            clock=self._clock,
            checkpoints=checkpoints,
            dedup=dedup,
            manual=manual,
            minds_deadlines=minds_deadlines,
            longest_delay=longest,
        )
        self._workers.append(worker)
        if ask_concurrency is None and hooks.get_queue_concurrency is not None:
            ask_concurrency = partial(self._ask_concurrency, worker, hooks, queues)
            queues = {queue: await ask_concurrency(queue) for queue in queues}
        await worker.start(
            pipeline,
            queues,
            read_ahead=read_ahead,
            ask_concurrency=ask_concurrency,
            around=around,
            paused=self._paused,
        )
        return worker

    async def _ask_concurrency(
        self, worker: DeliveryWorker, hooks: HookSet, given: Mapping[str, int], queue: str
    ) -> int:
        """Ask the hooks for the concurrency; by default, it stays unchanged."""
        ask = hooks.get_queue_concurrency
        asked = None if ask is None else await ask(queue)
        now = [one.concurrency for one in worker.health if one.queue == queue]
        usual = now[0] if now else given[queue]
        try:
            where = f"get_queue_concurrency for {queue}"
            return usual if asked is None else whole_number(asked, where, minimum=1)
        except ConfigurationError as error:
            log.error("%s; it stays at %d", error, usual)
            return usual

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
        """Connect, create missing queues on the broker, and start to receive.

        A second call does nothing; concurrent calls wait for the same start.

        Raises:
            ConnectionFailedError: the broker cannot be reached, or refuses.
            ShuttingDownError: it is shutting down; start it again afterwards.
            WrongLoopError: it is running in another event loop.

        Example:
            >>> await app.start()  # or: async with app
            >>> app.is_running
            True
        """
        self._check_loop()
        if self._status in _SENDING:
            return
        if self._status not in ("new", "stopped", "starting"):
            raise ShuttingDownError(f"{self._where} is shutting down; start it again afterwards")
        if self._starting is None:
            self._loop, self._thread = get_running_loop(), get_ident()
            self._starting = asyncio.create_task(self._begin(), name="matador-start")
        await self._started(self._starting)

    async def _started(self, starting: asyncio.Task[None]) -> None:
        """Wait for a start. Only a shutdown ends it early."""
        try:
            await asyncio.shield(starting)
        except asyncio.CancelledError:
            if starting.cancelled():
                raise ShuttingDownError(f"{self._where} was shut down before it started") from None
            raise

    async def _begin(self) -> None:
        before, self._status = self._status, "starting"
        self._hurry = asyncio.Event()  # of this loop, which may not be that of the last start
        self._stopping = None
        try:
            self._check()
            if self._connection is None:
                raise ConfigurationError(f"{self._where} has no connection")
            transport = await self._connection.open(self, self._connect_timeout)
            try:
                await self._open(transport)
                if self._hooks.on_start is not None:
                    await self._hooks.on_start()
            except BaseException:
                await self._release(Deadline(self._shutdown_options.grace, self._where), force=True)
                raise
            self._status = "running"
        except BaseException:
            self._status, self._loop = before, None
            raise
        finally:
            self._starting = None

    async def shutdown(self, timeout: Seconds | None = None) -> None:
        """Stop receiving, let running handlers and sends finish, then disconnect.

        After ``timeout`` seconds (default: 30, or the option ``shutdown``) the shutdown is forced:
        handlers are canceled, their messages go back to the queue uncounted, and the log lists the
        abandoned work. That takes a few seconds at most, even if the broker does not answer.
        ``timeout=0`` forces it at once, even if a shutdown is in progress. A start that takes
        longer than ``timeout`` is ended. Idempotent; concurrent calls wait for the same shutdown.

        Example:
            >>> await app.shutdown(timeout=10)
        """
        self._check_loop()
        options = self._shutdown_options
        limit = options.timeout if timeout is None else seconds(timeout, f"{self._where}: timeout")
        if (starting := self._starting) is not None:
            until = get_running_loop().time() + limit
            await asyncio.wait([starting], timeout=limit)
            if not starting.done():
                starting.cancel()
                await asyncio.wait([starting])
            limit = max(0.0, until - get_running_loop().time())
        if self._stopping is None:
            if self._status not in _SENDING:
                return
            self._stopping = asyncio.create_task(self._end(limit), name="matador-shutdown")
        elif limit == 0:
            self._hurry.set()
        await asyncio.shield(self._stopping)

    async def _end(self, limit: float) -> None:
        until = get_running_loop().time() + limit
        grace = self._shutdown_options.grace
        patience = max(limit, grace, _LEAST_PATIENCE)
        deadline = Deadline(patience + grace, self._where)
        try:
            self._status = "stopping-receive"
            if self._ending is not None and self._handles_rest:  # it would be lost
                self._status = "waiting-handlers"
                await self._in_peace(self._activity.wait_idle(None), until)
            receiving = [worker.stop_receiving() for worker in self._workers]
            stopping = self._all(receiving, "stop receiving")
            await deadline.do(stopping, "stop receiving", min(10.0, max(limit, grace / 2)))
            self._receiving_stopped()
            self._status = "waiting-handlers"
            abandoned: list[str] = []
            finishing = self._all([one.finish() for one in self._workers], "finish")
            if not await self._in_peace(finishing, until):
                running = self._activity.processing
                if running:
                    log.warning(
                        "%s: %d messages are still being processed; interrupting them",
                        self._where,
                        running,
                    )
                    self._cut_short(running)
                for left in await asyncio.gather(*(w.interrupt(grace) for w in self._workers)):
                    abandoned += left
            self._status = "stopping-enqueue"
            await self._in_peace(self._activity.wait_idle(None), until)
            if self._activity.enqueuing:
                abandoned.append(f"{self._activity.enqueuing} sends without an outcome")
            if abandoned:
                log.warning(
                    "%s: shutdown was forced; abandoned: %s", self._where, ", ".join(abandoned)
                )
            self._log_left()
            self._status = "disconnecting"
        finally:
            try:
                await self._release(deadline, until=until)
                if self._hooks.on_stop is not None:
                    await self._hooks.on_stop()
            finally:
                self._status, self._loop = "stopped", None  # the next start may use another one

    async def _release(
        self, deadline: Deadline, *, until: float = 0.0, force: bool = False
    ) -> None:
        """Release everything, even if steps fail. Sends have until ``until`` to finish."""
        workers, self._workers = self._workers, []
        outbox, self._outbox = self._outbox, None
        closers, self._closers, self._dedup = self._closers, [], None

        async def close(worker: DeliveryWorker) -> None:
            if force:
                half = deadline.left / 2
                await deadline.do(worker.stop_receiving(), "stop receiving", half)
                await worker.interrupt(deadline.left)
            await worker.close()

        async def close_outbox(outbox: Outbox) -> None:
            left = max(_LEAST_PATIENCE, until - get_running_loop().time())
            if await outbox.close(min(left, self._shutdown_options.grace, deadline.left)):
                deadline.expect_no_answer()

        steps: list[Callable[[], Awaitable[object]]] = [partial(close, one) for one in workers]
        if outbox is not None:
            steps.append(partial(close_outbox, outbox))
        steps.append(partial(self._close, deadline))
        for what, closer in reversed(closers):
            steps.append(lambda what=what, closer=closer: deadline.do_last(closer(), what))
        try:
            for step in steps:
                try:
                    await step()
                except Exception:  # the others are released nevertheless
                    log.exception("%s: could not release everything", self._where)
        finally:
            await self._disconnect(deadline)
            if self._last_hook is not None:
                await asyncio.gather(self._last_hook, return_exceptions=True)
                self._last_hook = None  # the next one may belong to another loop
            self._disconnected_since = self._disconnected_since or self._clock.time()

    @property
    def _ending(self) -> Ending | None:
        """The transport, if messages in it end with this process."""
        connection = self._connection
        transport = connection.transport if connection and connection.is_known else None
        return transport if isinstance(transport, Ending) else None

    def _has_due(self) -> bool:
        """Whether due messages wait in this process to be handled here."""
        ending = self._ending
        return ending is not None and any(
            consumer.receives and ending.is_due(consumer.queue)
            for worker in self._workers
            for consumer in worker.consumers
        )

    def _log_left(self) -> None:
        ending = self._ending
        if ending is None:
            return
        for queue in {consumer.queue for one in self._workers for consumer in one.consumers}:
            if left := ending.left(queue):
                log.warning(
                    "%s: %d messages still wait in %s, in memory; they end with this process",
                    self._where,
                    left,
                    queue,
                )

    async def _disconnect(self, deadline: Deadline) -> None:
        if self._connection is not None:
            await self._connection.close(self, deadline)

    async def _all(self, steps: Sequence[Awaitable[object]], what: str) -> None:
        """Run all steps concurrently. A failing step does not stop the others."""
        for outcome in await asyncio.gather(*steps, return_exceptions=True):
            if isinstance(outcome, Exception):
                log.error("%s: could not %s: %s", self._where, what, outcome, exc_info=outcome)

    async def _in_peace(self, step: Coroutine[Any, Any, object], until: float) -> bool:
        """Wait for a step while there is time and the shutdown is not forced."""
        left = max(0.0, until - get_running_loop().time())
        doing = asyncio.create_task(step)
        hurried = asyncio.create_task(self._hurry.wait())
        try:
            await asyncio.wait({doing, hurried}, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            if not doing.done():
                return False
            doing.result()
            return True
        finally:
            for task in (doing, hurried):
                task.cancel()
            await asyncio.gather(doing, hurried, return_exceptions=True)

    def run(self) -> None:
        """Run until SIGTERM or SIGINT, then shut down. A second signal forces it.

        Example:
            >>> app.run()  # the last line of a program
        """
        run_process(self)

    async def pause(self) -> None:
        """Receive nothing until ``resume``. Running handlers finish, and sending continues.

        Received messages that have not started go back to the queue, uncounted. Other processes
        continue to receive. On Kafka, the partitions of this process wait. A service that is paused
        before its start, or during a shutdown, is paused when it is started again. A service that
        only sends is not affected. Idempotent.

        Example:
            >>> await app.pause()
            >>> app.is_paused
            True
        """
        self._check_loop()
        self._paused = True
        await asyncio.gather(*(worker.pause() for worker in self._workers))

    async def resume(self) -> None:
        """Receive again. Idempotent.

        Example:
            >>> await app.resume()
        """
        self._check_loop()
        self._paused = False
        for worker in self._workers:
            worker.resume()

    async def wait_idle(self, timeout: Seconds | None = None) -> bool:
        """Wait until nothing is being processed or sent. Returns False if ``timeout`` expires.

        Due messages that wait in memory for this service must be handled, too.

        Example:
            >>> await app.wait_idle(timeout=5)
            True
        """
        self._check_loop()
        return await self._activity.wait_idle(timeout)

    # -- for tools -----------------------------------------------------------------------

    @property
    def transport(self) -> Transport:
        """The transport.

        Raises:
            NotStartedError: it uses an in-memory transport, which is only known after the start.
        """
        if self._connection is None:
            raise NotStartedError(f"{self._where} has not been started")
        return self._connection.transport

    @property
    def topology(self) -> Topology | None:
        """The queues and exchanges that it creates; None: it creates none."""
        return None

    @property
    def reader(self) -> StoredReader | None:
        """The reader of the messages stored in its queues; None: it has no queues."""
        return None

    @property
    def checkpoints(self) -> CheckpointStore | None:
        """The store for the steps of resumable handlers; None: there is none."""
        return None

    def _office(
        self, topology: Topology, reader: StoredReader, checkpoints: CheckpointStore | None
    ) -> DeadLetterOffice:
        """The dead letters of queues; ``checkpoints``: the steps of their messages."""
        forget = None if checkpoints is None else checkpoints.delete
        return DeadLetterOffice(
            self.transport, topology, reader, self._clock, self._check_loop, forget
        )

    # -- state --------------------------------------------------------------------------

    @property
    def is_running(self) -> bool:
        """Whether it was started and not shut down."""
        return self._status in _SENDING

    @property
    def is_idle(self) -> bool:
        """Whether nothing is being processed or sent, and no due message waits in this process."""
        return self._activity.idle

    @property
    def connect_timeout(self) -> float:
        """Seconds for which to retry the first connection. Can be set before the start."""
        return self._connect_timeout

    @connect_timeout.setter
    def connect_timeout(self, timeout: Seconds) -> None:
        self._connect_timeout = seconds(timeout, f"{self._where}: connect_timeout")

    @property
    def is_paused(self) -> bool:
        """Whether it receives nothing until ``resume``."""
        return self._paused

    @property
    def state(self) -> AppState:
        """The current state: whether it is idle, and how much is being processed and sent.

        Example:
            >>> app.state.is_idle
            True
        """
        activity = self._activity
        status = "paused" if self._paused and self._status == "running" else self._status
        return AppState(status, activity.processing, activity.enqueuing, activity.waiting())

    @property
    def hooks(self) -> tuple[Hooks, ...]:
        """Its hook objects, in the order in which they are called."""
        return self._hook_objects

    def add_hooks(self, *hooks: Hooks) -> None:
        """Add hooks. They are called after the existing ones.

        Raises:
            ConfigurationError: one of them is not a ``Hooks`` object.
            ShuttingDownError: it is running; add hooks before it is started.

        Example:
            >>> app.add_hooks(Journal("journal/"))
        """
        if self._status not in ("new", "stopped"):
            raise ShuttingDownError(f"{self._where} is running: add hooks before it is started")
        self._set_hooks((*self._hook_objects, *hook_objects(list(hooks), self._where)))

    def _set_hooks(self, hooks: tuple[Hooks, ...]) -> None:
        self._hook_objects = hooks
        self._hooks = HookSet(hooks)

    @contextmanager
    def rehosted(
        self,
        transport: Transport,
        clock: Clock,
        checkpoints: CheckpointStore,
        hooks: Sequence[Hooks] = (),
    ) -> Generator[Self]:
        """Use another transport, another clock and local stores for a while, for tests.

        Code that refers to it keeps working, with its handlers and its other options. ``hooks``
        are called before its own. Afterwards, everything is restored. It must not be running at the
        start or at the end of the block.

        Raises:
            LifecycleError: it is running.
        """
        if self._status not in ("new", "stopped"):
            raise LifecycleError(f"{self._where} is running; shut it down first")
        before = dict(vars(self))
        self._form = None  # a blocking form that is created meanwhile uses these
        self.tested_in = get_running_loop()
        self._rehost(transport, clock, checkpoints)
        self._set_hooks((*hooks, *self._hook_objects))
        changed = [name for name, value in vars(self).items() if before.get(name) is not value]
        try:
            yield self
        finally:
            vars(self).update({name: before[name] for name in changed})

    def _rehost(self, transport: Transport, clock: Clock, checkpoints: CheckpointStore) -> None:
        """Use these from now on. A subclass replaces further external resources."""
        self._connection, self._clock = Connection(transport, self._where), clock

    def health(self) -> Health:
        """The health of the service. Does not contact the broker, so a probe may call it often.

        Example:
            >>> app.health().status
            'healthy'
        """
        counters, connection = self._counters, self._connection
        known = connection is not None and connection.is_known and self._loop is not None
        state = connection.transport.state if known and connection is not None else _NO_CONNECTION
        return Health(
            health_status(
                state.status,
                self.sender_health.circuit,
                self.consumer_health,
                consumes=self._consumes,
            ),
            state.status,
            self._activity.processing,
            moment(counters.last_message_at),
            counters.last_error,
            moment(self._disconnected_since),
        )

    @property
    def consumer_health(self) -> tuple[ConsumerHealth, ...]:
        """The health of each consumer; empty if the service only sends or is not started."""
        return tuple(one for worker in self._workers for one in worker.health)

    @property
    def sender_health(self) -> SenderHealth:
        """The health of sending: buffered sends and the circuit breaker."""
        outbox = self._outbox
        return SenderHealth() if outbox is None else SenderHealth(outbox.circuit, outbox.buffered)

    @property
    def _consumes(self) -> bool:
        """Whether it should consume queues."""
        return False

    def metrics(self) -> Metrics:
        """The counters of the service.

        Example:
            >>> app.metrics().messages_received
            12
        """
        return self._counters.snapshot()

    # -- the connection ---------------------------------------------------------------------------

    def connection_changed(self, transport: str, state: ConnectionState) -> None:
        """Called by the transport when the connection state changed."""
        if state.status == "connected":
            self._disconnected_since = None
            if transport in self._lost:
                self._counters.connection_recoveries += 1
                self._lost.remove(transport)
        else:
            if self._disconnected_since is None:
                self._disconnected_since = self._clock.time()
            if state.status == "reconnecting" and state.attempt <= 1:
                self._counters.connection_losses += 1
                self._lost.add(transport)
        if state.error is not None:
            self._counters.last_error = error_text(state.error, SHORT_TEXT)
        hook = self._hooks.on_connection_state_change
        if hook is not None:
            self._call_in_order(hook(ConnectionChange(transport, state)))
        self._connection_state_changed(state)

    def fell_back(self, message: Message, failed: str, next_: str, error: BaseException) -> None:
        """Called by the transport when another one of its group stores a message."""
        hook = self._hooks.on_transport_fallback
        if hook is not None:
            fallback = TransportFallback(message.id, message.queue, failed, next_, error)
            self._call_in_order(hook(fallback))

    def dropped(self, queue: str, number: int) -> None:
        """Called by the transport when it dropped received messages unhandled."""
        if any(one.queue == queue for worker in self._workers for one in worker.consumers):
            self._counters.discarded += number

    def _call_in_order(self, hook: Awaitable[None]) -> None:
        """Call a hook for an event of the transport, after the hooks for earlier events."""
        before = self._last_hook

        async def call() -> None:
            if before is not None:
                await asyncio.gather(before, return_exceptions=True)
            await hook

        self._last_hook = asyncio.create_task(call())

    # -- event loops ---------------------------------------------------------------------

    @property
    def _is_in_own_loop(self) -> bool:
        """Whether the caller is a task of the loop in which the service was started.

        Asking for the running loop instead costs a system call, a tenth of the time of a send.
        """
        loop = self._loop
        return loop is not None and get_ident() == self._thread and current_task(loop) is not None

    def _check_loop(self) -> None:
        loop = self._loop
        if loop is None or loop is get_running_loop():
            return
        closed = ", which was closed without a shutdown" if loop.is_closed() else ""
        raise WrongLoopError(
            f"{self._where} was started in another event loop{closed}; {self._elsewhere}. Nothing "
            f"was done"
        )

    def _may_send(self) -> Outbox:
        """The outbox, if messages may be sent now.

        Raises:
            NotStartedError, ShuttingDownError, WrongLoopError: they may not.
        """
        outbox = self._outbox
        if self._status not in _SENDING and self._status != "starting":
            if self._status == "new":
                raise NotStartedError(
                    f"{self._where} has not been started: use `async with`, or start()"
                )
            raise ShuttingDownError(f"{self._where} is shutting down, or has been shut down")
        if outbox is None:
            raise NotStartedError(f"{self._where} has not been started")
        if not self._is_in_own_loop:
            self._check_loop()
        return outbox
