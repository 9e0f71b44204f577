"""Sends through a buffer and a circuit breaker, on a transport that goes away and comes back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Sequence
from typing import Any

import pytest
import pytest_asyncio

from matador.errors import (
    BufferExpiredError,
    BufferFullError,
    CircuitOpenError,
    MatadorError,
    NotConnectedError,
    QueueNotFoundError,
    SendUnconfirmedError,
    ShuttingDownError,
    StorageFullError,
)
from matador.model.message import ConnectionState, ConnectionStatus, Message, Once
from matador.model.topology import Binding, Exchange, Topology
from matador.policy.circuit import Circuit, CircuitBreaker
from matador.policy.recovery import Recovery
from matador.runtime.facts import Kind, Sent
from matador.runtime.metrics import Counters
from matador.runtime.outbox import Outbox, Parcel, as_ours
from matador.testing import ManualClock, wait_for
from matador.transports.memory import MemoryTransport

QUEUE = "box.events"


@pytest_asyncio.fixture
async def transport() -> AsyncIterator[MemoryTransport]:
    transport = MemoryTransport()
    await transport.connect()
    await transport.apply_topology(Topology("box", queues=["events"]))
    yield transport
    await transport.disconnect()


def message(number: int, queue: str = QUEUE, exchange: str | None = None) -> Parcel:
    return Parcel(Message(f"m-{number}", queue, str(number).encode()), exchange, None)


async def stored(transport: MemoryTransport) -> list[int]:
    return [int(one.body) async for one in transport.browse(QUEUE)]


async def test_sends_wait_for_the_connection_in_order(transport: MemoryTransport) -> None:
    outbox = Outbox(transport, counters=Counters())
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


class LosesAgain(MemoryTransport):
    """Loses the connection in the middle of the next batch, twice; what came first is stored."""

    losses = 2

    def __init__(self) -> None:
        super().__init__()
        self.answer = asyncio.Event()

    async def send(self, messages: Sequence[Message]) -> Sequence[MatadorError | None]:
        if self.losses == 0 or len(messages) < 3:
            return await super().send(messages)
        self.losses -= 1
        stored = await super().send(messages[:2])
        await self.disconnect()
        await self.answer.wait()
        return [*stored, *(NotConnectedError("lost again") for _ in messages[2:])]


async def test_the_connection_is_lost_again_while_the_buffer_is_sent() -> None:
    transport = LosesAgain()
    await transport.connect()
    await transport.apply_topology(Topology("box", queues=["events"]))
    outbox = Outbox(transport, counters=Counters())
    await transport.disconnect()
    waiting = [asyncio.create_task(outbox.send(message(n))) for n in range(7)]
    await wait_for(lambda: outbox.buffered == 7)
    await transport.connect()
    await wait_for(lambda: transport.losses == 1 and transport.state.status == "disconnected")
    waiting.append(asyncio.create_task(outbox.send(message(7))))  # while the others are under way
    await wait_for(lambda: outbox.buffered == 1)
    transport.answer.set()
    await wait_for(lambda: outbox.buffered == 6)
    await transport.connect()
    await wait_for(lambda: outbox.buffered == 4 and transport.losses == 0)
    await wait_for(lambda: all(one.done() for one in waiting[:4]))
    assert not any(one.done() for one in waiting[4:])
    await transport.connect()
    await asyncio.gather(*waiting)
    assert await stored(transport) == list(range(8))
    await outbox.close()
    await transport.disconnect()


async def test_without_a_buffer_sends_fail_at_once(transport: MemoryTransport) -> None:
    outbox = Outbox(transport, counters=Counters(), recovery=Recovery(buffer=False))
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
        counters=Counters(),
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
    outbox = Outbox(transport, counters=Counters())
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
    outbox = Outbox(transport, counters=Counters(), recovery=Recovery(ttl=0.05), breaker=breaker)
    await transport.disconnect()
    with pytest.raises(BufferExpiredError):
        await outbox.send(message(1))
    assert outbox.circuit == "open"
    await outbox.close()
    outbox = Outbox(transport, counters=Counters(), recovery=Recovery(ttl=600), breaker=breaker)
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
    outbox = Outbox(
        transport, counters=Counters(), recovery=Recovery(buffer=False, max_size=3), breaker=breaker
    )
    outbox._circuit = Circuit(breaker, "half-open")
    transport.hangs = True
    trial = asyncio.create_task(outbox.send(message(0)))
    await wait_for(lambda: transport.begun == 1)
    others = [asyncio.create_task(outbox.send(message(n))) for n in range(1, 10)]
    await wait_for(lambda: sum(one.done() for one in others) >= 6)
    transport.hangs = False
    transport.go.set()
    outcomes = await asyncio.gather(trial, *others, return_exceptions=True)
    refused = [one for one in outcomes if one != 1]
    assert {type(one) for one in refused} == {BufferFullError}
    assert await stored(transport) == list(range(10 - len(refused)))
    await outbox.close()
    await transport.disconnect()


async def test_a_close_leaves_nobody_waiting_for_what_is_under_way() -> None:
    transport = Hanging()
    await transport.connect()
    await transport.apply_topology(Topology("box", queues=["events"]))
    outbox = Outbox(transport, counters=Counters(), recovery=Recovery(ttl=600))
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


@pytest.mark.parametrize("how", ["send", "begin", "send_many"])
async def test_a_close_counts_what_is_under_way_and_says_that_it_may_be_stored(
    how: str, caplog: pytest.LogCaptureFixture
) -> None:
    transport = Hanging()
    await transport.connect()
    await transport.apply_topology(Topology("box", queues=["events"], exchanges=[Exchange("all")]))
    outbox = Outbox(transport, counters=Counters())
    transport.hangs = True
    sending: asyncio.Future[Any]
    match how:
        case "send":
            sending = asyncio.ensure_future(outbox.send(message(1)))
        case "begin":
            sending = outbox.begin(message(1))
        case _:
            sending = asyncio.ensure_future(outbox.send_many([message(1, "", "all")]))
    await wait_for(lambda: transport.begun == 1)
    names = {one.get_name() for one in asyncio.all_tasks()}
    assert ("matador-send-many" in names) == (how == "send_many")
    assert await outbox.close(0.01) == 1
    assert "1 sends were abandoned" in caplog.text
    outcome: Any
    (outcome,) = await asyncio.wait_for(asyncio.gather(sending, return_exceptions=True), 10)
    assert isinstance(outcome[0] if how == "send_many" else outcome, SendUnconfirmedError)
    transport.go.set()
    await transport.disconnect()


# -- what is told, and counted -------------------------------------------------------------------


def fact(number: int) -> Sent:
    return Sent(Kind("message", "name", "receiver", QUEUE, "memory"), f"m-{number}", 0.0)


def told(number: int, queue: str = QUEUE) -> Parcel:
    return Parcel(message(number, queue).message, None, fact(number))


class Told:
    """Remembers the batches of facts; waits with the answer if it is told to."""

    def __init__(self, *, waits: bool = False) -> None:
        self.batches: list[list[str]] = []
        self.waits = waits
        self.go = asyncio.Event()

    def __call__(self, batch: Sequence[Sent]) -> Awaitable[None] | None:
        self.batches.append([one.id for one in batch])
        return self._wait() if self.waits else None

    async def _wait(self) -> None:
        await self.go.wait()

    @property
    def ids(self) -> list[str]:
        return [id for batch in self.batches for id in batch]


@pytest.mark.parametrize("buffer", [True, False])
async def test_facts_are_told_in_batches_before_their_senders_continue(
    transport: MemoryTransport, buffer: bool
) -> None:
    tell, counters = Told(), Counters()
    recovery = Recovery(buffer=buffer)
    outbox = Outbox(transport, counters=counters, tell=tell, recovery=recovery)
    seen: list[list[str]] = []

    async def send(number: int) -> None:
        assert await outbox.send(told(number)) == 1
        seen.append(tell.ids)

    await asyncio.gather(*map(send, range(5)))
    assert tell.batches == [[f"m-{n}" for n in range(5)]]
    assert seen == [tell.ids] * 5
    assert await outbox.send_many([told(5), told(6)]) == [1, 1]
    assert tell.batches[1:] == [["m-5", "m-6"]]
    assert await outbox.begin(told(7)) == 1
    assert tell.batches[2:] == [["m-7"]]
    assert counters.sent == 8
    assert counters.last_message_at is not None
    await outbox.close()


@pytest.mark.parametrize("how", ["send", "begin", "send_many"])
async def test_a_sender_waits_for_hooks_that_wait(transport: MemoryTransport, how: str) -> None:
    tell = Told(waits=True)
    outbox = Outbox(transport, counters=Counters(), tell=tell)
    sending: asyncio.Future[Any] = (
        outbox.begin(told(1))
        if how == "begin"
        else asyncio.ensure_future(
            outbox.send(told(1)) if how == "send" else outbox.send_many([told(1)])
        )
    )
    await wait_for(lambda: tell.batches == [["m-1"]])
    await asyncio.sleep(0)
    assert not sending.done()
    tell.go.set()
    assert await sending in (1, [1])
    await outbox.close()


async def test_only_what_was_stored_is_told_and_counted(transport: MemoryTransport) -> None:
    tell, counters = Told(), Counters()
    outbox = Outbox(transport, counters=counters, tell=tell)
    outcomes = await outbox.send_many([told(1), told(2, "box.nowhere"), message(3), told(4)])
    assert [isinstance(one, int) for one in outcomes] == [True, False, True, True]
    assert tell.batches == [["m-1", "m-4"]], "the third has nothing to tell"
    assert counters.sent == 3
    with pytest.raises(QueueNotFoundError):
        await outbox.send(told(5, "box.nowhere"))
    assert (len(tell.batches), counters.sent) == (1, 3)
    await outbox.close()


async def test_what_waited_for_the_connection_is_told_once_it_is_stored(
    transport: MemoryTransport,
) -> None:
    tell, counters = Told(), Counters()
    outbox = Outbox(transport, counters=counters, tell=tell)
    await transport.disconnect()
    waiting: list[asyncio.Future[int]] = [
        asyncio.ensure_future(outbox.send(told(n))) for n in range(3)
    ]
    await asyncio.sleep(0)  # they take their places
    waiting.append(outbox.begin(told(3)))
    many = asyncio.ensure_future(outbox.send_many([told(4), told(5)]))
    await wait_for(lambda: outbox.buffered == 6)
    assert (tell.batches, counters.sent) == ([], 0)
    await transport.connect()
    assert await asyncio.gather(*waiting) == [1] * 4
    assert await many == [1, 1]
    assert tell.ids == [f"m-{n}" for n in range(6)]
    assert counters.sent == 6
    assert await stored(transport) == list(range(6))
    await outbox.close()


async def test_one_that_was_under_way_comes_before_later_ones() -> None:
    """The connection is lost under a send; the next ones wait behind it."""
    transport = Hanging()
    await transport.connect()
    await transport.apply_topology(Topology("box", queues=["events"]))
    outbox = Outbox(transport, counters=Counters())
    transport.hangs = True
    first = [outbox.begin(message(0)), asyncio.ensure_future(outbox.send(message(1)))]
    await wait_for(lambda: transport.begun == 1)
    await transport.disconnect()
    later = [asyncio.ensure_future(outbox.send(message(n))) for n in (2, 3)]
    await wait_for(lambda: outbox.buffered == 2)
    transport.hangs = False
    transport.go.set()  # and the first ones learn that there is no connection
    await wait_for(lambda: outbox.buffered == 4)
    await transport.connect()
    assert await asyncio.gather(*first, *later) == [1] * 4
    assert await stored(transport) == [0, 1, 2, 3]
    await outbox.close()
    await transport.disconnect()


async def test_a_transport_that_raises_anything_is_answered_for(
    transport: MemoryTransport,
) -> None:
    async def carry(exchange: str | None, messages: Sequence[Message]) -> list[int | MatadorError]:
        if messages[0].id == "m-1":
            raise OSError("cable cut")
        return [1] * (len(messages) - 1)

    counters = Counters()
    outbox = Outbox(transport, counters=counters, carry=carry)
    for number, text in ((1, "OSError: cable cut"), (2, "0 outcomes for 1 messages")):
        with pytest.raises(SendUnconfirmedError, match=text):
            await outbox.send(told(number))
    assert counters.sent == 0
    await outbox.close()


def state(status: ConnectionStatus, attempt: int = 0) -> ConnectionState:
    return ConnectionState(status, attempt=attempt)


@pytest.mark.parametrize(
    ("buffer", "seen", "circuit"),
    [
        (True, [state("failed"), state("failed")], "open"),
        (True, [state("reconnecting", 2), state("reconnecting", 3)], "closed"),
        (False, [state("reconnecting", 2), state("reconnecting", 3)], "open"),
        (False, [state("reconnecting", 0), state("reconnecting", 1)], "closed"),
        (False, [state("disconnected"), state("connecting")], "closed"),
        (False, [state("failed"), state("connected"), state("failed")], "open"),
        (False, [state("failed"), state("failed"), state("connected")], "half-open"),
    ],
)
async def test_which_losses_of_the_connection_open_the_circuit(
    transport: MemoryTransport, buffer: bool, seen: list[ConnectionState], circuit: str
) -> None:
    breaker, recovery = CircuitBreaker(threshold=2), Recovery(buffer=buffer)
    outbox = Outbox(transport, counters=Counters(), recovery=recovery, breaker=breaker)
    for one in seen:
        outbox.connection_changed("box", one)
    assert outbox.circuit == circuit
    await outbox.close()


# -- the buffer ----------------------------------------------------------------------------------


async def test_a_full_buffer_refuses_each_that_finds_no_room(transport: MemoryTransport) -> None:
    outbox = Outbox(transport, counters=Counters(), recovery=Recovery(max_size=3))
    await transport.disconnect()
    first = [outbox.begin(message(0)), asyncio.ensure_future(outbox.send(message(1)))]
    await wait_for(lambda: outbox.buffered == 2)
    many = asyncio.ensure_future(outbox.send_many([message(2), message(3), message(4)]))
    await wait_for(lambda: outbox.buffered == 3)
    for sending in (outbox.send(message(5)), outbox.begin(message(6))):
        with pytest.raises(BufferFullError, match="3 sends wait") as caught:
            await sending
        assert isinstance(caught.value.__cause__, NotConnectedError), "which says why"
    await transport.connect()
    assert await asyncio.gather(*first) == [1, 1]
    outcomes = await many
    assert outcomes[0] == 1
    assert [type(one) for one in outcomes[1:]] == [BufferFullError] * 2
    assert await stored(transport) == [0, 1, 2]
    await outbox.send(message(7))
    assert (outbox.buffered, await stored(transport)) == (0, [0, 1, 2, 7])
    await outbox.close()


async def test_each_waits_for_its_own_time_only(transport: MemoryTransport) -> None:
    clock = ManualClock()
    outbox = Outbox(transport, counters=Counters(), recovery=Recovery(ttl=30), clock=clock)
    await transport.disconnect()
    first = outbox.begin(message(1))
    clock.advance(20)
    second = outbox.begin(message(2))
    clock.advance(9.5)
    outbox.connection_changed("box", state("connecting"))  # it looks again
    await asyncio.sleep(0)
    assert outbox.buffered == 2
    clock.advance(0.5)
    outbox.connection_changed("box", state("connecting"))
    with pytest.raises(BufferExpiredError, match="no connection for 30 s") as caught:
        await first
    assert isinstance(caught.value.__cause__, NotConnectedError)
    assert (outbox.buffered, second.done()) == (1, False)
    await transport.connect()
    assert await second == 1
    assert await stored(transport) == [2]
    await outbox.close()


async def test_the_next_one_in_the_buffer_expires_by_itself(transport: MemoryTransport) -> None:
    outbox = Outbox(transport, counters=Counters(), recovery=Recovery(ttl=0.05))
    await transport.disconnect()
    sending = [asyncio.ensure_future(outbox.send(message(n))) for n in range(3)]
    outcomes = await asyncio.gather(*sending, return_exceptions=True)
    assert [type(one) for one in outcomes] == [BufferExpiredError] * 3
    many = await outbox.send_many([message(3), message(4)])
    assert [type(one) for one in many] == [BufferExpiredError] * 2
    await transport.connect()
    assert await outbox.send(message(5)) == 1
    assert await stored(transport) == [5]
    await outbox.close()


async def test_a_caller_that_gives_up_takes_its_message_out_of_the_buffer(
    transport: MemoryTransport,
) -> None:
    outbox = Outbox(transport, counters=Counters())
    await transport.disconnect()
    first, second = outbox.begin(message(1)), outbox.begin(message(2))
    first.cancel()
    await transport.connect()
    assert await second == 1
    assert await stored(transport) == [2]
    await outbox.close()


async def test_after_the_close_nothing_is_sent(transport: MemoryTransport) -> None:
    for recovery in (Recovery(), Recovery(buffer=False)):
        counters = Counters()
        outbox = Outbox(transport, counters=counters, recovery=recovery)
        assert await outbox.close() == 0
        for sending in (outbox.send(message(1)), outbox.begin(message(1))):
            with pytest.raises(ShuttingDownError, match="it was closed"):
                await sending
        with pytest.raises(ShuttingDownError, match="it was closed"):
            await outbox.send_many([message(1)])
        outbox.fell_back(message(1).message, "a", "b", OSError())
        outbox.dropped(QUEUE, 1)
        assert counters.sent == 0
    assert await stored(transport) == []


async def test_a_close_waits_for_what_is_under_way_and_for_the_buffer() -> None:
    transport = Hanging()
    await transport.connect()
    await transport.apply_topology(Topology("box", queues=["events"]))
    outbox = Outbox(transport, counters=Counters())
    transport.hangs = True
    one = outbox.begin(message(1))
    many = asyncio.ensure_future(outbox.send_many([message(2)]))
    await wait_for(lambda: transport.begun == 2)
    closing = asyncio.create_task(outbox.close())
    await asyncio.sleep(0)
    assert not closing.done()
    transport.go.set()
    assert await closing == 0
    assert (await one, await many) == (1, [1])
    await transport.disconnect()


# -- what is sent together -----------------------------------------------------------------------


class Noting(MemoryTransport):
    """Notes the calls that store messages."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, int]] = []

    async def send(self, messages: Sequence[Message]) -> Sequence[MatadorError | None]:
        self.calls.append(("send", len(messages)))
        return await super().send(messages)

    async def send_once(
        self, messages: Sequence[Message], once: Once
    ) -> Sequence[MatadorError | None]:
        self.calls.append((f"once {once.scope}", len(messages)))
        return await super().send_once(messages, once)

    async def publish(
        self, exchange: str, messages: Sequence[Message]
    ) -> Sequence[int | MatadorError]:
        self.calls.append((exchange, len(messages)))
        return await super().publish(exchange, messages)


