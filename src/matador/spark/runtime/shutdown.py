"""Stops tasks on a cluster early, and turns signals into events.

Spark cannot ask a task to stop: cancelling it kills its process and what it is working on. So the
driver listens on a port, and each task keeps a connection to it. When the connection ends, because
the driver stops or is gone, the task stops. Where the port cannot be reached, the task stops at the
end of its slice.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import threading
from collections.abc import Generator
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

log = logging.getLogger("matador.spark")

_CONNECT_WITHIN = 5.0
_LOOK_EVERY = 0.1


@dataclass(frozen=True, slots=True)
class StopAddress:
    """The address where tasks learn that they must stop. Pickled with them."""

    host: str
    port: int

    async def wait(self) -> bool:
        """Wait until the driver stops; returns False at once if it cannot be reached."""
        try:
            async with asyncio.timeout(_CONNECT_WITHIN):
                reader, writer = await asyncio.open_connection(self.host, self.port)
        except OSError as error:
            log.warning("cannot learn of an early stop from %s:%d: %s", self.host, self.port, error)
            return False
        try:
            with contextlib.suppress(OSError):  # a driver that is killed breaks the connection
                await reader.read()
            return True
        finally:
            writer.close()


class StopLine:
    """The driver's side: accepts connections, and closes them once ``stop`` is set.

    Later connections are closed at once.

    Example:
        >>> with StopLine("127.0.0.1", stop) as line:
        ...     start_tasks(line.address("127.0.0.1"))
    """

    def __init__(self, bind: str, stop: threading.Event) -> None:
        family = socket.AF_INET6 if ":" in bind else socket.AF_INET
        self._listener = socket.create_server((bind, 0), family=family)
        self._listener.settimeout(_LOOK_EVERY)
        self._stop = stop
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="matador-stop-line", daemon=True)

    def address(self, host: str) -> StopAddress:
        """The address for tasks that reach this machine as ``host``."""
        return StopAddress(host, self._listener.getsockname()[1])

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._closed.set()
        self._thread.join()

    def _run(self) -> None:
        with self._listener:
            while not self._closed.is_set():
                with contextlib.suppress(OSError):  # nobody yet, or closed before it was accepted
                    connection, _ = self._listener.accept()
                    threading.Thread(target=self._hold, args=(connection,), daemon=True).start()

    def _hold(self, connection: socket.socket) -> None:
        """Keep a connection open until the driver stops or the task ends."""
        with connection:
            connection.settimeout(_LOOK_EVERY)
            while not (self._stop.is_set() or self._closed.is_set()):
                try:
                    connection.recv(1)
                except TimeoutError:
                    continue
                except OSError:
                    return
                return  # tasks send nothing: this one has ended


@contextlib.contextmanager
def signals_set(stop: threading.Event) -> Generator[None]:
    """Have SIGTERM and SIGINT set an event; does nothing outside the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def signalled(number: int, frame: Any) -> None:
        log.info("%s: stopping after the work in progress is finished", signal.Signals(number).name)
        stop.set()

    before = {one: signal.signal(one, signalled) for one in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
