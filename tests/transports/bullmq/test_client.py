"""The client: what is left of its connections."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from typing import Any

from tests.support.redis import OwnServer

from matador.model.message import ConnectionState
from matador.testing import wait_for
from matador.transports.bullmq.client import BullMQAddress, BullMQClient, BullMQSession
from matador.transports.kit.options import read_address


async def nothing(_: BullMQSession) -> None:
    pass


def unseen(_: ConnectionState) -> None:
    pass


async def connections(client: Any, name: str) -> int:
    return sum(one["name"] == name for one in await client.client_list())


async def test_a_command_in_flight_leaves_no_connection_when_the_client_stops(
    server: OwnServer, client: Any
) -> None:
    name = f"closing-{uuid.uuid4().hex[:8]}"
    address = read_address(BullMQAddress, f"bullmq://127.0.0.1:{server.port}/0?name={name}")
    for turns in range(24):  # the command has come a little further each time
        bullmq = BullMQClient(address, restore=nothing, on_state=unseen)
        await bullmq.start()
        session = await bullmq.wait_connected()
        asking = [asyncio.create_task(session.ask("PING")) for _ in range(3)]
        for _ in range(turns):
            await asyncio.sleep(0)
        await bullmq.stop()
        with contextlib.suppress(Exception):
            await asyncio.gather(*asking, return_exceptions=True)

    async def none() -> bool:
        return await connections(client, f"matador-{name}") == 0

    await wait_for(none)


async def test_a_stop_that_is_canceled_leaves_no_connection(server: OwnServer, client: Any) -> None:
    name = f"closing-{uuid.uuid4().hex[:8]}"
    address = read_address(BullMQAddress, f"bullmq://127.0.0.1:{server.port}/0?name={name}")
    for turns in range(12):
        bullmq = BullMQClient(address, restore=nothing, on_state=unseen)
        await bullmq.start()
        await (await bullmq.wait_connected()).connect_blocking()
        stopping = asyncio.create_task(bullmq.stop())
        for _ in range(turns):
            await asyncio.sleep(0)
        stopping.cancel()
        await asyncio.gather(stopping, return_exceptions=True)
        if turns == 0:  # it had not begun
            await bullmq.stop()

    async def none() -> bool:
        return await connections(client, f"matador-{name}") == 0

    await wait_for(none)
