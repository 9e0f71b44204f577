"""Threads for sync callbacks. They never keep a process from ending.

The interpreter joins the executors of the standard library at exit, so one hanging callback would
hang its process. They also lose a ``StopIteration``, which no future can hold.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Generic, TypeAlias, TypeVar

T = TypeVar("T")

NAME = "matador-callback"
"""The prefix of the names of these threads."""

_Work: TypeAlias = Callable[[], None]


class Came(Generic[T]):
    """The outcome of a call: a value or an exception."""

    __slots__ = ("_error", "_value")

    def __init__(self, value: Any = None, error: BaseException | None = None) -> None:
        self._value = value
        self._error = error

    def get(self) -> T:
        """The value; raises the exception of the call.

        In a coroutine, a ``StopIteration`` becomes a ``RuntimeError``, as always in coroutines.
        """
        error, self._error = self._error, None
        if error is None:
            return self._value
        try:
            raise error
        finally:
            del error  # or its traceback would keep it in a cycle


class Threads:
    """A pool of at most ``most`` daemon threads, made when they are needed."""

    def __init__(self, most: int, name: str = NAME) -> None:
        self._most = most
        self._name = name
        self._work: SimpleQueue[_Work | None] = SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._lock = threading.Lock()
        self._made = 0
        self._closed = False

    def start(self, call: Callable[[], T]) -> asyncio.Future[Came[T]]:
        """Run ``call`` in a thread. The future never has an exception: see ``Came``.

        If the future is canceled before a thread takes the call, the call is not made. A running
        call cannot be stopped.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Came[T]] = loop.create_future()

        def work() -> None:
            if future.cancelled():
                return
            came: Came[T]
            try:
                came = Came(call())
            except BaseException as error:  # noqa: BLE001 - raised again where it is awaited
                came = Came(error=error)
            with contextlib.suppress(RuntimeError):  # the loop is closed, so there is no waiter
                loop.call_soon_threadsafe(_resolve, future, came)

        with self._lock:
            if self._closed:
                raise RuntimeError("the threads are closed")
            self._work.put(work)
            if not self._idle.acquire(blocking=False) and self._made < self._most:
                self._made += 1
                name = f"{self._name}-{self._made}"
                threading.Thread(target=self._serve, name=name, daemon=True).start()
        return future

    def close(self) -> None:
        """End idle threads; busy ones end after their call."""
        with self._lock:
            self._closed = True
            for _ in range(self._made):
                self._work.put(None)

    def _serve(self) -> None:
        while True:
            work = self._work.get()
            if work is None:
                return
            work()
            del work
            self._idle.release()


def _resolve(future: asyncio.Future[Came[Any]], came: Came[Any]) -> None:
    if not future.done():
        future.set_result(came)