BOUND = Topology(
    "box",
    queues=["events"],
    exchanges=[Exchange("all", "fanout")],
    bindings=[Binding("all", "events")],
)


@pytest.mark.parametrize("recovery", [Recovery(), Recovery(buffer=False)])
async def test_each_run_of_the_same_destination_is_one_call_in_order(recovery: Recovery) -> None:
    transport, counters = Noting(), Counters()
    await transport.connect()
    await transport.apply_topology(BOUND)
    outbox = Outbox(transport, counters=counters, recovery=recovery)
    exchange = BOUND.exchanges[0].name
    parcels = [message(0), message(1), message(2, "", exchange), message(3), message(4, "x.y")]
    parcels += [message(5, "", "nowhere")]
    outcomes = await outbox.send_many(parcels)
    assert outcomes[:4] == [1, 1, 1, 1]
    assert all(isinstance(one, MatadorError) for one in outcomes[4:])
    assert transport.calls == [("send", 2), (exchange, 1), ("send", 2), ("nowhere", 1)]
    assert await stored(transport) == [0, 1, 2, 3]
    assert counters.sent == 4
    await outbox.close()
    await transport.disconnect()


async def test_many_are_sent_in_pieces_in_order() -> None:
    transport = Noting()
    await transport.connect()
    await transport.apply_topology(BOUND)
    outbox = Outbox(transport, counters=Counters())
    assert await outbox.send_many([message(n) for n in range(1100)]) == [1] * 1100
    assert transport.calls == [("send", 500), ("send", 500), ("send", 100)]
    assert await stored(transport) == list(range(1100))
    await outbox.close()
    await transport.disconnect()


