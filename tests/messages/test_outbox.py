"""Sends through a buffer and a circuit breaker, on a transport that goes away and comes back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
import pytest_asyncio

from matador.errors import (
    BufferExpiredError,
    BufferFullError,
    MatadorError,
    NotConnectedError,
    QueueNotFoundError,
    SendUnconfirmedError,
    ShuttingDownError,
)
from matador.messages.outbox import Outbox
from matador.model.message import Message
from matador.model.topology import Exchange, Topology
from matador.policy.circuit import Circuit, CircuitBreaker
from matador.policy.recovery import Recovery
from matador.testing import wait_for
from matador.transports.memory import MemoryTransport

QUEUE = "box.events"


@pytest_asyncio.fixture
async def transport() -> AsyncIterator[MemoryTransport]:
    transport = MemoryTransport()
    await transport.connect()
    await transport.apply_topology(Topology("box", queues=["events"]))
    yield transport
    await transport.disconnect()


def message(number: int, queue: str = QUEUE) -> Message:
    return Message(f"m-{number}", queue, str(number).encode())


async def stored(transport: MemoryTransport) -> list[int]:
    return [int(one.body) async for one in transport.browse(QUEUE)]


async def test_sends_wait_for_the_connection_in_order(transport: MemoryTransport) -> None:
    outbox = Outbox(transport)
    await outbox.send(message(0))
    await transport.disconnect()
    waiting = [asyncio.create_task(outbox.send(message(n))) for n in range(1, 20)]
    await wait_for(lambda: outbox.buffered == 19)
    waiting[4].cancel()  # whose caller has given up: it is not sent
    await transport.connect()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert await stored(transport) == [n for n in range(20) if n != 5]
    await outbox.close()
    with pytest.raises(ShuttingDownError):
        await outbox.send(message(99))


async def test_without_a_buffer_sends_fail_at_once(transport: MemoryTransport) -> None:
    outbox = Outbox(transport, recovery=Recovery(buffer=False))
    await transport.disconnect()
    with pytest.raises(NotConnectedError):
        await outbox.send(message(1))
    await outbox.close()


async def test_messages_that_are_refused_do_not_keep_the_circuit_half_open(
    transport: MemoryTransport,
) -> None:
    states: list[str] = []
    outbox = Outbox(
        transport,
        recovery=Recovery(ttl=0.05),
        breaker=CircuitBreaker(threshold=1, successes=3),
        on_state=states.append,
    )
    await transport.disconnect()
    with pytest.raises(BufferExpiredError):
        await outbox.send(message(1))
    assert outbox.circuit == "open"
    await transport.connect()
    assert outbox.circuit == "half-open"
    for n in range(3):
        with pytest.raises(QueueNotFoundError):
            await outbox.send(message(n, "box.nowhere"))
    assert outbox.circuit == "closed"
    await outbox.send(message(7))
    assert await stored(transport) == [7]
    assert states == ["open", "half-open", "closed"]
    await outbox.close()


async def test_a_close_gives_up_what_cannot_be_sent(transport: MemoryTransport) -> None:
    outbox = Outbox(transport)
    await transport.disconnect()
    waiting = asyncio.create_task(outbox.send(message(1)))
    await wait_for(lambda: outbox.buffered == 1)
    assert await outbox.close(timeout=0.01) == 1
    with pytest.raises(ShuttingDownError):
        await waiting


class Hanging(MemoryTransport):
    """Its sends wait to be let go, and then fail or succeed."""

    def __init__(self) -> None:
        super().__init__()
        self.hangs = False
        self.begun = 0
        self.go = asyncio.Event()

    async def send(self, messages: Sequence[Message]) -> Sequence[MatadorError | None]:
        if self.hangs:
            self.begun += 1
            await self.go.wait()
        return await super().send(messages)

    async def publish(
        self, exchange: str, messages: Sequence[Message]
    ) -> Sequence[int | MatadorError]:
        if self.hangs:
            self.begun += 1
            await self.go.wait()
        return await super().publish(exchange, messages)


async def test_a_connection_lost_on_trial_is_tried_again_when_it_is_back() -> None:
    transport = Hanging()
    await transport.connect()
    await transport.apply_topology(Topology("box", queues=["events"]))
    breaker = CircuitBreaker(threshold=1, successes=1, recovery_time=600)
    outbox = Outbox(transport, recovery=Recovery(ttl=0.05), breaker=breaker)
    await transport.disconnect()
    with pytest.raises(BufferExpiredError):
        await outbox.send(message(1))
    assert outbox.circuit == "open"
    await outbox.close()
    outbox = Outbox(transport, recovery=Recovery(ttl=600), breaker=breaker)
    outbox._circuit = Circuit(breaker, "half-open")
    await transport.connect()
    transport.hangs = True
    sending = asyncio.create_task(outbox.send(message(2)))
    await wait_for(lambda: transport.begun == 1)
    await transport.disconnect()
    transport.hangs = False
    transport.go.set()
    await wait_for(lambda: outbox.buffered == 1)
    await transport.connect()
    await asyncio.wait_for(sending, 10)
    assert outbox.circuit == "closed"
    await outbox.close()
    await transport.disconnect()


async def test_what_waits_for_a_trial_is_limited_without_a_buffer_too() -> None:
    transport = Hanging()
    await transport.connect()
    await transport.apply_topology(Topology("box", queues=["events"]))
    breaker = CircuitBreaker(threshold=1, successes=1, recovery_time=600)
    outbox = Outbox(transport, recovery=Recovery(buffer=False, max_size=3), breaker=breaker)
    outbox._circuit = Circuit(breaker, "half-open")
    transport.hangs = True
    trial = asyncio.create_task(outbox.send(message(0)))
    await wait_for(lambda: transport.begun == 1)
    others = [asyncio.create_task(outbox.send(message(n))) for n in range(1, 10)]
    await wait_for(lambda: sum(one.done() for one in others) >= 6)
    transport.hangs = False
    transport.go.set()
    outcomes = await asyncio.gather(trial, *others, return_exceptions=True)
    refused = [one for one in outcomes if one is not None]
    assert {type(one) for one in refused} == {BufferFullError}
    assert await stored(transport) == list(range(10 - len(refused)))
    await outbox.close()
    await transport.disconnect()


async def test_a_close_leaves_nobody_waiting_for_what_is_under_way() -> None:
    transport = Hanging()
    await transport.connect()
    await transport.apply_topology(Topology("box", queues=["events"]))
    outbox = Outbox(transport, recovery=Recovery(ttl=600))
    await transport.disconnect()
    waiting = asyncio.create_task(outbox.send(message(1)))
    await wait_for(lambda: outbox.buffered == 1)
    transport.hangs = True
    await transport.connect()
    await wait_for(lambda: transport.begun == 1)
    await outbox.close(0.01)
    with pytest.raises(SendUnconfirmedError, match="closed"):
        await asyncio.wait_for(waiting, 10)
    transport.go.set()
    await transport.disconnect()


@pytest.mark.parametrize("how", ["send", "begin", "publish_many"])
async def test_a_close_counts_what_is_under_way_and_says_that_it_may_be_stored(
    how: str, caplog: pytest.LogCaptureFixture
) -> None:
    transport = Hanging()
    await transport.connect()
    await transport.apply_topology(Topology("box", queues=["events"], exchanges=[Exchange("all")]))
    outbox = Outbox(transport)
    transport.hangs = True
    sending: asyncio.Future[Any]
    match how:
        case "send":
            sending = asyncio.ensure_future(outbox.send(message(1)))
        case "begin":
            sending = outbox.begin(message(1))
        case _:
            sending = asyncio.ensure_future(outbox.publish_many([("all", message(1))]))
    await wait_for(lambda: transport.begun == 1)
    assert await outbox.close(0.01) == 1
    assert "1 sends were given up" in caplog.text
    outcome: Any
    (outcome,) = await asyncio.wait_for(asyncio.gather(sending, return_exceptions=True), 10)
    assert isinstance(outcome[0] if how == "publish_many" else outcome, SendUnconfirmedError)
    transport.go.set()
    await transport.disconnect()
