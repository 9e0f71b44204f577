"""``Matador``, the application, and ``SyncMatador``, its blocking form."""

from __future__ import annotations

import asyncio
import threading
from asyncio import get_running_loop
from collections.abc import Callable, Coroutine, Generator, Iterable, Sequence
from contextlib import contextmanager
from copy import copy
from functools import wraps
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from matador.codec.base import Codec
from matador.errors import LifecycleError, NotStartedError, WrongLoopError
from matador.events.checkpoints import CheckpointStore
from matador.events.config import (
    DEFAULT_MAX_MESSAGE_SIZE,
    AppConfig,
    MalformedStrategy,
    UnsupportedDelays,
)
from matador.events.dead_letters import DeadLetterOffice
from matador.events.fit import check_fit
from matador.events.hooks import Hooks
from matador.events.running import Running, apply_topology
from matador.events.sender import SendsEvents
from matador.model.capabilities import DeliveryMode
from matador.model.message import TopologyNote
from matador.model.options import Seconds
from matador.model.schema import Schema
from matador.model.sending import SendErrors
from matador.model.topology import Topology
from matador.policy.retry import RetryPolicy
from matador.runtime.activity import AppState
from matador.runtime.health import Health
from matador.runtime.lifecycle import Shutdown
from matador.runtime.process import run
from matador.transports.base import Transport
from matador.transports.clock import Clock

P = ParamSpec("P")
T = TypeVar("T")

_LAST_CALLS_TIMEOUT = 1.0