async def test_what_is_sent_once_is_stored_once() -> None:
    transport = Noting()
    await transport.connect()
    await transport.apply_topology(BOUND)
    outbox = Outbox(transport, counters=Counters(), recovery=Recovery(buffer=False))
    parcels = [message(n) for n in range(600)]
    for _ in range(2):
        assert await outbox.send_many(parcels, Once("replay")) == [1] * 600
    assert transport.calls == [("once replay", 600)] * 2, "ids are compared many at a time"
    assert await stored(transport) == list(range(600))
    assert await outbox.send_many(parcels[:1]) == [1]
    assert transport.calls[2:] == [("send", 1)]
    await outbox.close()
    await transport.disconnect()
    unable = MemoryTransport(without=["once"])
    await unable.connect()
    await unable.apply_topology(BOUND)
    outbox = Outbox(unable, counters=Counters())
    assert await outbox.send_many(parcels[:2], Once("replay")) == [1, 1]
    await outbox.close()
    await unable.disconnect()


# -- the circuit breaker -------------------------------------------------------------------------


async def opened(transport: MemoryTransport, outbox: Outbox, failures: int) -> None:
    """Fail so often that the circuit opens, while the transport is connected."""
    for _ in range(failures):
        assert outbox.circuit == "closed"
        with pytest.raises(StorageFullError):
            await outbox.send(message(99))
    assert outbox.circuit == "open"


