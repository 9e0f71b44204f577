"""``MetricsServer``: metrics and health checks of a worker, over HTTP.

A small server in the worker's event loop, so that health checks fail if the loop is blocked. It
serves three paths, one request per connection, and reads no bodies. It refuses requests that are
too large, too slow or too many; a new connection replaces an idle one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable, Sequence
from http import HTTPStatus
from types import TracebackType
from typing import Self

import msgspec

from matador.errors import ConfigurationError
from matador.model.options import whole_number
from matador.observe.metrics import Metrics
from matador.observe.probes import HasHealth, Probe, live, ready, together

log = logging.getLogger("matador.metrics")

LOOPBACK = "127.0.0.1"

_LONGEST_REQUEST = 8192  # bytes, with all its headers
_PATIENCE = 5.0  # seconds to send a request, and again to read the answer
_MOST_CONNECTIONS = 32
_METHODS = ("GET", "HEAD")
_TEXT = "text/plain; version=0.0.4; charset=utf-8"
_JSON = "application/json"


class MetricsServer:
    """Serves ``/metrics``, ``/health/live`` and ``/health/ready`` of one process.

    Health checks return 200 or 503, with the reason as JSON. ``matador worker --metrics-port`` does
    this for you. There is no login: a client that reaches the port can read the names of your
    queues and events, but no payload. So it listens on this machine only, unless you give another
    host.

    Args:
        source: the application or worker, or several that run in this process.
        metrics: the content of ``/metrics``. None: there is no such page.
        host: the address to listen on.
        port: the port; 0 for any that is free.

    Raises:
        ConfigurationError: it cannot listen there.

    Example:
        >>> async with app, MetricsServer(app, metrics, port=9000):
        ...     await stopped.wait()
    """

    def __init__(
        self,
        source: HasHealth | Sequence[HasHealth],
        metrics: Metrics | None = None,
        *,
        host: str = LOOPBACK,
        port: int = 9000,
    ) -> None:
        self._sources = [source] if isinstance(source, HasHealth) else list(source)
        self._metrics = metrics
        whole_number(port, "MetricsServer: port", minimum=0)
        self._socket = _listening(host, port)
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._silent: dict[asyncio.Task[None], None] = {}  # have sent no request yet; oldest first
        self._rendering = asyncio.Lock()

    @property
    def port(self) -> int:
        """The port it listens on."""
        return self._socket.getsockname()[1]

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def start(self) -> None:
        """Start to serve requests."""
        self._server = await asyncio.start_server(
            self._accept, sock=self._socket, limit=_LONGEST_REQUEST
        )
        host, port = self._socket.getsockname()[:2]
        log.info("metrics and health checks on http://%s:%d", _in_url(host), port)

    async def close(self) -> None:
        """Stop serving. Idempotent."""
        server, self._server = self._server, None
        if server is not None:
            server.close()
            for task in self._connections:
                task.cancel()
            await asyncio.gather(*self._connections, return_exceptions=True)
        self._socket.close()

    # -- one request ------------------------------------------------------------------------------

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._connections) >= _MOST_CONNECTIONS:
            if not self._silent:
                writer.transport.abort()
                return
            oldest = next(iter(self._silent))
            oldest.cancel()  # otherwise silent clients would make health checks fail
            self._ended(oldest)
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._connections.add(task)
        self._silent[task] = None
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._connections.discard(task)
        self._silent.pop(task, None)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        try:
            request = await self._request(reader)
            if task is not None:
                self._silent.pop(task, None)
            status, kind, body, head = await self._answer(request)
            lines = [
                f"HTTP/1.1 {status.value} {status.phrase}",
                f"Content-Type: {kind}",
                f"Content-Length: {len(body)}",
                "Cache-Control: no-store",
                "X-Content-Type-Options: nosniff",
                "Connection: close",
            ]
            if status == HTTPStatus.METHOD_NOT_ALLOWED:
                lines.append(f"Allow: {', '.join(_METHODS)}")
            writer.write("\r\n".join([*lines, "", ""]).encode() + (b"" if head else body))
            async with asyncio.timeout(_PATIENCE):
                await writer.drain()
                writer.close()
                await writer.wait_closed()
        except (OSError, TimeoutError, EOFError):
            pass  # the client disconnected or is too slow
        except Exception:
            log.exception("a request for metrics or health could not be answered")
        finally:
            writer.transport.abort()  # whatever is left of it

    async def _request(self, reader: asyncio.StreamReader) -> bytes | HTTPStatus:
        """A request with its headers, or the status for an unreadable one."""
        try:
            async with asyncio.timeout(_PATIENCE):
                return await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            return HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
        except TimeoutError:
            return HTTPStatus.REQUEST_TIMEOUT

    async def _answer(self, request: bytes | HTTPStatus) -> tuple[HTTPStatus, str, bytes, bool]:
        """The status, the type and the body of the answer, and whether to leave out the body."""
        if isinstance(request, HTTPStatus):
            return *_plain(request), False
        parts = request.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
        if len(parts) != 3 or not parts[2].startswith("HTTP/1."):
            return *_plain(HTTPStatus.BAD_REQUEST), False
        method, path = parts[0], parts[1].partition("?")[0]
        if method not in _METHODS:
            return *_plain(HTTPStatus.METHOD_NOT_ALLOWED), False
        return *await self._page(path), method == "HEAD"

    async def _page(self, path: str) -> tuple[HTTPStatus, str, bytes]:
        if path == "/metrics" and self._metrics is not None:
            await self._metrics.refresh()
            async with self._rendering:  # in a thread, so that the worker is not blocked
                text = await asyncio.to_thread(self._metrics.text)
            return HTTPStatus.OK, _TEXT, text
        probes: dict[str, Callable[[HasHealth], Probe]] = {
            "/health/live": live,
            "/health/ready": ready,
        }
        if path not in probes:
            return _plain(HTTPStatus.NOT_FOUND)
        probe = together([probes[path](one) for one in self._sources])
        status = HTTPStatus.OK if probe.ok else HTTPStatus.SERVICE_UNAVAILABLE
        return status, _JSON, msgspec.json.encode({"ok": probe.ok, **probe.details}) + b"\n"


def _plain(status: HTTPStatus) -> tuple[HTTPStatus, str, bytes]:
    return status, "text/plain", status.phrase.encode() + b"\n"


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _listening(host: str, port: int) -> socket.socket:
    """A listening socket. Created before anything is started, so that a wrong port fails at once.

    Raises:
        ConfigurationError: it cannot listen there.
    """
    made: socket.socket | None = None
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        made = socket.socket(family, kind, protocol)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
        made.listen()
        made.setblocking(False)
    except (OSError, OverflowError) as error:
        if made is not None:
            with contextlib.suppress(OSError):
                made.close()
        raise ConfigurationError(
            f"cannot serve metrics on {_in_url(host)}:{port} ({error}); choose another host or port"
        ) from error
    return made
