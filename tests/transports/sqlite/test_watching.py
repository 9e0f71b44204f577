"""A subscription hears of what other processes send, whatever else the watcher looks at."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from tests.transports.sqlite.conftest import Make, Open

from matador.model.topology import Topology
from matador.testing import wait_for
from matador.transports.sqlite import sweep

TOPOLOGY = Topology("t", queues=["q", "other"])


@pytest.fixture(autouse=True)
def _nobody_else_notices(monkeypatch: pytest.MonkeyPatch) -> None:
    """The caretaker folds the log into the file after a second, which wakes everybody."""
    monkeypatch.setattr(sweep, "_INTERVAL", 1000.0)
    monkeypatch.setattr(sweep, "_QUIET", 1000.0)


async def test_what_comes_between_an_empty_claim_and_the_wait_is_noticed(
    connect: Open, make: Make
) -> None:
    transport, sender = await connect(TOPOLOGY), await connect(TOPOLOGY)
    watcher = transport._connected.watcher
    late = await transport.subscribe("t.q", prefetch=1)
    early = await transport.subscribe("t.other", prefetch=1)
    waiting = asyncio.ensure_future(early.receive(1))
    await wait_for(lambda: watcher._waiting and watcher._version != -1)

    claiming = asyncio.ensure_future(late.receive(1))
    await wait_for(lambda: late._claim is not None)
    claim = late._claim
    claiming.cancel()  # the claim goes on, and its result is there for the next call
    with contextlib.suppress(asyncio.CancelledError):
        await claiming
    assert claim is not None
    await asyncio.wait([claim])

    seen = watcher._version
    assert await sender.send([make()]) == [None]  # another process, as far as the file can tell
    await wait_for(lambda: watcher._version != seen)  # on behalf of the other queue

    async with asyncio.timeout(60):
        (delivery,) = await late.receive(1)
    assert delivery.body == b"1"
    waiting.cancel()