class Full(MemoryTransport):
    """Has no room, or no room for some, and holds up sends if told to."""

    def __init__(self) -> None:
        super().__init__()
        self.full = False
        self.under_way = self.most = 0
        self.go = asyncio.Event()
        self.go.set()

    async def send(self, messages: Sequence[Message]) -> Sequence[MatadorError | None]:
        if self.full:
            return [StorageFullError("no room") for _ in messages]
        self.under_way += len(messages)
        self.most = max(self.most, self.under_way)
        await self.go.wait()
        self.under_way -= len(messages)
        return await super().send(messages)


@pytest.mark.parametrize("buffer", [True, False])
async def test_while_the_circuit_is_open_sends_fail_at_once_and_then_a_few_are_tried(
    buffer: bool,
) -> None:
    transport, clock, states = Full(), ManualClock(), list[str]()
    await transport.connect()
    await transport.apply_topology(BOUND)
    outbox = Outbox(
        transport,
        counters=Counters(),
        recovery=Recovery(buffer=buffer),
        breaker=CircuitBreaker(threshold=3, recovery_time=60, successes=2),
        clock=clock,
        on_state=states.append,
    )
    assert outbox.circuit == "closed"
    transport.full = True
    for _ in range(2):
        with pytest.raises(StorageFullError):
            await outbox.send(message(99))
    transport.full = False
    assert await outbox.send(message(0)) == 1, "which ends the row of failures"
    transport.full = True
    await opened(transport, outbox, 3)
    transport.full = False
    for sending in (outbox.send(message(1)), outbox.begin(message(1))):
        with pytest.raises(CircuitOpenError):
            await sending
    (refused,) = await outbox.send_many([message(1)])
    assert isinstance(refused, CircuitOpenError)
    clock.advance(59.9)
    assert outbox.circuit == "open"
    clock.advance(0.1)
    assert outbox.circuit == "half-open"

    transport.go.clear()
    sending = [asyncio.ensure_future(outbox.send(message(n))) for n in range(2, 8)]
    await wait_for(lambda: transport.under_way == 2)
    assert outbox.buffered == 4, "the others wait for the trial"
    transport.go.set()
    assert await asyncio.gather(*sending) == [1] * 6
    assert (outbox.circuit, states) == ("closed", ["open", "half-open", "closed"])
    assert await stored(transport) == [0, *range(2, 8)]
    await outbox.close()
    await transport.disconnect()


