"""``Matador``: the application and its life; ``SyncMatador``: the same without an event loop."""

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
from matador.events.config import DEFAULT_MAX_MESSAGE_SIZE, AppConfig
from matador.events.dead_letters import DeadLetterOffice
from matador.events.fanout import UnsupportedDelays
from matador.events.fit import check_fit
from matador.events.handler import MalformedStrategy
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

_LAST_CALLS = 1.0


class Matador(SendsEvents):
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
        config = AppConfig.of(
            transport,
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

    # -- what it is made of -----------------------------------------------------------------------

    @property
    def schema(self) -> Schema:
        """Events and their subscribers."""
        return self._config.schema

    @property
    def topology(self) -> Topology:
        """The queues."""
        return self._config.topology

    @property
    def transport(self) -> Transport:
        """The broker."""
        return self._config.transport

    @property
    def codec(self) -> Codec:
        """How envelopes become bytes."""
        return self._config.used_codec

    @property
    def checkpoints(self) -> CheckpointStore:
        """Where resumable subscribers keep their steps."""
        return self._config.checkpoints

    @property
    def consume_from(self) -> tuple[str, ...]:
        """The queues it consumes, by name."""
        return self._config.consume_from

    @property
    def dead_letters(self) -> DeadLetterOffice:
        """The dead letters: to look at, to send back, to delete.

        Example:
            >>> async for letter in app.dead_letters.browse():
            ...     print(letter.id, letter.stored.reason)
        """
        return DeadLetterOffice(
            transport=self.transport,
            topology=self.topology,
            codec=self.codec,
            checkpoints=self.checkpoints,
            clock=self._config.clock,
            check=self._check_loop,
        )

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
        return Health(self.transport.state) if self._running is None else self._running.health

    def with_(self, **changes: Any) -> Self:
        """Another application with the same configuration but for ``changes``; not started.

        Takes the options of ``Matador``. Made with a URL, the other has its own connection. Made
        with a transport object, or in memory, they share it, so only one of them runs at a time.

        Raises:
            ConfigurationError: an option is unknown or invalid.
            LifecycleError: it is running, and a second connection cannot be made.

        Example:
            >>> slow = app.with_(topology=Topology("shop", queues=["events"]), shutdown=300)
        """
        if "transport" not in changes:
            if self._config.url is not None and not self.transport.capabilities.in_process:
                changes = {**changes, "transport": self._config.url}
            elif self._lifecycle.status not in ("new", "stopped"):
                raise LifecycleError(
                    f"the application is running on {self.transport.name}, which cannot be opened "
                    f"a second time from here; shut it down first, or make it with a URL"
                )
        other = copy(self)  # with what a subclass has added
        SendsEvents.__init__(other, self._config.with_(**changes))
        return other

    def producer(self) -> Self:
        """The same application, not started, that only sends: for a web process, or another thread.

        Made with a URL, it has its own connection: see ``with_``.

        Raises:
            LifecycleError: it is running, and a second connection cannot be made.

        Example:
            >>> async with app.producer() as shop:
            ...     await shop.send(OrderPlaced(order_id="1", amount=5))
        """
        return self.with_(consume_from=())

    @contextmanager
    def configured(self, **changes: Any) -> Generator[Self]:
        """Run this very application in another configuration for a while: for tools and tests.

        Code that refers to the application goes on to use it. ``hooks`` come before those it has.
        It must be stopped before, and by the end.

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
        """``configured`` for good."""
        if self._lifecycle.status not in ("new", "stopped"):
            raise LifecycleError("a running application cannot be changed; shut it down first")
        if "hooks" in changes:
            changes = {**changes, "hooks": (*changes["hooks"], *self._config.hooks)}
        self._configure(self._config.with_(**changes))

    def _configure(self, config: AppConfig) -> None:
        self._config = config
        self._lifecycle.options = config.shutdown

    def check(self) -> None:
        """Check that schema, topology and transport go together, as a start does first.

        Raises:
            InvalidSchemaError, SubscriberIsStubError, UnsupportedError: see ``start``.
        """
        check_fit(
            self.schema,
            self.topology,
            self.transport,
            consume_from=self.consume_from,
            delivery=self._config.delivery,
            checkpoints=self.checkpoints,
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
        running = self._running
        if running is None or running.worker is None or not self._lifecycle.begin_stop_receiving():
            return False
        await running.stop_receiving()
        self._lifecycle.receiving_stopped()
        return True

    async def resume_receiving(self) -> bool:
        """Receive again after ``stop_receiving``, over the same connection.

        What was received before is finished first. False if receiving was not stopped.
        """
        self._check_loop()
        running = self._running
        return running is not None and await self._lifecycle.resume(running.receive_again)

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
        await self._lifecycle.shutdown(self._ending, timeout)

    async def force_shutdown(self) -> None:
        """Shut down now, cancelling what runs. Also hurries a shutdown that is under way."""
        self._check_loop()
        self._lifecycle.hurry()
        await self._lifecycle.shutdown(self._ending, 0)

    def run(self) -> None:
        """Start, and block until SIGTERM or SIGINT; then shut down. A second signal forces it.

        For worker processes.

        Example:
            >>> if __name__ == "__main__":
            ...     app.run()
        """
        run(self)

    def sync(self) -> SyncMatador:
        """The same application for code without an event loop; it runs one in a thread.

        Example:
            >>> with app.sync() as shop:
            ...     shop.send(OrderPlaced(order_id="1", amount=5))
        """
        return SyncMatador(self)

    async def apply_topology(self) -> Sequence[TopologyNote]:
        """Create the queues that are missing; what the transport could not honour."""
        self._check_loop()
        return await apply_topology(self._config)

    # -- inside -----------------------------------------------------------------------------------

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
        self._loop = None  # it may be started in another one

    def _ending(self) -> Running:
        assert self._running is not None, "the life cycle knows"
        return self._running


# -- for code without an event loop ---------------------------------------------------------------


def _blocking(
    method: Callable[Concatenate[Matador, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[SyncMatador, P], T]:
    """The method of the application with the same signature, waiting for its outcome."""

    @wraps(method)
    def wait(self: SyncMatador, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.wait(method(self.app, *args, **kwargs))

    return wait


class SyncMatador:
    """Runs an application in a thread of its own. Safe to use from any number of threads.

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
        """See ``Matador.shutdown``; ends the thread too."""
        self._check_thread()
        with self._life:
            if self._thread is None:
                return
            try:
                self.wait(self._app.shutdown(timeout))
            finally:
                self._stop_loop()

    def wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the application's loop, and wait for what it returns.

        Raises:
            NotStartedError: there is no loop yet.
            WrongLoopError: called in the application's own loop, which would wait for itself.
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
                "app.sync() was called by code that runs in the application's own event loop, "
                "which would wait for itself for ever; in an async callback use ctx.send(...)"
            )

    def _stop_loop(self) -> None:
        with self._submitting:  # from here on nobody else gives the loop anything to do
            loop, self._loop = self._loop, None
        thread, self._thread = self._thread, None
        if loop is not None and thread is not None:
            asyncio.run_coroutine_threadsafe(_finish_the_others(), loop).result()
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()


async def _finish_the_others() -> None:
    """Let calls of other threads come to their end: none may wait for a loop that has stopped."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    if others:
        _, late = await asyncio.wait(others, timeout=_LAST_CALLS)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)
