"""``x.sync()``: a service for code without an event loop, from any number of threads.

All blocking forms of a process share one event loop, in one daemon thread: one connection for each
service, however many threads use it, and services in memory find each other. What runs there is a
copy of the service, so the service itself stays free for ``async`` code in another loop, and a
forked process makes copies of its own. Also here: closing what was opened on first use when its
event loop ends.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import logging
import os
import threading
import weakref
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from functools import wraps
from types import TracebackType
from typing import Any, ClassVar, Concatenate, Generic, ParamSpec, Self, TypeVar

from matador.errors import ShuttingDownError, WrongLoopError
from matador.model.options import Seconds
from matador.runtime.health import Health
from matador.runtime.metrics import Metrics
from matador.runtime.service import Service

log = logging.getLogger("matador")

P = ParamSpec("P")
S = TypeVar("S", bound=Service)
T = TypeVar("T")

THREAD = "matador-sync"
"""The name of the thread."""

_LAST_CALLS = 1.0  # seconds that calls of other threads may take to end after a shutdown
_PATIENCE = 10.0  # seconds for steps that take a fraction of a second unless the broker hangs


# -- the loop -------------------------------------------------------------------------------------


class _Background:
    """An event loop in a daemon thread that ends with its last user."""

    def __init__(self) -> None:
        self.users: set[_Life] = set()
        self.process = os.getpid()
        runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        self.loop = runner.get_loop()
        self._end = asyncio.Event()
        self._thread = threading.Thread(target=self._run, args=(runner,), name=THREAD, daemon=True)
        self._thread.start()

    def _run(self, runner: asyncio.Runner) -> None:
        with runner:
            runner.run(self._ended())

    async def _ended(self) -> None:
        await self._end.wait()

    @property
    def is_here(self) -> bool:
        """Whether the caller runs in its thread."""
        return threading.current_thread() is self._thread

    def end(self) -> None:
        """End the thread."""
        self.loop.call_soon_threadsafe(self._end.set)

    def join(self) -> None:
        """Wait until the thread has ended, unless the caller runs in it."""
        if not self.is_here:
            self._thread.join(_PATIENCE)


class _Life:
    """A copy of a service, and the background loop in which it runs."""

    def __init__(self, service: Service, background: _Background) -> None:
        self.service = service
        self.background = background
        self.calls = 0  # of threads, under the lock of the process
        self.tasks: set[asyncio.Task[Any] | None] = set()
        self.is_closed = False
        self.has_ended = threading.Event()

    async def call(self, function: Callable[[Any], Coroutine[Any, Any, T]]) -> T:
        """Start the copy if need be, and call ``function`` with it."""
        if self.is_closed:
            raise ShuttingDownError("it was shut down: call sync() again")
        task = asyncio.current_task()
        self.tasks.add(task)
        try:
            if not self.service.is_running:
                await self.service.start()
            return await function(self.service)
        finally:
            self.tasks.discard(task)

    async def close(self, timeout: Seconds | None) -> None:
        """Shut the copy down. Calls of other threads end, too, so that none waits forever."""
        self.is_closed = True
        try:
            await self.service.shutdown(timeout)
            await self._disconnect()
        finally:
            if self.tasks:
                _, late = await asyncio.wait([*filter(None, self.tasks)], timeout=_LAST_CALLS)
                for task in late:
                    task.cancel()
                await asyncio.gather(*late, return_exceptions=True)

    async def _disconnect(self) -> None:
        """Disconnect a transport object that was given, unless other services use it in this loop.
        Only this loop can disconnect it."""
        given = self.service.given_transport
        others = (one for one in list(self.background.users) if one is not self)
        if given is not None and all(one.service.given_transport is not given for one in others):
            await given.disconnect()

    async def close_and_leave(self) -> None:
        """``close`` without a caller; errors are logged."""
        try:
            await self.close(None)
        except Exception:
            log.exception("could not shut down an unused blocking service")
        finally:
            _leave(self)


class _Process:
    """The background loop of this process, if any. A forked process starts without one."""

    def __init__(self) -> None:
        self.lock = threading.Condition(threading.Lock())
        self.current: _Background | None = None
        self.threads: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
        self.abandoned: list[object] = []
        """Drop the objects of the parent process, which must be neither used nor closed here."""


_process = _Process()


def _forked() -> None:
    parent = _process.current
    _process.__init__()
    _process.abandoned.append(parent)


os.register_at_fork(after_in_child=_forked)


def _enter(state: _State, service: Service) -> _Life:
    """The running copy of a service in this process, for one call."""
    with _process.lock:
        if state.has_ended:
            raise ShuttingDownError(f"{service!r} was shut down: call sync() again, or start()")
        life, current = state.life, _process.current
        if life is None or life.background is not current:
            if life is not None and life.background.process != os.getpid():
                _process.abandoned.append(life)
            if current is None:
                current = _process.current = _Background()
            try:
                life = state.life = _Life(service.another(), current)
            except BaseException:
                _end_unused(current)
                raise
        life.background.users.add(life)
        life.calls += 1
        _process.threads.add(threading.current_thread())
        return life


def _called(life: _Life) -> None:
    """Record that a call has ended. Releases the background loop if the service could not be
    started."""
    with _process.lock:
        life.calls -= 1
        _process.lock.notify_all()
        used = life.calls or life.service.is_running or life.is_closed
    if not used:
        _leave(life)


def _leave(life: _Life) -> None:
    """Release the background loop. It ends with its last user."""
    background = life.background
    with _process.lock:
        if not background.is_here:  # late calls must not be submitted to a closed loop
            _process.lock.wait_for(lambda: not life.calls, _PATIENCE)
        background.users.discard(life)
        ended = _end_unused(background)
    if ended:
        background.join()


def _end_unused(background: _Background) -> bool:
    """End the loop if it has no users. Nothing is submitted to it after that."""
    if background.users:
        return False
    if _process.current is background:
        _process.current = None
    background.end()
    return True


def _close_all() -> None:
    """At the end of the program, close all open services in bounded time."""
    with _process.lock:
        background, _process.current = _process.current, None
        users = [] if background is None else list(background.users)
    if background is None:
        return
    closing = [asyncio.run_coroutine_threadsafe(one.close(None), background.loop) for one in users]
    for one in concurrent.futures.wait(closing, _PATIENCE).done:
        if (error := one.exception()) is not None:
            log.error("could not shut down at the end of the program: %s", error, exc_info=error)
    with _process.lock:
        _process.lock.wait_for(lambda: not any(one.calls for one in users), _PATIENCE)
    background.end()
    background.join()


def _main_thread_ends() -> None:
    """Close everything while executors still work, unless other threads still use it."""
    executors = getattr(concurrent.futures.thread, "_threads_queues", {})
    with _process.lock:
        used = list(_process.threads)
    here = threading.current_thread()
    if not any(t.is_alive() and not t.daemon and t is not here for t in used if t not in executors):
        _close_all()


def _close_at_exit() -> None:
    register: Callable[[Callable[[], None]], None] | None
    register = getattr(threading, "_register_atexit", None)
    assert concurrent.futures.ThreadPoolExecutor  # its handler is registered first, and runs last
    if register is not None:
        register(_main_thread_ends)
    atexit.register(_close_all)


_close_at_exit()


# -- the blocking form ----------------------------------------------------------------------------


class _State:
    """The state that outlives a blocking form when it is garbage-collected. Has no reference to the
    form."""

    def __init__(self) -> None:
        self.life: _Life | None = None
        self.has_ended = False
        self.entered = 0


def _collected(state: _State) -> None:
    """Close a service without references. Runs in any thread, so it takes no lock and never waits.

    The service is shut down in its own loop.
    """
    life = state.life
    if life is None or life.background.process != os.getpid() or life.is_closed:
        return
    loop = life.background.loop
    if not loop.is_closed():
        loop.call_soon_threadsafe(lambda: asyncio.ensure_future(life.close_and_leave()))


class Blocking(Generic[S]):
    """The blocking form of a service. Any number of threads may use it.

    The first call connects, or ``with``. The connection stays until ``shutdown``, the end of the
    ``with`` block, or the end of the program; it is also closed when neither the service nor this
    object is referenced any more. A process that was forked connects anew. Used in a thread that
    runs an event loop, it raises ``WrongLoopError``.

    Example:
        >>> with queue.sync() as emails:
        ...     emails.add("welcome", {"to": "ada@example.com"})
    """

    _called: ClassVar[str] = "x"
    """The name of the service in errors."""

    def __init__(self, service: S) -> None:
        self._service = service
        self._state = _State()
        weakref.finalize(self, _collected, self._state).atexit = False

    def __repr__(self) -> str:
        return f"<the blocking form of {self._service!r}>"

    @property
    def has_ended(self) -> bool:
        """Whether it was shut down and not started again."""
        return self._state.has_ended

    @property
    def running(self) -> S:
        """The service that runs in the background; before the start, the copy that would run."""
        life = self._state.life
        here = life is not None and life.background is _process.current
        return life.service if life is not None and here else self._service  # type: ignore[return-value]

    def start(self) -> None:
        """Connect. The first call of any other method does that, too.

        Raises:
            ConnectionFailedError: the broker cannot be reached, or refuses.
            WrongLoopError: this thread runs an event loop.

        Example:
            >>> publisher.sync().start()  # fails here if the broker cannot be reached
        """
        self.refuse_in_loop("start")
        with _process.lock:
            self._state.has_ended = False
        self.wait(_nothing)

    def shutdown(self, timeout: Seconds | None = None) -> None:
        """Let running calls and handlers finish, then disconnect. See the service's ``shutdown``.

        Other threads that call something meanwhile get a ``ShuttingDownError``. Does nothing if it
        was not started, or is shut down already.

        Example:
            >>> publisher.sync().shutdown(timeout=5)
        """
        state = self._state
        with _process.lock:
            life, began = state.life, state.has_ended
            if life is not None and life.background.is_here:
                raise _wrong_loop(self._called, "shutdown")
            state.has_ended, state.entered = True, 0
        if life is None or life.background.process != os.getpid():
            return
        if began:
            life.has_ended.wait()
            return
        try:
            if not life.background.loop.is_closed():
                closing = asyncio.run_coroutine_threadsafe(
                    life.close(timeout), life.background.loop
                )
                closing.result()
        finally:
            with _process.lock:
                state.life = None
            _leave(life)
            life.has_ended.set()

    def __enter__(self) -> Self:
        self.start()
        with _process.lock:
            self._state.entered += 1
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with _process.lock:
            self._state.entered -= 1
            last = self._state.entered <= 0
        if last:  # another thread may be in such a block, too
            self.shutdown()

    def wait(self, call: Callable[[S], Coroutine[Any, Any, T]]) -> T:
        """Call ``call`` with the running service, in its event loop, and return the result.

        For methods without a blocking form. Unlike the other methods, it may be used in a thread
        that runs an event loop, which is blocked meanwhile.

        Raises:
            WrongLoopError: this is the loop of the service, which would wait for itself.

        Example:
            >>> app.sync().wait(lambda app: app.apply_topology())
        """
        if (loop := self._service.tested_in) is not None:
            return self._in_test(loop, call)
        life = _enter(self._state, self._service)
        try:
            if life.background.is_here:
                raise _wrong_loop(self._called, "wait")
            future = asyncio.run_coroutine_threadsafe(life.call(call), life.background.loop)
            try:
                return future.result()
            except concurrent.futures.CancelledError:
                raise ShuttingDownError(
                    f"{self._service} was shut down meanwhile; an operation in progress may have "
                    "completed"
                ) from None
            except BaseException:
                future.cancel()  # Ctrl-C
                raise
        finally:
            _called(life)

    def _in_test(
        self, loop: asyncio.AbstractEventLoop, call: Callable[[S], Coroutine[Any, Any, T]]
    ) -> T:
        """``wait`` while a test runs the service itself: in the loop of the test."""
        try:
            here = asyncio.get_running_loop()
        except RuntimeError:
            here = None
        if here is loop:
            raise _wrong_loop(self._called, "wait")
        return asyncio.run_coroutine_threadsafe(call(self._service), loop).result()

    def health(self) -> Health:
        """The health of the service. Does not connect.

        Example:
            >>> publisher.sync().health().status
            'healthy'
        """
        return self.running.health()

    def metrics(self) -> Metrics:
        """The counters of the service.

        Example:
            >>> publisher.sync().metrics().messages_sent
            3
        """
        return self.running.metrics()

    def refuse_in_loop(self, method: str, of: str | None = None) -> None:
        """Raise ``WrongLoopError`` if this thread runs an event loop, which would be blocked."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return
        raise _wrong_loop(of or self._called, method)


