"""Asks the broker of an application how many messages wait in its queues."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from matador.errors import ConfigurationError, UnsupportedError
from matador.events.app import Matador, SyncMatador
from matador.runtime.few_at_once import depths_of as counted
from matador.transports.base import Measuring

T = TypeVar("T")


async def queue_depths(app: Matador) -> dict[str, int]:
    """The unfinished messages in each queue of a connected application, by full name."""
    transport = app.transport
    if not transport.capabilities.depth or not isinstance(transport, Measuring):
        raise UnsupportedError(f"{transport.name} does not report how many messages wait")

    names = [app.topology.full_name(queue.name) for queue in app.topology.queues]
    depths = zip(names, await counted(transport, names), strict=True)
    return {name: depth.total for name, depth in depths if depth is not None}


def depths_of(app: Matador | SyncMatador) -> dict[str, int]:
    """The same without an event loop: of an application that is not started, or its ``sync()``.

    Raises:
        ConfigurationError: the application is running.
        UnsupportedError: the broker does not report them.
    """
    if isinstance(app, Matador) and app.state.status not in ("new", "stopped"):
        raise ConfigurationError(
            "the application is running: pass its `app.sync()`, or depths=await queue_depths(app)"
        )
    return connected(app, queue_depths)


def connected(app: Matador | SyncMatador, ask: Callable[[Matador], Coroutine[Any, Any, T]]) -> T:
    """Run ``ask`` in the loop of an ``app.sync()``, or over a separate connection."""
    if isinstance(app, SyncMatador):
        return app.wait(ask)
    producer = app.producer()

    async def run() -> T:
        await producer.transport.connect()
        try:
            return await ask(producer)
        finally:
            await producer.transport.disconnect()

    # In another thread: the caller may have an event loop running.
    with ThreadPoolExecutor(1, thread_name_prefix="matador-connected") as thread:
        return thread.submit(asyncio.run, run()).result()
