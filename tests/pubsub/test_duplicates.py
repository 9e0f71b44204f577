"""Duplicates: one run for all of them, also at the same time; failures and nacks are no results."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.support.pubsub import Place

from matador.pubsub import AckStrategy, Deduplication, MessageContext
from matador.testing import wait_for


async def test_duplicates_run_once(place: Place) -> None:
    sub = place.subscriber("orders", deduplication=Deduplication())
    runs: list[str] = []

    @sub.on("#")
    async def handle(message: str) -> None:
        runs.append(message)
        await asyncio.sleep(0)

    async with sub, place.publisher() as publisher:
        for _ in range(3):
            await publisher.publish("a", "one", message_id="m-1")
        await publisher.publish("a", "two", message_id="m-2")
        await wait_for(lambda: sub.counters.succeeded == 4)
    assert sorted(runs) == ["one", "two"]
    assert sub.counters.duplicates == 2


async def test_duplicates_at_the_same_time_share_the_outcome(place: Place) -> None:
    sub = place.subscriber("orders", deduplication=Deduplication(key=lambda data: data["key"]))
    runs: list[Any] = []
    go = asyncio.Event()

    @sub.on("#")
    async def handle(message: dict[str, Any]) -> None:
        runs.append(message)
        await go.wait()

    async with sub, place.publisher() as publisher:
        await publisher.publish_many([("a", {"key": 7, "n": n}) for n in range(5)])
        await wait_for(lambda: sub.counters.received == 5)
        assert len(runs) == 1
        go.set()
        await wait_for(lambda: sub.counters.succeeded == 5)
    assert len(runs) == 1
    assert sub.counters.duplicates == 4


async def test_a_failure_is_no_result(place: Place) -> None:
    sub = place.subscriber("orders", deduplication=Deduplication())
    attempts: list[int] = []

    @sub.on("#")
    async def handle(message: int, ctx: MessageContext) -> None:
        attempts.append(ctx.attempts)
        if ctx.attempts == 1:
            raise ValueError("not yet")

    async with sub, place.publisher() as publisher:
        await publisher.publish("a", 1)
        await wait_for(lambda: sub.counters.succeeded == 1)
    assert attempts == [1, 2]
    assert sub.counters.duplicates == 0


async def test_a_nack_after_the_return_is_no_result(place: Place) -> None:
    manual = AckStrategy(mode="manual")
    sub = place.subscriber("orders", ack=manual, deduplication=Deduplication())
    contexts: list[MessageContext] = []

    @sub.on("#")
    async def handle(message: int, ctx: MessageContext) -> None:
        contexts.append(ctx)

    async with sub, place.publisher() as publisher:
        await publisher.publish("a", 1)
        await wait_for(lambda: len(contexts) == 1)
        contexts[0].nack(requeue=True)
        await wait_for(lambda: len(contexts) == 2)
        contexts[1].ack()
        await wait_for(lambda: sub.counters.succeeded == 1)
        await publisher.publish("a", 1, message_id=contexts[0].message_id)
        await wait_for(lambda: sub.counters.duplicates == 1)
    assert len(contexts) == 2
