"""Odd entries, written past the transport, among good messages of each way in.

The compliance suite does this with events. The other ways in read more of a message: what it is a
reply to, its routing key, its type.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

from tests.support.raw_kafka import RawKafka
from tests.support.raw_memory import MemoryEntries
from tests.support.raw_rabbitmq import RawRabbitMQ
from tests.support.raw_redis import RawLists, RawPubSub, RawStreams
from tests.support.raw_sqlite import SqliteEntries
from tests.support.raw_sqs import RawSqs
from tests.ways.ways import Call, ChannelSend, PubSub, Way, over

from matador import StandardRetryPolicy
from matador.errors import MatadorError
from matador.testing import wait_for
from matador.testing.compliance.raw import RawEntries
from matador.transports.base import Measuring

BATCHES, BATCH = int(os.environ.get("MATADOR_RAW_BATCHES", "4")), 25
ONCE = StandardRetryPolicy(max_attempts=1)
FIRST = 1_000_000_000  # none of the odd ones has it, or a number soon after it


class ChannelInLists(ChannelSend):
    name, mode = "lists", "list"


class ChannelInPubSub(ChannelSend):
    name, mode = "redis-pubsub", "pubsub"


async def entries_of(way: Way) -> RawEntries:
    """What writes into a queue that is there already."""
    place = way.place
    address = place.address.partition("?")[0]
    match way.name, place.transport:
        case "lists", _:
            return RawLists(address, prefix=place.tag)
        case "redis-pubsub", _:
            return RawPubSub(address, prefix=place.tag)
        case _, "memory":
            transport: Any = await way.looking()
            return MemoryEntries(transport)
        case _, "sqlite":
            return SqliteEntries(Path(address.removeprefix("sqlite:///")))
        case _, "rabbitmq":
            return RawRabbitMQ(address)
        case _, "redis":
            return RawStreams(address, prefix=place.tag)
        case _, "sqs":
            return RawSqs(place.address)
        case _:
            return RawKafka(address)


async def check(way: Way) -> None:
    seen: Counter[int] = Counter()

    async def handle(n: int, ctx: Any) -> int:
        seen[n] += 1
        return n

    sent = FIRST
    async with way.receiving(handle, retry=ONCE) as receiver:
        entries = await entries_of(way)
        written: list[str] = []
        try:
            for start in range(0, BATCHES * BATCH, BATCH):
                written = [
                    await entries.write(way.queue, Random(f"{way.name}/{one}"))
                    for one in range(start, start + BATCH)
                ]
                for _ in range(3):
                    sent += 1
                    await way.send(sent)
                await wait_for(lambda: seen[sent])  # noqa: B023 - called at once
        except (MatadorError, TimeoutError) as error:
            raise AssertionError(f"{error!r} after {written}") from error
        finally:
            await entries.close()
        assert {n: seen[n] for n in seen if FIRST < n < 2 * FIRST} == dict.fromkeys(
            range(FIRST + 1, sent + 1), 1
        )
        assert receiver.health().status == "healthy"
        assert receiver._connection is not None
        transport = receiver._connection.transport
        if isinstance(transport, Measuring):

            async def is_empty() -> bool:
                return (await transport.depth(way.queue)).total == 0

            await wait_for(is_empty)

        def each_has_one_outcome() -> bool:
            counted = receiver.metrics()
            ended = counted.messages_succeeded + counted.messages_dead_lettered
            ended += counted.messages_discarded + counted.expired
            return ended == counted.messages_received

        if not isinstance(way, Call):  # a reply that nobody takes may make its request come again
            await wait_for(each_has_one_outcome)


@over(ways=[Call, PubSub, ChannelSend])
async def test_odd_entries_and_their_neighbours(way: Way) -> None:
    await check(way)


@over(ways=[ChannelInLists, ChannelInPubSub], transports=["redis"])
async def test_odd_entries_of_other_modes_of_redis(way: Way) -> None:
    await check(way)
