"""The application for code without an event loop: every call waits for its outcome."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from functools import wraps
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from matador.errors import NotStartedError, WrongLoopError
from matador.events.application import Application
from matador.model.options import Seconds
from matador.runtime.activity import AppState

P = ParamSpec("P")
T = TypeVar("T")

_LAST_CALLS = 1.0


def _blocking(
    method: Callable[Concatenate[Application, P], Coroutine[Any, Any, T]],
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

    def __init__(self, app: Application) -> None:
        self._app = app
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._life = threading.RLock()
        self._submitting = threading.Lock()

    @property
    def app(self) -> Application:
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

    send = _blocking(Application.send)
    send_many = _blocking(Application.send_many)
    wait_idle = _blocking(Application.wait_idle)
    stop_receiving = _blocking(Application.stop_receiving)

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
