"""Stops tasks on a cluster early, and turns signals into events.

Spark cannot ask a task to stop: canceling it kills its process and its work. So the
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
import socketserver
import threading
from collections.abc import Generator
from dataclasses import dataclass
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


class _Held(socketserver.BaseRequestHandler):
    """The connection of a task: kept open until the driver stops or the task ends."""

    def handle(self) -> None:
        line = self.server
        assert isinstance(line, StopLine)
        self.request.settimeout(_LOOK_EVERY)
        while not (line.stop.is_set() or line.closed.is_set()):
            try:
                self.request.recv(1)
            except TimeoutError:
                continue
            except OSError:
                return
            return  # tasks send nothing: this one has ended


class StopLine(socketserver.ThreadingTCPServer):
    """The driver's side: accepts connections, and closes them once ``stop`` is set."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, bind: str, stop: threading.Event) -> None:
        self.address_family = socket.AF_INET6 if ":" in bind else socket.AF_INET
        super().__init__((bind, 0), _Held)
        self.stop = stop
        self.closed = threading.Event()

    def address(self, host: str) -> StopAddress:
        """The address for tasks that reach this machine as ``host``."""
        return StopAddress(host, self.socket.getsockname()[1])

    def __enter__(self) -> Self:
        threading.Thread(target=self.serve_forever, args=(_LOOK_EVERY,), daemon=True).start()
        return self

    def __exit__(self, *raised: object) -> None:
        self.closed.set()
        self.shutdown()
        self.server_close()


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
