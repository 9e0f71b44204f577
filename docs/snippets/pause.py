"""Pauses a queue from a program, and ends the pause."""

from __future__ import annotations

import asyncio

from matador import Matador, Schema, Topology
from matador.transports.base import QueuePausing


# --8<-- [start:pause]
async def pause_for(app: Matador, queue: str, seconds: float) -> None:
    """Stop all workers of a queue for a while, wherever they run."""
    transport, name = app.transport, app.topology.full_name(queue)
    if not transport.capabilities.pause or not isinstance(transport, QueuePausing):
        raise SystemExit(f"{transport.name} cannot pause queues")
    await transport.pause_queue(name)
    print(f"{name} is paused: {await transport.is_paused(name)}")
    await asyncio.sleep(seconds)
    await transport.resume_queue(name)
    print(f"{name} is paused: {await transport.is_paused(name)}")


# --8<-- [end:pause]


async def main() -> None:
    """Pause the queue of an application on SQLite."""
    app = Matador(
        "sqlite:///shop.db", schema=Schema({}), topology=Topology("shop", queues=["events"])
    )
    async with app:
        await pause_for(app, "events", 0.1)


if __name__ == "__main__":
    asyncio.run(main())
