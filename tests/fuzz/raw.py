"""Odd entries by the thousand, written past each transport, under a whole application.

What is written, and what must hold, is the compliance suite's (``matador.testing.compliance.raw``);
here are the transports, on real servers.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from time import perf_counter
from typing import TypeAlias
from uuid import uuid4

from tests.support.brokers import find_broker

from matador.model.topology import Topology
from matador.testing.compliance.raw import RawEntries, feed
from matador.transports.base import Transport

BATCH = 100
PATIENCE = 60.0
SHOWN = 5

Place: TypeAlias = AbstractAsyncContextManager[tuple[Transport, RawEntries]]
Make: TypeAlias = Callable[[str, Topology], Place]


@asynccontextmanager
async def sqlite(url: str, topology: Topology) -> AsyncGenerator[tuple[Transport, RawEntries]]:
    from tests.support.raw_sqlite import SqliteEntries

    from matador.transports.sqlite import SqliteTransport

    with tempfile.TemporaryDirectory() as folder:
        transport = SqliteTransport(Path(folder) / "fuzz.db", synchronous="NORMAL")
        await transport.connect()
        await transport.apply_topology(topology)
        await transport.disconnect()
        yield transport, SqliteEntries(transport.path)


@asynccontextmanager
async def memory(url: str, topology: Topology) -> AsyncGenerator[tuple[Transport, RawEntries]]:
    from tests.support.raw_memory import MemoryEntries

    from matador.transports.memory import MemoryTransport

    transport = MemoryTransport()
    yield transport, MemoryEntries(transport)


@asynccontextmanager
async def rabbitmq(url: str, topology: Topology) -> AsyncGenerator[tuple[Transport, RawEntries]]:
    from tests.support.rabbitmq import Raw
    from tests.support.raw_rabbitmq import RawRabbitMQ

    from matador.transports.rabbitmq import RabbitMQTransport

    try:
        yield RabbitMQTransport(url), RawRabbitMQ(url)
    finally:
        with Raw(url) as raw:
            raw.delete([topology], [])


def redis(mode: str) -> Make:
    @asynccontextmanager
    async def make(url: str, topology: Topology) -> AsyncGenerator[tuple[Transport, RawEntries]]:
        from tests.support import raw_redis
        from tests.support.redis import forget_keys

        import matador.transports.redis as transports

        transport, entries = {
            "streams": (transports.RedisTransport, raw_redis.RawStreams),
            "lists": (transports.RedisListTransport, raw_redis.RawLists),
            "pubsub": (transports.RedisPubSubTransport, raw_redis.RawPubSub),
        }[mode]
        prefix = topology.namespace
        try:
            yield transport(url, prefix=prefix), entries(url, prefix=prefix)
        finally:
            for ending in ("", "-list", "-pubsub"):
                await forget_keys(url, prefix + ending)

    return make


@asynccontextmanager
async def bullmq(url: str, topology: Topology) -> AsyncGenerator[tuple[Transport, RawEntries]]:
    from tests.support.raw_bullmq import RawBullMQ
    from tests.support.redis import forget_keys

    from matador.transports.bullmq import BullMQTransport

    prefix = topology.namespace
    address = url.replace("redis://", "bullmq://", 1)
    try:
        yield BullMQTransport(address, prefix=prefix), RawBullMQ(url, prefix)
    finally:
        await forget_keys(url, prefix)


def sqs(*, fifo: bool) -> Make:
    @asynccontextmanager
    async def make(url: str, topology: Topology) -> AsyncGenerator[tuple[Transport, RawEntries]]:
        from tests.support.raw_sqs import RawSqs
        from tests.support.sqs import CREDENTIALS, forget_queues

        from matador.transports.sqs import SqsTransport

        os.environ.update(CREDENTIALS)
        try:
            yield SqsTransport(url, fifo=fifo, wait=1), RawSqs(url, fifo=fifo)
        finally:
            await forget_queues(url, topology.namespace)

    return make


@asynccontextmanager
async def kafka(url: str, topology: Topology) -> AsyncGenerator[tuple[Transport, RawEntries]]:
    from tests.support.kafka import forget_topics
    from tests.support.raw_kafka import RawKafka

    from matador.transports.kafka import KafkaTransport

    try:
        yield KafkaTransport(url), RawKafka(url)
    finally:
        forget_topics(url, topology.namespace)


TRANSPORTS: dict[str, tuple[str | None, Make]] = {
    "sqlite": (None, sqlite),
    "memory": (None, memory),
    "rabbitmq": ("rabbitmq", rabbitmq),
    "redis": ("redis", redis("streams")),
    "redis-list": ("redis", redis("lists")),
    "redis-pubsub": ("redis", redis("pubsub")),
    "bullmq": ("redis", bullmq),
    "sqs": ("sqs", sqs(fifo=False)),
    "sqs-fifo": ("sqs", sqs(fifo=True)),
    "kafka": ("kafka", kafka),
}
"""By name: the broker of ``script/brokers`` that it needs, if any, and how it is made."""


def run(name: str, *, count: int, seed: int) -> bool | None:
    """Feed one transport, and print what came of it. None: its broker does not run."""
    broker, make = TRANSPORTS[name]
    url = "" if broker is None else find_broker(broker)
    if url is None:
        print(f"{name}: NOT RUN, {broker} is not running: script/brokers up {broker}", flush=True)
        return None
    return asyncio.run(_feed(name, make, url, count, seed))


async def _feed(name: str, make: Make, url: str, count: int, seed: int) -> bool:
    topology = Topology(f"fuzz-{uuid4().hex[:10]}", queues=["events"])
    started = perf_counter()
    async with make(url, topology) as (transport, entries):
        try:
            report = await feed(
                transport, entries, topology, count=count, seed=seed, batch=BATCH, patience=PATIENCE
            )
        finally:
            await entries.close()
    elapsed = perf_counter() - started
    print(
        f"{name}: {report.written:,} odd entries in {elapsed:.1f} s "
        f"({report.written / elapsed:,.0f}/s): {report.handled:,} handled, "
        f"{report.dead_letters:,} dead letters, {report.neighbors:,} good neighbours, "
        f"{len(report.problems)} problems",
        flush=True,
    )
    for problem in report.problems[:SHOWN]:
        print(f"  PROBLEM (seed {seed}) {problem[:3000]}")
    return not report.problems


def run_all(names: list[str], *, count: int, seed: int, all_of_them: bool) -> int:
    """Feed transports one after the other: 1 if one had a problem, or did not run but had to."""
    outcomes = {name: run(name, count=count, seed=seed) for name in names}
    missing = [name for name, outcome in outcomes.items() if outcome is None]
    if missing:
        print(f"\nNOT RUN: {', '.join(missing)}")
    return 1 if False in outcomes.values() or (missing and all_of_them) else 0