async def test_one_that_fails_on_trial_opens_the_circuit_for_all_that_wait() -> None:
    transport, clock, states = Full(), ManualClock(), list[str]()
    await transport.connect()
    await transport.apply_topology(BOUND)
    breaker = CircuitBreaker(threshold=1, recovery_time=60, successes=1)
    outbox = Outbox(
        transport, counters=Counters(), breaker=breaker, clock=clock, on_state=states.append
    )
    transport.full = True
    await opened(transport, outbox, 1)
    clock.advance(60)
    sending = [asyncio.ensure_future(outbox.send(message(n))) for n in range(4)]
    outcomes = await asyncio.gather(*sending, return_exceptions=True)
    assert [type(one) for one in outcomes] == [StorageFullError, *[CircuitOpenError] * 3]
    assert (outbox.circuit, states) == ("open", ["open", "half-open", "open"])
    clock.advance(59)
    assert outbox.circuit == "open", "it counts from the failure on trial"
    await outbox.close()
    await transport.disconnect()


async def test_messages_that_expire_in_the_buffer_open_the_circuit(
    transport: MemoryTransport,
) -> None:
    breaker = CircuitBreaker(threshold=2, recovery_time=600)
    outbox = Outbox(transport, counters=Counters(), recovery=Recovery(ttl=0.01), breaker=breaker)
    await transport.disconnect()
    for circuit in ("closed", "open"):
        with pytest.raises(BufferExpiredError):
            await outbox.send(message(1))
        assert outbox.circuit == circuit
    with pytest.raises(CircuitOpenError) as caught:
        await outbox.send(message(1))
    assert isinstance(caught.value.__cause__, NotConnectedError)
    await outbox.close()


