"""Thousands of calls at once."""

from __future__ import annotations

import asyncio

import pytest
from tests.rpc.conftest import Place

from matador.rpc import RpcTimeoutError
from matador.testing import wait_for

CALLS = 10_000


@pytest.mark.slow
async def test_each_of_ten_thousand_calls_has_one_outcome(place: Place) -> None:
    server = place.server(concurrency=2 * CALLS // 10)
    never = asyncio.Event()

    @server.handler("work")
    async def work(data: int) -> int:
        if data % 10 == 0:
            await never.wait()
        return data + 1

    outcomes: list[int] = [0] * CALLS
    async with place.client() as client:

        async def call(n: int) -> None:
            try:
                found = await client.call("work", n, timeout=5 if n % 10 == 0 else 250)
            except RpcTimeoutError:
                assert n % 10 == 0
            else:
                assert found == n + 1
                assert n % 10
            outcomes[n] += 1

        await server.start()
        await asyncio.gather(*map(call, range(CALLS)))
        assert outcomes == [1] * CALLS
        assert client.pending == 0
        never.set()
        await wait_for(lambda: server.in_flight == 0, timeout=60)
        await server.shutdown()