class Matador(SendsEvents):
    """An application: it sends events and consumes queues over one transport.

    Use it in the event loop in which it was started; in another one, its methods raise
    ``WrongLoopError``. ``sync()`` serves code without an event loop, ``producer()`` another loop.
    An application can be started again after a shutdown.

    Args:
        transport: a URL such as ``sqlite:///shop.db``, or a transport object.
        schema: the events and their subscribers.
        topology: the queues; by default, one queue ``events`` in the namespace ``matador``.
        consume_from: names of the queues to consume; empty for an application that only sends.
        codec: encodes envelopes; JSON by default, on AMQP with the docket in headers.
        retry: the retry policy.
        delivery: ``at-least-once`` (default) or ``at-most-once``; a subscriber may override it.
        shutdown: the time limit of a graceful shutdown, as ``Shutdown`` or seconds.
        checkpoints: the store for the steps of resumable subscribers.
        hooks: a hook object, or several.
        malformed: what to do with messages that cannot be decoded.
        max_message_size: in bytes; larger messages are neither sent nor decoded.
        send_errors: ``raise`` (default): ``send`` raises ``SendFailedError`` if a message was not
            stored; ``report``: it returns a ``SendResult`` with ``errors``.
        unsupported_delays: what to do if the transport does not support a delay.
        clock: the source of times and ids; tests pass their own.

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
        config = AppConfig.of(
            transport=transport,
            schema=schema,
            topology=topology,
            consume_from=consume_from,
            codec=codec,
            retry=retry,
            delivery=delivery,
            shutdown=shutdown,
            checkpoints=checkpoints,
            hooks=hooks,
            malformed=malformed,
            max_message_size=max_message_size,
            unsupported_delays=unsupported_delays,
            send_errors=send_errors,
            clock=clock,
        )
        super().__init__(config)

    def __repr__(self) -> str:
        consuming = ", ".join(self.consume_from) or "nothing"
        return f"<Matador on {self.transport!r}, consuming {consuming}, {self._lifecycle.status}>"

    # -- configuration and state ------------------------------------------------------------------

    @property
    def schema(self) -> Schema:
        """The events and their subscribers."""
        return self._config.schema

    @property
    def topology(self) -> Topology:
        """The queues."""
        return self._config.topology

    @property
    def transport(self) -> Transport:
        """The transport."""
        return self._config.transport

    @property
    def codec(self) -> Codec:
        """The codec for envelopes."""
        return self._config.used_codec

    @property
    def checkpoints(self) -> CheckpointStore:
        """The store for the steps of resumable subscribers."""
        return self._config.checkpoints

    @property
    def consume_from(self) -> tuple[str, ...]:
        """The names of the queues it consumes."""
        return self._config.consume_from

    @property
    def hooks(self) -> tuple[Hooks, ...]:
        """Its hook objects, in the order in which they are called."""
        return tuple(self._config.hooks)

    @property
    def dead_letters(self) -> DeadLetterOffice:
        """The dead letters: browse, redrive or purge them.

        Example:
            >>> async for letter in app.dead_letters.browse():
            ...     print(letter.id, letter.stored.reason)
        """
        return DeadLetterOffice(self._config, self._check_loop)

    @property
    def state(self) -> AppState:
        """The current state: whether it is idle, and how much is being processed and sent.

        Example:
            >>> app.state.is_idle
            True
        """
        return AppState(self._lifecycle.status, self._activity.processing, self._activity.enqueuing)

    def health(self) -> Health:
        """The health of the connection and of each consumed queue.

        Example:
            >>> app.health().status
            'healthy'
        """
        return Health(self.transport.state) if self._running is None else self._running.health

    def with_(self, **changes: Any) -> Self:
        """A new application with the same options, except for ``changes``; not started.

        Takes the options of ``Matador``. An application made with a URL gives the new one its own
        connection. One made with a transport object, or in memory, shares its transport, so only
        one of the two can run at a time.

        Raises:
            ConfigurationError: an option is unknown or invalid.
            LifecycleError: the application is running and its transport cannot be shared.

        Example:
            >>> slow = app.with_(topology=Topology("shop", queues=["events"]), shutdown=300)
        """
        if "transport" not in changes:
            if self._config.url is not None and not self.transport.capabilities.in_process:
                changes = {**changes, "transport": self._config.url}
            elif self._lifecycle.status not in ("new", "stopped"):
                raise LifecycleError(
                    f"the application is running, and its transport {self.transport.name} cannot "
                    f"be shared; shut it down first, or create the application with a URL"
                )
        other = copy(self)  # keeps the attributes of a subclass
        SendsEvents.__init__(other, self._config.with_(**changes))
        return other

    def producer(self) -> Self:
        """The same application, not started, that only sends: for a web process or another thread.

        See ``with_`` for its connection.

        Raises:
            LifecycleError: the application is running and its transport cannot be shared.

        Example:
            >>> async with app.producer() as shop:
            ...     await shop.send(OrderPlaced(order_id="1", amount=5))
        """
        return self.with_(consume_from=())

    @contextmanager
    def configured(self, **changes: Any) -> Generator[Self]:
        """Change the options of this application temporarily, for tools and tests.

        Code that refers to the application keeps working. ``hooks`` are added before the existing
        ones. The application must not be running at the start or at the end of the block.

        Raises:
            LifecycleError: it is running.
            ConfigurationError, QueueNotFoundError: an option is unknown or invalid.

        Example:
            >>> with app.configured(transport=MemoryTransport()):
            ...     async with app: ...
        """
        before = self._config
        self.configure(**changes)
        try:
            yield self
        finally:
            self._configure(before)

    def configure(self, **changes: Any) -> None:
        """Change the options of this application permanently. See ``configured``."""
        if self._lifecycle.status not in ("new", "stopped"):
            raise LifecycleError("a running application cannot be changed; shut it down first")
        if "hooks" in changes:
            changes = {**changes, "hooks": (*changes["hooks"], *self._config.hooks)}
        self._configure(self._config.with_(**changes))

    def _configure(self, config: AppConfig) -> None:
        self._config = config
        self._lifecycle.options = config.shutdown

    def check(self) -> None:
        """Check that schema, topology and transport match. ``start`` does this first.

        Raises:
            InvalidSchemaError, SubscriberIsStubError, UnsupportedError: see ``start``.
        """
        check_fit(self._config)

    # -- life cycle -------------------------------------------------------------------------------

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
        """Check the options, connect, apply the topology and start consuming.

        A second call does nothing.

        Raises:
            InvalidSchemaError: the schema is invalid; lists every problem.
            SubscriberIsStubError: a queue to be consumed receives messages for a stub.
            UnsupportedError: the transport does not support a requested delivery mode.
            ConnectionFailedError: the broker is unreachable.
            WrongLoopError: it is still running in another event loop.
        """
        self._check_loop()
        self._loop = get_running_loop()
        await self._lifecycle.start(self._start)

    async def stop_receiving(self) -> bool:
        """Stop receiving, but continue to send. Returns False if it was not receiving."""
        self._check_loop()
        running = self._running
        if running is None or running.worker is None or not self._lifecycle.begin_stop_receiving():
            return False
        await running.stop_receiving()
        self._lifecycle.receiving_stopped()
        return True

    async def resume_receiving(self) -> bool:
        """Resume receiving after ``stop_receiving``, over the same connection.

        Messages received before are finished first. Returns False if receiving was not stopped.
        """
        self._check_loop()
        running = self._running
        return running is not None and await self._lifecycle.resume(running.receive_again)

    async def wait_idle(self, timeout: Seconds | None = None) -> bool:
        """Wait until nothing is being processed or sent. Returns False if ``timeout`` expires."""
        self._check_loop()
        return await self._activity.wait_idle(timeout)

    async def shutdown(self, timeout: Seconds | None = None) -> None:
        """Stop receiving, let running callbacks and sends finish, then disconnect.

        After ``timeout`` seconds (default: the ``shutdown`` option, 30) the shutdown is forced:
        callbacks are cancelled, their messages are released, and the log lists what was abandoned.
        Idempotent; concurrent calls wait for the same shutdown.
        """
        self._check_loop()
        await self._lifecycle.shutdown(self._ending, timeout)

    async def force_shutdown(self) -> None:
        """Shut down now and cancel running callbacks, even if a shutdown is already in progress."""
        self._check_loop()
        self._lifecycle.hurry()
        await self._lifecycle.shutdown(self._ending, 0)

    def run(self) -> None:
        """Run a worker process: start, wait for SIGTERM or SIGINT, and shut down.

        A second signal forces the shutdown.

        Example:
            >>> if __name__ == "__main__":
            ...     app.run()
        """
        run(self)

    def sync(self) -> SyncMatador:
        """A blocking form of the application, which runs its event loop in a thread.

        Example:
            >>> with app.sync() as shop:
            ...     shop.send(OrderPlaced(order_id="1", amount=5))
        """
        return SyncMatador(self)

    async def apply_topology(self) -> Sequence[TopologyNote]:
        """Create missing queues. Returns what the transport could not apply."""
        self._check_loop()
        return await apply_topology(self._config)

    # -- internals --------------------------------------------------------------------------------

    async def _start(self) -> None:
        try:
            self.check()
            self._running = Running(self._config, self._activity, self, self._closed)
            await self._running.open()
        except BaseException:
            self._closed()
            raise

    def _closed(self) -> None:
        self._running = None
        self._loop = None  # the next start may use another one

    def _ending(self) -> Running:
        assert self._running is not None, "a shutdown follows a start"
        return self._running


# -- for code without an event loop ---------------------------------------------------------------


def _blocking(
    method: Callable[Concatenate[Matador, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[SyncMatador, P], T]:
    """A blocking form of a method of ``Matador``, with the same signature."""

    @wraps(method)
    def wait(self: SyncMatador, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.wait(method(self.app, *args, **kwargs))

    return wait


class SyncMatador:
    """Runs an application in its own thread. Safe to use from any number of threads.

    Example:
        >>> with app.sync() as shop:
        ...     shop.send(OrderPlaced(order_id="1", amount=5), delay=30)
    """

    def __init__(self, app: Matador) -> None:
        self._app = app
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._life = threading.RLock()
        self._submitting = threading.Lock()

    @property
    def app(self) -> Matador:
        """The application itself."""
        return self._app

    @property
    def state(self) -> AppState:
        """See ``Matador.state``."""
        return self._app.state

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.shutdown()

    def start(self) -> None:
        """See ``Matador.start``."""
        self._check_thread()
        with self._life:
            if self._thread is None:
                loop = asyncio.new_event_loop()
                thread = threading.Thread(target=loop.run_forever, name="matador-sync", daemon=True)
                thread.start()
                self._loop, self._thread = loop, thread
            try:
                self.wait(self._app.start())
            except BaseException:
                self._stop_loop()
                raise

    send = _blocking(Matador.send)
    send_many = _blocking(Matador.send_many)
    wait_idle = _blocking(Matador.wait_idle)
    stop_receiving = _blocking(Matador.stop_receiving)

    def shutdown(self, timeout: Seconds | None = None) -> None:
        """See ``Matador.shutdown``. Also ends the thread."""
        self._check_thread()
        with self._life:
            if self._thread is None:
                return
            try:
                self.wait(self._app.shutdown(timeout))
            finally:
                self._stop_loop()

    def wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the application's event loop and return its result.

        Raises:
            NotStartedError: there is no loop yet.
            WrongLoopError: called in the application's own loop, which would block forever.
        """
        try:
            self._check_thread()
        except WrongLoopError:
            coroutine.close()
            raise
        with self._submitting:
            if self._loop is None:
                coroutine.close()
                raise NotStartedError
            future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        return future.result()

    def _check_thread(self) -> None:
        if threading.current_thread() is self._thread:
            raise WrongLoopError(
                "app.sync() was called from the application's own event loop, which would block "
                "forever; use ctx.send(...) in an async callback"
            )

    def _stop_loop(self) -> None:
        with self._submitting:  # no other thread submits anything after this
            loop, self._loop = self._loop, None
        thread, self._thread = self._thread, None
        if loop is not None and thread is not None:
            asyncio.run_coroutine_threadsafe(_finish_other_calls(), loop).result()
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()


async def _finish_other_calls() -> None:
    """Let the calls of other threads finish, so that none waits for a stopped loop."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    if others:
        _, late = await asyncio.wait(others, timeout=_LAST_CALLS_TIMEOUT)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)