@pytest.mark.parametrize("how", ["send", "begin", "send_many"])
@pytest.mark.parametrize("under_way", [False, True])
async def test_without_a_buffer_each_send_without_a_connection_is_one_failure(
    how: str, under_way: bool
) -> None:
    class Leaving(MemoryTransport):
        """Is connected again, and lost as soon as something is sent."""

        async def send(self, messages: Sequence[Message]) -> Sequence[MatadorError | None]:
            await self.disconnect()
            return [NotConnectedError("lost") for _ in messages]

    transport = Leaving()
    breaker = CircuitBreaker(threshold=3, recovery_time=600)
    outbox = Outbox(
        transport, counters=Counters(), recovery=Recovery(buffer=False), breaker=breaker
    )
    for number, circuit in enumerate(("closed", "closed", "open")):
        if under_way:
            await transport.connect()
        outcome: Any
        if how == "send_many":
            (outcome,) = await outbox.send_many([message(number)])
        else:
            sending = outbox.send if how == "send" else outbox.begin
            (outcome,) = await asyncio.gather(sending(message(number)), return_exceptions=True)
        assert isinstance(outcome, NotConnectedError | CircuitOpenError)
        assert outbox.circuit == circuit
    assert outbox.buffered == 0
    await outbox.close()


def test_an_error_that_no_transport_should_raise_leaves_open_what_is_stored() -> None:
    ours, cause = StorageFullError("full"), ValueError("bug")
    assert as_ours(ours) is ours
    unknown = as_ours(cause)
    assert isinstance(unknown, SendUnconfirmedError)
    assert (str(unknown), unknown.__cause__) == ("ValueError: bug", cause)
