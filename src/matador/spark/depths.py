"""How many messages the broker has, for the reconciliation of a lake."""

from __future__ import annotations

import asyncio
import contextlib

from matador.errors import ConfigurationError, QueueNotFoundError, UnsupportedError
from matador.events.app import SyncMatador
from matador.events.application import Application
from matador.transports.base import Measuring


async def queue_depths(app: Application) -> dict[str, int]:
    """Messages that are not finished in each queue of a connected application, by full name.

    Raises:
        UnsupportedError: the broker cannot tell.
    """
    transport = app.transport
    if not transport.capabilities.depth or not isinstance(transport, Measuring):
        raise UnsupportedError(f"{transport.name} cannot say how many messages wait")
    found: dict[str, int] = {}
    for queue in app.topology.queues:
        name = app.topology.full_name(queue.name)
        with contextlib.suppress(QueueNotFoundError):
            found[name] = (await transport.depth(name)).total
    return found


def depths_of(app: Application | SyncMatador) -> dict[str, int]:
    """The same for code without an event loop: of one that is not started, or a running ``sync``.

    Raises:
        UnsupportedError: the broker cannot tell.
    """
    if isinstance(app, SyncMatador):
        return app.wait(queue_depths(app.app))
    if app.state.status not in ("new", "stopped"):
        raise ConfigurationError(
            "the application is running: give its `app.sync()`, or depths=await queue_depths(app)"
        )
    return asyncio.run(_connected_depths(app))


async def _connected_depths(app: Application) -> dict[str, int]:
    await app.transport.connect()
    try:
        return await queue_depths(app)
    finally:
        await app.transport.disconnect()
