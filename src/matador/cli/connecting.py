"""Connects to an application's broker without consuming, and without making what is not there."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading
from collections.abc import AsyncGenerator, Coroutine
from pathlib import Path
from typing import Any, TypeVar

from matador.cli.output import FAILED, CommandError, complain
from matador.events.app import Matador
from matador.transports.sqlite import SqliteTransport

T = TypeVar("T")

_GRACE = 2.0


@contextlib.asynccontextmanager
async def connected(app: Matador) -> AsyncGenerator[Matador]:
    """The application with its transport connected and its checkpoints open, not started.

    Raises:
        CommandError: its messages cannot be seen from here, or were never stored anywhere.
    """
    reachable(app)
    missing = missing_file(app)
    if missing is not None:
        raise CommandError(
            f"{missing} does not exist yet: start a worker, send an event, or run "
            f"`matador topology apply`"
        )
    await app.transport.connect()
    try:
        await app.checkpoints.open()
        yield app
    finally:
        await app.checkpoints.close()
        await app.transport.disconnect()


def reachable(app: Matador) -> None:
    """Check that other processes can see the application's messages.

    Raises:
        CommandError: they live in each process of its own.
    """
    if app.transport.capabilities.in_process:
        raise CommandError(
            f"the transport {app.transport.name!r} keeps its messages inside each process, so "
            f"there are none to be seen or sent from here (send-test-event tries an event out)"
        )


def missing_file(app: Matador) -> Path | None:
    """The application's database, if it has one that was not made yet."""
    transport = app.transport
    if isinstance(transport, SqliteTransport) and not transport.path.exists():
        return transport.path
    return None


def run_within(work: Coroutine[Any, Any, T], timeout: float | None, what: str) -> T:
    """Run a coroutine, and give up after ``timeout`` seconds, whatever it is waiting for.

    Raises:
        CommandError: the time was over.
    """
    if timeout is None:
        return asyncio.run(work)
    message = f"{what} took longer than {timeout:g} s (--timeout); it may or may not have happened"
    # What waits in a thread cannot be cancelled: then the process ends without it.
    emergency = threading.Timer(timeout + _GRACE, _exit, [message])
    emergency.daemon = True
    emergency.start()
    try:
        return asyncio.run(_bounded(work, timeout))
    except TimeoutError:
        raise CommandError(message) from None
    finally:
        emergency.cancel()


async def _bounded(work: Coroutine[Any, Any, T], timeout: float) -> T:
    async with asyncio.timeout(timeout):
        return await work


def _exit(message: str) -> None:
    complain(message)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(FAILED)
