"""One life cycle for all public classes: start, pause, health, counters, shutdown."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.ways.ways import (
    ALL,
    IN_PROCESS,
    PIPELINE,
    THOROUGH,
    Call,
    ChannelPublish,
    Events,
    Facts,
    Jobs,
    Way,
    over,
)

from matador.runtime.health import Health
from matador.runtime.metrics import Metrics
from matador.runtime.service import Service
from matador.testing import wait_for
from matador.transports.base import QueuePausing

ONE, TWO, THREE = 1, 2, 3
FIVE = [one for one in ALL if one is not ChannelPublish]


async def handle(n: int, ctx: Any) -> int:
    return n


async def check_life(way: Way, service: Service) -> None:
    """Scenarios: health check for active connection; health check for disconnected state.

    What holds for everything that is started and shut down.
    """
    assert Service.health(service).status == "unhealthy"  # not connected yet
    await asyncio.gather(service.start(), service.start())
    await way.started(service)
    health = Service.health(service)
    assert isinstance(health, Health)
    assert (health.status, health.connection_state) == ("healthy", "connected")
    assert health.processing == 0
    assert health.disconnected_since is None
    assert service.metrics() == Metrics()
    await asyncio.gather(service.shutdown(), service.shutdown())
    await service.shutdown(timeout=0)
    health = Service.health(service)
    assert (health.status, health.connection_state) == ("unhealthy", "disconnected")
    assert health.disconnected_since is not None
    async with service:  # it can be started again
        assert Service.health(service).status == "healthy"


@over(ways=FIVE)
async def test_a_receiver_starts_and_ends_as_often_as_asked(way: Way) -> None:
    await check_life(way, way.receiver(handle))


@over(ways=[one for one in FIVE if one is not Events], transports=THOROUGH)
async def test_a_sender_starts_and_ends_as_often_as_asked(way: Way) -> None:
    async with way.receiving(handle):  # there is a queue to send to
        await check_life(way, way.sender())


@over(transports=("memory",))
async def test_a_shutdown_handles_what_waits_in_memory(
    way: Way, caplog: pytest.LogCaptureFixture
) -> None:
    gate, ran = asyncio.Event(), list[int]()

    async def waits(n: int, ctx: Any) -> int:
        ran.append(n)
        await gate.wait()
        return n

    receiver = way.receiver(waits, concurrency=1)
    await way.started(receiver)
    for n in range(6):
        await way.send(n)
    await wait_for(lambda: ran)
    assert not await receiver.wait_idle(0)
    ending = asyncio.create_task(receiver.shutdown())
    await wait_for(lambda: receiver._status == "waiting-handlers")
    gate.set()
    await ending
    if isinstance(way, Jobs):  # its jobs stay for another worker of this process
        assert ran == [0]
        assert "5 messages still wait in" in caplog.text
    else:
        assert ran == list(range(6))
        assert "still wait" not in caplog.text


@over(transports=("memory",))
async def test_a_shutdown_logs_what_it_leaves_in_memory(
    way: Way, caplog: pytest.LogCaptureFixture
) -> None:
    ran = list[int]()

    async def hangs(n: int, ctx: Any) -> None:
        ran.append(n)
        await asyncio.Event().wait()

    receiver = way.receiver(hangs, concurrency=1)
    await way.started(receiver)
    for n in range(6):
        await way.send(n)
    await wait_for(lambda: ran)
    await receiver.shutdown(timeout=0.05)
    assert "6 messages still wait in" in caplog.text
    assert ran == [0]


@over(transports=("memory",))
async def test_a_receiver_is_not_idle_between_two_messages(way: Way) -> None:
    ran, idle = list[int](), list[int]()

    async def notes(n: int, ctx: Any) -> int:
        ran.append(n)
        return n

    async with way.receiving(notes, concurrency=1) as receiver:
        await receiver.pause()
        for n in range(6):
            await way.send(n)
        assert await receiver.wait_idle(1), "while it is paused, nothing is to be done"
        await receiver.resume()
        assert await receiver.wait_idle(10)
        idle += ran
    assert idle == list(range(6))


@over(ways=FIVE, transports=THOROUGH)
async def test_a_paused_receiver_runs_nothing(way: Way) -> None:
    facts = Facts()
    async with way.receiving(handle, hooks=facts) as receiver:
        await way.send(ONE)
        await wait_for(lambda: facts.of(ONE))
        await receiver.pause()
        await receiver.pause()
        await way.send(TWO)
        if way.place.transport != "kafka":  # whose consumer keeps its partitions
            await wait_for(way.depth, message="a message that waits")
        assert receiver.health().status == "healthy"
        assert facts.of(TWO) == []
        await receiver.resume()
        await receiver.resume()
        await wait_for(lambda: facts.of(TWO))
    assert facts.outcomes(ONE) == facts.outcomes(TWO) == ["success"]


@over(outlives=True, transports=["sqlite", "redis"])
async def test_a_queue_that_an_operator_paused_keeps_its_messages(way: Way) -> None:
    facts = Facts()
    async with way.receiving(handle, hooks=facts) as receiver:
        operator = await way.looking()
        assert isinstance(operator, QueuePausing)
        await operator.pause_queue(way.queue)
        for n in (ONE, TWO):
            await way.send(n)
        await wait_for(way.depth, message="a message that waits")
        assert receiver.health().status == "healthy"
        assert facts.attempts == []
        await operator.resume_queue(way.queue)
        await wait_for(lambda: facts.of(ONE) and facts.of(TWO))
    assert facts.outcomes(ONE) == facts.outcomes(TWO) == ["success"]


@over(ways=FIVE, transports=PIPELINE)
async def test_health_and_counters_say_what_happened(way: Way) -> None:
    """Scenario: metrics collection."""
    facts, gate = Facts(), asyncio.Event()

    async def waits(n: int, ctx: Any) -> None:
        await gate.wait()
        if n == TWO:
            raise ValueError("no")

    async with way.receiving(waits, idempotent="no", hooks=facts) as receiver:
        await way.send(ONE)
        await wait_for(lambda: receiver.health().processing == 1)
        gate.set()
        await way.send(TWO)
        await wait_for(lambda: facts.of(ONE) and facts.of(TWO))
        health, metrics = receiver.health(), receiver.metrics()
        sent = (way._sender or receiver).metrics().messages_sent
    assert health.last_message_at is not None
    assert health.last_error == "ValueError: no"
    assert metrics == Metrics(
        messages_sent=metrics.messages_sent,
        messages_received=2,
        messages_succeeded=1,
        messages_failed=1,
        messages_dead_lettered=1,
    )
    assert sent == 2


@over(ways=[*FIVE, Call])
async def test_a_shutdown_waits_for_handlers(way: Way) -> None:
    """Scenarios: shutdown with pending messages; RabbitMQ graceful shutdown; Kafka graceful
    shutdown; Redis graceful shutdown.

    What is done before the end of the shutdown is acknowledged.
    """
    facts, gate, begun = Facts(), asyncio.Event(), asyncio.Event()

    async def waits(n: int, ctx: Any) -> None:
        begun.set()
        await gate.wait()

    receiver = way.receiver(waits, hooks=facts)
    await way.started(receiver)
    sending = asyncio.create_task(way.send(ONE))
    await begun.wait()
    ending = asyncio.create_task(receiver.shutdown(timeout=30))
    await wait_for(lambda: receiver._status != "running")
    assert not ending.done()
    gate.set()
    await asyncio.gather(ending, sending)
    async with way.receiving(waits, hooks=facts):
        await way.send(TWO)
        await wait_for(lambda: facts.of(TWO))
    assert facts.outcomes(ONE) == ["success"]


@over(ways=FIVE, transports=IN_PROCESS)
async def test_a_second_shutdown_with_no_time_hurries_the_first(way: Way) -> None:
    begun = asyncio.Event()

    async def hangs(n: int, ctx: Any) -> None:
        begun.set()
        await asyncio.Event().wait()

    receiver = way.receiver(hangs)
    await way.started(receiver)
    await way.send(ONE)
    await begun.wait()
    ending = asyncio.create_task(receiver.shutdown(timeout=300))
    await wait_for(lambda: receiver._status != "running")
    async with asyncio.timeout(20):
        await receiver.shutdown(timeout=0)
        await ending


@over(ways=[Jobs], transports=["memory"])
async def test_the_health_of_a_queue_is_about_its_jobs(way: Way) -> None:
    async with way.receiving(handle):
        await way.send(ONE)
        found = await way._sender.health()
        assert found.paused is False


@over(ways=FIVE, transports=PIPELINE)
@pytest.mark.parametrize("concurrency", [1, 3])
async def test_no_more_messages_are_taken_than_are_handled(way: Way, concurrency: int) -> None:
    """Scenario: RabbitMQ prefetch configuration."""
    facts, gate = Facts(), asyncio.Event()
    running: set[int] = set()

    async def waits(n: int, ctx: Any) -> None:
        running.add(n)
        await gate.wait()

    async with way.receiving(waits, concurrency=concurrency, hooks=facts) as receiver:
        for n in range(5):
            await way.send(n)
        await wait_for(lambda: len(running) == concurrency)
        assert receiver.metrics().messages_received == concurrency
        gate.set()
        await wait_for(lambda: len(facts.attempts) == 5)


@over(ways=[*FIVE, Call], transports=[*THOROUGH, "sqs"])
async def test_a_busy_receiver_leaves_the_rest_to_its_neighbor(way: Way) -> None:
    gate = asyncio.Event()
    took: dict[str, list[int]] = {"first": [], "second": []}

    async def waits(n: int, ctx: Any) -> int:
        took["first"].append(n)
        await gate.wait()
        return n

    async def handles(n: int, ctx: Any) -> int:
        took["second"].append(n)
        return n

    async with way.receiving(waits, concurrency=1):
        sending = [asyncio.create_task(way.send(0))]
        await wait_for(lambda: took["first"] == [0])
        sending += [asyncio.create_task(way.send(n)) for n in range(1, 6)]
        if not isinstance(way, Call):  # whose sends wait for an answer
            await asyncio.gather(*sending)
        async with way.receiving(handles, concurrency=1):
            await wait_for(lambda: sorted(took["second"]) == [1, 2, 3, 4, 5])
            gate.set()
            await asyncio.gather(*sending)
    assert took["first"] == [0]
