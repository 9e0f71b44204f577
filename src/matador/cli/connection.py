"""Loads an application and connects to its broker, without consuming and without creating files."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import sys
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Sequence
from typing import Any, TypeVar

from matador.cli.output import (
    FAILED,
    CommandError,
    complain,
    show_logs,
    warn,
    wrong_usage,
)
from matador.cli.terminal import for_remarks
from matador.errors import (
    ApplicationImportError,
    ConfigurationError,
    ConnectionFailedError,
    NotStartedError,
)
from matador.runtime.checkpoints import CheckpointStore
from matador.runtime.connection import connect_within
from matador.runtime.service import Service
from matador.transports.base import LocalStorage, Transport, members_of

T = TypeVar("T")

_GRACE = 2.0
_PROBE_AFTER = 2.0
_PROBE_TIME = 1.0
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_ADDRESS = re.compile(r"(?P<host>[\w.:-]+):(?P<port>\d+)")
_ANSWERS = {
    b"AMQP": "RabbitMQ",
    b"+PONG": "Redis",
    b"-NOAUTH": "Redis",
    b"-DENIED": "Redis",
    b"HTTP/": "an HTTP server",
    b"SSH-": "an SSH server",
    b"\x15\x03": "a TLS server",
}
"""How a server begins its answer to Redis's PING, whatever it speaks itself."""


def imported(find: Callable[[], T], level: int) -> T:
    """What ``find`` imports for a command. What the module prints goes to stderr.

    Log records are printed from ``level`` up afterwards.

    Raises:
        UsageError: there is no such file, module or attribute, or it is something else.
        CommandError: the module raised an error while it was imported.
    """
    try:
        with (
            contextlib.redirect_stdout(for_remarks(sys.stderr)),
            wrong_usage(ConfigurationError),
        ):
            found = find()
    except ApplicationImportError as error:
        raise CommandError(str(error)) from error
    show_logs(level)
    return found


@contextlib.asynccontextmanager
async def connected(
    services: Sequence[Service], wait: float | None = None, queues: Sequence[Service] = ()
) -> AsyncGenerator[None]:
    """Services with their transports connected and their checkpoints open, not started.

    ``queues``: those of jobs that are looked at, which open themselves on their first use.

    ``wait``: seconds for which a broker that cannot be reached is tried again.

    Raises:
        CommandError: messages are inside another process, or were never stored.
        ConnectionFailedError: a broker cannot be reached.
    """
    for one in services:
        require_shared(one)
        missing = missing_storage(one.transport)
        if missing is not None:
            raise CommandError(
                f"{missing} does not exist yet: start a worker, send a message, or run "
                f"`matador topology apply`"
            )
    async with contextlib.AsyncExitStack() as opened:
        for transport in dict.fromkeys(one.transport for one in services):
            await connect(transport, wait)
            opened.push_async_callback(transport.disconnect)
        for one in queues:
            opened.push_async_callback(one.shutdown)
        for one in services:
            store: CheckpointStore | None = getattr(one, "checkpoints", None)
            if store is not None:
                await store.open()
                opened.push_async_callback(store.close)
        yield


async def connect(transport: Transport, wait: float | None = None) -> None:
    """Connect a transport, trying again for ``wait`` seconds.

    Warns of those in a group that cannot be reached: what they store is not seen.

    Raises:
        ConnectionFailedError: the broker cannot be reached, or something else runs at its address.
    """
    connecting = asyncio.ensure_future(connect_within(transport, wait or 0.0))
    try:
        await asyncio.wait([connecting], timeout=_PROBE_AFTER)
        # Some servers wait in silence for the right protocol; so would we.
        if not connecting.done() and (diagnosis := await _wrong_server(transport)):
            raise ConnectionFailedError(diagnosis)
        await connecting
    except ConnectionFailedError as error:
        diagnosis = connecting.done() and await _wrong_server(transport)
        if not diagnosis:
            raise
        raise ConnectionFailedError(diagnosis) from error
    finally:
        connecting.cancel()
    for one in members_of(transport):
        if one.state.status != "connected":
            warn(f"{one.name} is {one.state}")


async def _wrong_server(transport: Transport) -> str | None:
    """A text that says which other server runs at the transport's address; None if unknown."""
    description = repr(transport)
    address = _ADDRESS.search(description)
    if address is None:
        return None
    found = await _server_at(address["host"], int(address["port"]))
    if found is None or found in description:
        return None
    return f"the server at {address[0]} is {found}, not {transport.name}: check the URL's port"


async def _server_at(host: str, port: int) -> str | None:
    writer = None
    try:
        async with asyncio.timeout(_PROBE_TIME):
            reader, writer = await asyncio.open_connection(host, port)
            writer.write(b"PING\r\n\r\n")
            answer = await reader.read(16)
    except (OSError, TimeoutError):
        return None
    finally:
        if writer is not None:
            writer.close()
    return next((name for start, name in _ANSWERS.items() if answer.startswith(start)), None)


def require_shared(service: Service) -> None:
    """Check that other processes can see the messages of a service.

    Raises:
        CommandError: each process has its own.
    """
    if in_process(service):
        raise CommandError(
            "the transport 'memory' keeps messages inside each process, so this command cannot see "
            "or send any (try `matador run`)"
        )


def in_process(service: Service) -> bool:
    """Whether the service keeps its messages inside this process."""
    try:
        return service.transport.capabilities.in_process
    except NotStartedError:  # a memory that is found in the event loop that starts it
        return True


def missing_storage(transport: Transport) -> str | None:
    """The file that connecting would create; None if it exists or the transport has none."""
    return transport.missing_storage if isinstance(transport, LocalStorage) else None


def run_within(
    work: Coroutine[Any, Any, T],
    timeout: float,
    what: str,
    consequence: Callable[[], str] = lambda: "",
) -> T:
    """Run a coroutine, and give up after ``timeout`` seconds, whatever it is waiting for.

    Raises:
        CommandError: it took too long.
    """

    def message() -> str:
        return f"{what} took longer than {timeout:g} s{consequence()}"

    # A thread cannot be cancelled: if one blocks, the process ends without it.
    emergency = threading.Timer(timeout + _GRACE, _exit, [message])
    emergency.daemon = True
    emergency.start()

    async def bounded() -> T:
        async with asyncio.timeout(timeout):
            return await work

    try:
        return asyncio.run(bounded())
    except TimeoutError:
        raise CommandError(message()) from None
    finally:
        emergency.cancel()


def _exit(message: Callable[[], str]) -> None:
    complain(message())
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(FAILED)


@contextlib.contextmanager
def stopped_by_signals() -> Generator[threading.Event]:
    """An event that SIGINT and SIGTERM set, so that running work can finish cleanly.

    Enter it after Spark was started, which installs a handler of its own.
    """
    stop = threading.Event()

    def stopped(number: int, frame: object) -> None:
        stop.set()

    before = {number: signal.signal(number, stopped) for number in _SIGNALS}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
