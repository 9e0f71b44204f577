"""A TCP proxy that behaves as networks do on a bad day. Runs in a thread of its own.

It forwards bytes and knows nothing of what they mean. A connection of which bytes were swallowed
stays dead, as with a peer that vanished: it never goes on in the middle of a stream.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
import time
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, Literal, Self, TypeAlias, TypeVar

Direction: TypeAlias = Literal["up", "down"]
"""``up``: from clients to the server; ``down``: from the server to clients."""

_HOST = "127.0.0.1"
_CHUNK = 1 << 16
_CHUNKS = 64  # read ahead of what was written, in each direction
_PATIENCE = 10.0
_RESET = struct.pack("ii", 1, 0)  # closing does not say goodbye

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Traffic:
    """What has gone through so far: connections accepted, those open now, bytes each way."""

    connections: int
    open: int
    up: int
    down: int


@dataclass(slots=True)
class _Way:
    """One direction: what is done to bytes that go there."""

    delay: float = 0.0
    rate: float | None = None
    bytes: int = 0


class Proxy:
    """Forwards connections to a server of this machine. Every method may be called from anywhere.

    Args:
        server: the port to forward to.
        port: where to listen; 0: on any that is free.

    Attributes:
        port: where it listens.
        accepted: when each connection came, in seconds of the monotonic clock.
    """

    def __init__(self, server: int, port: int = 0) -> None:
        self.accepted: list[float] = []
        self._server_port = server
        self._ways: dict[Direction, _Way] = {"up": _Way(), "down": _Way()}
        self._swallowing = False
        self._loop = asyncio.new_event_loop()
        self._passing = asyncio.Event()
        self._passing.set()
        self._listener: asyncio.Server | None = None
        self._links: set[_Link] = set()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._thread.start()
        self.port = port
        self._do(self._listen())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def traffic(self) -> Traffic:
        return Traffic(
            len(self.accepted), len(self._links), self._ways["up"].bytes, self._ways["down"].bytes
        )

    # -- faults -----------------------------------------------------------------------------------

    def heal(self) -> None:
        """Forward everything at once again, and accept new connections."""
        for way in self._ways.values():
            way.delay, way.rate = 0.0, None
        self._swallowing = False
        self._loop.call_soon_threadsafe(self._passing.set)
        self._do(self._listen())

    def delay(self, seconds: float, direction: Direction) -> None:
        """Bytes that go there arrive so much later. They do not wait for each other."""
        self._ways[direction].delay = seconds

    def limit(self, rate: float, direction: Direction) -> None:
        """Each connection passes so many bytes a second there."""
        self._ways[direction].rate = rate

    def hold(self) -> None:
        """Nothing passes until ``heal``, then all of it: packets lost, and sent again later."""
        self._loop.call_soon_threadsafe(self._passing.clear)

    def swallow(self, *, new: bool = True) -> None:
        """Both directions vanish, goodbyes too: half-open. Until ``heal`` for ``new`` connections,
        if they are meant as well."""
        self._swallowing = new
        self._do(self._kill_links())

    def half_close(self, direction: Direction) -> None:
        """On every connection, tell the end that bytes go to that no more will come."""
        self._do(self._half_close(direction))

    def reset(self) -> None:
        """Cut every connection: both ends are told by a reset."""
        self._do(self._reset())

    def refuse(self) -> None:
        """New connections are refused until ``heal``; those there are stay."""
        self._do(self._deafen())

    def close(self) -> None:
        """End everything."""
        if self._loop.is_closed():
            return
        self._do(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_PATIENCE)
        self._loop.close()

    # -- in its own thread ------------------------------------------------------------------------

    def _do(self, work: Coroutine[Any, Any, Value]) -> Value:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_PATIENCE)

    async def _listen(self) -> None:
        if self._listener is None:
            self._listener = await asyncio.start_server(
                self._accept, _HOST, self.port, limit=_CHUNK, reuse_address=True
            )
            self.port = self._listener.sockets[0].getsockname()[1]

    async def _deafen(self) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            for one in listener.sockets:
                self._loop.remove_reader(one.fileno())
            for _ in range(3):  # asyncio leaves a connection open that it accepts during the close
                await asyncio.sleep(0)
            listener.close()

    async def _half_close(self, direction: Direction) -> None:
        for link in self._links:
            writer = link.server if direction == "up" else link.client
            with contextlib.suppress(OSError, RuntimeError):
                writer.write_eof()

    async def _reset(self) -> None:
        for link in list(self._links):
            link.cut()

    async def _kill_links(self) -> None:
        for link in self._links:
            link.dead = True

    async def _end(self) -> None:
        await self._deafen()
        await self._reset()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for _ in range(3):  # for the connections that were cut to end
            await asyncio.sleep(0)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted.append(time.monotonic())
        opening = self._spawn(
            asyncio.open_connection(_HOST, self._server_port, limit=_CHUNK)  # ends with the proxy
        )
        try:
            from_server, to_server = await opening
        except (OSError, asyncio.CancelledError):
            _cut(writer)
            return
        link = _Link(writer, to_server)
        if self._listener is None:  # it came just before the others were refused
            link.cut()
            return
        self._links.add(link)
        pumps = [
            self._spawn(self._pump(link, reader, to_server, self._ways["up"])),
            self._spawn(self._pump(link, from_server, writer, self._ways["down"])),
        ]
        await asyncio.wait(pumps)
        link.close()
        self._links.discard(link)

    def _spawn(self, work: Coroutine[Any, Any, Value]) -> asyncio.Task[Value]:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _pump(
        self, link: _Link, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: _Way
    ) -> None:
        """Carry one direction of a connection to its end."""
        pipe: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_CHUNKS)
        writing = self._spawn(self._write(link, pipe, writer, way))
        try:
            while True:
                data = await reader.read(_CHUNK)
                link.dead = link.dead or self._swallowing
                await pipe.put((self._loop.time() + way.delay, data))
                if not data:
                    break
            await writing
        except OSError:  # one end was reset: so is the other, unless nobody may know
            if not (link.dead or self._swallowing):
                link.cut()
        finally:
            writing.cancel()

    async def _write(
        self,
        link: _Link,
        pipe: asyncio.Queue[tuple[float, bytes]],
        writer: asyncio.StreamWriter,
        way: _Way,
    ) -> None:
        while True:
            due, data = await pipe.get()
            await asyncio.sleep(max(0.0, due - self._loop.time()))
            await self._passing.wait()
            if link.dead or self._swallowing:
                link.dead = True
                if data:
                    continue
                await link.cut_off.wait()  # a goodbye that never arrives
                return
            try:
                if not data:
                    writer.write_eof()
                    return
                writer.write(data)
                await writer.drain()
            except (OSError, RuntimeError):
                link.cut()
                return
            way.bytes += len(data)
            if way.rate is not None:
                await asyncio.sleep(len(data) / way.rate)


class _Link:
    """One connection: both ends of it."""

    def __init__(self, client: asyncio.StreamWriter, server: asyncio.StreamWriter) -> None:
        self.client = client
        self.server = server
        self.dead = False
        self.cut_off = asyncio.Event()

    def cut(self) -> None:
        """Reset both ends."""
        self.cut_off.set()
        _cut(self.client)
        _cut(self.server)

    def close(self) -> None:
        """Close both ends."""
        self.client.close()
        self.server.close()


def _cut(writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        there: socket.socket = writer.get_extra_info("socket")
        there.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    writer.transport.abort()
