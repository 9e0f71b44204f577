"""Duplicates of what is published: a nack is no result, and each queue has its own."""

from __future__ import annotations

from tests.support.pubsub import Place, pipeline

from matador import MemoryDuplicateStore
from matador.pubsub import AckStrategy, Deduplication, MessageContext
from matador.testing import wait_for


@pipeline
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
        await wait_for(lambda: sub.metrics().messages_succeeded == 1)
        await publisher.publish("a", 1, message_id=contexts[0].message_id)
        await wait_for(lambda: sub.metrics().duplicates == 1)
    assert len(contexts) == 2


async def test_queues_that_share_a_store_get_every_message(place: Place) -> None:
    """A published message has the same id in every queue: it is no duplicate of itself."""
    store = MemoryDuplicateStore()
    first = place.subscriber("first", deduplication=Deduplication(store=store))
    second = place.subscriber("second", deduplication=Deduplication(store=store))
    runs: list[str] = []

    @first.on("#")
    async def analytics(message: int) -> None:
        runs.append("first")

    @second.on("#")
    async def mail(message: int) -> None:
        runs.append("second")

    async with first, second, place.publisher() as publisher:
        await publisher.publish("a", 1)
        await wait_for(
            lambda: first.metrics().messages_succeeded == second.metrics().messages_succeeded == 1
        )
    assert sorted(runs) == ["first", "second"]
