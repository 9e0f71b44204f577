"""Child processes with a socket to the parent. A child can never block the parent."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import signal
import socket
import struct
import threading
from collections.abc import Callable
from typing import Any

_SIZE = struct.Struct("!I")  # before each message
_PATIENCE = 2.0  # seconds that a child may take to end


class ChildDiedError(Exception):
    """The process has ended; the text says how."""


class Child:
    """A child process, from the view of its parent. Belongs to an event loop.

    ``serve(parent, *arguments)`` runs in the process; the main module must be importable there.
    ``leads``: its own child processes end with it.
    """

    def __init__(
        self, name: str, serve: Callable[..., None], *arguments: Any, leads: bool = False
    ) -> None:
        self._leads = leads
        self._socket, theirs = socket.socketpair()
        self._process = multiprocessing.get_context("spawn").Process(
            target=_run, args=(theirs, leads, serve, *arguments), name=name, daemon=True
        )
        self._process.start()
        theirs.close()
        self._stream: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    @property
    def alive(self) -> bool:
        """Whether the child still runs."""
        return self._process.is_alive()

    async def send(self, message: bytes) -> None:
        """Send a message to the child.

        Raises:
            ChildDiedError: it has ended.
        """
        _, writer = await self._connected()
        try:
            writer.write(_SIZE.pack(len(message)) + message)
            await writer.drain()
        except ConnectionError:
            raise await self._died() from None

    async def receive(self) -> bytes:
        """Wait for the next message of the child.

        Raises:
            ChildDiedError: it has ended.
        """
        reader, _ = await self._connected()
        try:
            (size,) = _SIZE.unpack(await reader.readexactly(_SIZE.size))
            return await reader.readexactly(size)
        except (EOFError, ConnectionError):
            raise await self._died() from None

    def kill(self) -> None:
        """Kill the child. A thread waits for its exit, so that no zombie remains."""
        if self._leads and (pid := self._process.pid) is not None:
            with contextlib.suppress(OSError):  # it has not become a leader yet, or is gone
                os.killpg(pid, signal.SIGKILL)
        self._process.kill()
        self.close()
        threading.Thread(target=self._process.join, daemon=True).start()

    def close(self) -> None:
        """Ask the child to end."""
        if self._stream is None:
            self._socket.close()
        else:
            self._stream[1].transport.abort()

    def join(self) -> None:
        """Wait for the exit of the child, with a short limit. Blocks."""
        self._process.join(_PATIENCE)
        if self._process.exitcode is None:
            self._process.kill()
            self._process.join()

    async def _connected(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._stream is None:
            self._stream = await asyncio.open_connection(sock=self._socket)
        return self._stream

    async def _died(self) -> ChildDiedError:
        await asyncio.to_thread(self._process.join, _PATIENCE)
        code = self._process.exitcode
        if code is not None and code < 0:
            with contextlib.suppress(ValueError):
                return ChildDiedError(f"was killed by {signal.Signals(-code).name}")
        return ChildDiedError(f"ended with exit code {code}")


class Parent:
    """The parent, from the view of the child. Blocks; any thread may send."""

    def __init__(self, connection: socket.socket) -> None:
        self._stream = connection.makefile("rwb")
        self._lock = threading.Lock()

    def receive(self) -> bytes:
        """The next message; raises ``EOFError`` once the parent is gone."""
        size = self._stream.read(_SIZE.size)
        if len(size) < _SIZE.size:
            raise EOFError
        return self._stream.read(*_SIZE.unpack(size))

    def send(self, message: bytes) -> None:
        """Send a message."""
        with self._lock:
            self._stream.write(_SIZE.pack(len(message)) + message)
            self._stream.flush()


def _run(
    connection: socket.socket, leads: bool, serve: Callable[..., None], *arguments: Any
) -> None:
    """Serve until the parent closes the connection, or dies."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C and ends this process
    if leads:
        os.setsid()
    threading.Thread(target=_end_with_parent, args=(leads,), daemon=True).start()
    with contextlib.suppress(EOFError, OSError):
        serve(Parent(connection), *arguments)
    if leads:
        os.killpg(0, signal.SIGKILL)


def _end_with_parent(leads: bool) -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        if leads:
            os.killpg(0, signal.SIGKILL)
        os._exit(1)