def _wrong_loop(of: str, method: str) -> WrongLoopError:
    form = f"`async with {of}`" if method == "start" else f"`await {of}.{method}(...)`"
    handler = "; in a handler, `await ctx.send(...)`" if of == "app" else ""
    return WrongLoopError(
        f"{of}.sync().{method}() would block the event loop that runs in this thread: write {form}"
        f"{handler}"
    )


async def _nothing(service: Service) -> None:
    """The service is started; there is nothing else to do."""


def blocking(
    method: Callable[Concatenate[S, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Blocking[S], P], T]:
    """The blocking form of a method, with the same parameters and the result that it awaits.

    Example:
        >>> class SyncPinger(Blocking[Pinger]):
        ...     ping = blocking(Pinger.ping)
    """

    @wraps(method)
    def wait(self: Blocking[S], /, *args: P.args, **kwargs: P.kwargs) -> T:
        self.refuse_in_loop(method.__name__)
        return self.wait(lambda service: method(service, *args, **kwargs))

    return wait


# -- what is opened on first use ------------------------------------------------------------------


class AtLoopEnd:
    """Calls ``close`` when the running event loop ends, for resources that were opened on first
    use.

    ``asyncio.run`` and other runners close the async generators of their loop, after they have
    canceled its tasks and before they close it. This class registers such a generator.

    Example:
        >>> ending = await AtLoopEnd.of(self.shutdown)
        >>> await ending.forget()  # after another shutdown
    """

    def __init__(self, close: Callable[[], Awaitable[object]]) -> None:
        self._close: Callable[[], Awaitable[object]] | None = close
        self._waiting = self._wait()

    @classmethod
    async def of(cls, close: Callable[[], Awaitable[object]]) -> AtLoopEnd:
        """Register ``close`` for the end of the running loop."""
        made = cls(close)
        await anext(made._waiting)
        return made

    async def forget(self) -> None:
        """Cancel the registration."""
        if self._close is not None:  # otherwise it is being called
            self._close = None
            await self._waiting.aclose()

    async def _wait(self) -> AsyncGenerator[None]:
        try:
            yield
        finally:
            close, self._close = self._close, None
            if close is not None:
                await close()
