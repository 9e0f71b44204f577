"""A broker that stands still: nothing passes, and no connection is closed.

Calls, messages and jobs are delayed, and none is lost. Whoever is ended meanwhile ends in time.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
import time
from asyncio.subprocess import PIPE
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import pytest
import pytest_asyncio
from chaos.proxy import Proxy
from tests.support.brokers import broker_url
from tests.support.kafka import OwnKafka
from tests.support.left_alone import nothing_left_alone
from tests.support.rabbitmq import Raw
from tests.support.redis import forget_keys

from matador.errors import JobProviderError, SendUnconfirmedError, ShuttingDownError
from matador.jobs import ActiveJob, Queue, Worker
from matador.pubsub import Publisher, Subscriber
from matador.rpc import RpcClient, RpcServer
from matador.testing import wait_for

TIMEOUT = 0.3
AT_ONCE = TIMEOUT + 1 + 4
"""Seconds for what has nothing to give back: a second to disconnect, and a busy machine."""
SOON = AT_ONCE + 5
"""Seconds for what gives back messages, too."""


class Broker:
    """A real broker behind a network that can be frozen."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.own = f"frozen-{uuid4().hex[:12]}"
        self._direct = broker_url(name)
        given = urlsplit(self._direct)
        assert given.port is not None
        self._proxy = Proxy(given.port)
        self.url = self._direct.replace(f":{given.port}", f":{self._proxy.port}")
        if name == "redis":
            self.url += f"?prefix={self.own}"

    def freeze(self) -> None:
        self._proxy.hold()

    def thaw(self) -> None:
        self._proxy.heal()

    async def tidy_up(self) -> None:
        self._proxy.close()
        if self.name == "redis":
            await forget_keys(self._direct, self.own)
            await forget_keys(self._direct, "bull:" + self.own)
        else:
            await asyncio.to_thread(self._delete)

    def _delete(self) -> None:
        queues = (self.own, f"jobs.{self.own}", f"jobs.{self.own}.undeliverable")
        with Raw(self._direct) as raw:
            raw.delete([], [*queues, f"{self.own}.dlq"])
            raw.channel.exchange_delete(self.own)


@pytest_asyncio.fixture(
    params=[
        pytest.param("redis", marks=pytest.mark.broker),
        pytest.param("rabbitmq", marks=[pytest.mark.broker, pytest.mark.xdist_group("rabbitmq")]),
    ]
)
async def broker(request: pytest.FixtureRequest) -> AsyncIterator[Broker]:
    made = Broker(request.param)
    yield made
    made.thaw()
    await nothing_left_alone()
    await made.tidy_up()


class Work:
    """What handlers did, and a gate before which the slow ones wait."""

    def __init__(self) -> None:
        self.runs: Counter[int] = Counter()
        self.gate = asyncio.Event()

    async def quick(self, number: int) -> int:
        self.runs[number] += 1
        return number

    async def slow(self, number: int) -> int:
        self.runs[number] += 1
        await self.gate.wait()
        return number


def rpc(broker: Broker, work: Work) -> tuple[RpcServer, RpcClient]:
    server = RpcServer(broker.url, queue=broker.own)
    server.register("quick", work.quick)
    server.register("slow", work.slow)
    return server, RpcClient(broker.url, queue=broker.own)


def pubsub(broker: Broker, work: Work) -> tuple[Subscriber, Publisher]:
    sub = Subscriber(broker.url, exchange=broker.own, queue=broker.own)

    @sub.on("quick")
    async def quick(number: int) -> None:
        await work.quick(number)

    @sub.on("slow")
    async def slow(number: int) -> None:
        await work.slow(number)

    return sub, Publisher(broker.url, exchange=broker.own)


def jobs(broker: Broker, work: Work) -> tuple[Worker, Queue]:
    async def run(job: ActiveJob[int]) -> int:
        return await (work.slow if job.name == "slow" else work.quick)(job.data)

    url = broker.url.replace("redis://", "bullmq://").partition("?")[0]
    return Worker(broker.own, run, provider=url), Queue(broker.own, provider=url)


async def a_second_in_the_ice(broker: Broker, work: Work, waiting: list[Any]) -> None:
    """Work ends while everything stands still; then all goes on."""
    began = time.monotonic()
    work.gate.set()
    await wait_for(lambda: time.monotonic() > began + 1)
    assert not any(one.done() for one in waiting)
    broker.thaw()


def complaints(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.message for one in caplog.records if one.levelno >= logging.WARNING]


async def test_calls_are_delayed_and_made_once(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    work = Work()
    server, client = rpc(broker, work)
    async with server, client:
        slow = [asyncio.create_task(client.call("slow", number)) for number in range(3)]
        await wait_for(lambda: work.runs.total() == 3)
        broker.freeze()
        quick = [asyncio.create_task(client.call("quick", number)) for number in range(3, 6)]
        told = asyncio.create_task(client.notify("quick", 6))
        await a_second_in_the_ice(broker, work, [*slow, *quick, told])
        async with asyncio.timeout(5):
            assert await asyncio.gather(*slow, *quick) == list(range(6))
            await told
        await wait_for(lambda: work.runs[6] == 1)
    assert work.runs == dict.fromkeys(range(7), 1)
    assert complaints(caplog) == []


async def test_messages_are_delayed_and_delivered_once(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    work = Work()
    sub, publisher = pubsub(broker, work)
    async with sub, publisher:
        await publisher.publish_many([("slow", number) for number in range(3)])
        await wait_for(lambda: work.runs.total() == 3)
        broker.freeze()
        sent = [asyncio.create_task(publisher.publish("quick", number)) for number in range(3, 6)]
        await a_second_in_the_ice(broker, work, sent)
        async with asyncio.timeout(5):
            await asyncio.gather(*sent)
            await wait_for(lambda: work.runs.total() == 6)
    assert work.runs == dict.fromkeys(range(6), 1)
    assert complaints(caplog) == []


async def test_jobs_are_delayed_and_run_once(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    work = Work()
    worker, queue = jobs(broker, work)
    completed: list[str] = []
    worker.on("completed", lambda event: completed.append(event.job_id))
    async with worker, queue:
        await queue.add_many([("slow", number) for number in range(3)])
        await wait_for(lambda: work.runs.total() == 3)
        broker.freeze()
        added = [asyncio.create_task(queue.add("quick", number)) for number in range(3, 6)]
        await a_second_in_the_ice(broker, work, added)
        async with asyncio.timeout(5):
            await asyncio.gather(*added)
            await wait_for(lambda: len(completed) == 6)
    assert work.runs == dict.fromkeys(range(6), 1)
    assert complaints(caplog) == []


class Watch:
    """Measures how long something takes."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began


@pytest.mark.slow
async def test_rpc_ends_in_time(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    work = Work()
    server, client = rpc(broker, work)
    await server.start()
    await client.start()
    slow = asyncio.create_task(client.call("slow", 1))
    await wait_for(lambda: work.runs[1] == 1)
    broker.freeze()
    told = asyncio.create_task(client.notify("quick", 2))
    await asyncio.sleep(0)
    watch = Watch()
    await client.close(TIMEOUT)
    assert watch.seconds < AT_ONCE
    with pytest.raises(ShuttingDownError):
        await slow
    with pytest.raises(SendUnconfirmedError, match="may be stored"):
        await told
    assert "1 sends were given up" in caplog.text
    watch = Watch()
    await server.stop(TIMEOUT)
    assert watch.seconds < SOON
    assert f"stopped early: 1 running in {broker.own}" in caplog.text
    broker.thaw()
    work.gate.set()
    server, client = rpc(broker, work)
    async with server, client:
        assert await client.call("quick", 3) == 3


@pytest.mark.slow
async def test_pubsub_ends_in_time(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    work = Work()
    sub, publisher = pubsub(broker, work)
    await sub.start()
    await publisher.publish("slow", 1)
    await wait_for(lambda: work.runs[1] == 1)
    broker.freeze()
    sent = asyncio.create_task(publisher.publish("quick", 2))
    await asyncio.sleep(0)
    watch = Watch()
    await publisher.close(TIMEOUT)
    assert watch.seconds < AT_ONCE
    with pytest.raises(SendUnconfirmedError, match="may be stored"):
        await sent
    watch = Watch()
    await sub.close(TIMEOUT)
    assert watch.seconds < SOON
    assert f"1 running in {broker.own}" in caplog.text
    broker.thaw()
    work.gate.set()
    sub, publisher = pubsub(broker, work)
    async with sub, publisher:
        await publisher.publish("quick", 3)
        await wait_for(lambda: work.runs[3] == 1 and work.runs[1] >= 2, timeout=60)


@pytest.mark.slow
async def test_jobs_end_in_time(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    work = Work()
    worker, queue = jobs(broker, work)
    await worker.start()
    await queue.add("slow", 1)
    await wait_for(lambda: work.runs[1] == 1)
    broker.freeze()
    added = asyncio.create_task(queue.add("quick", 2))
    await asyncio.sleep(0)
    watch = Watch()
    await queue.close(TIMEOUT)
    assert watch.seconds < AT_ONCE
    with pytest.raises(JobProviderError, match="before the job was confirmed"):
        await added
    watch = Watch()
    await worker.close(TIMEOUT)
    assert watch.seconds < SOON
    assert "1 jobs were still running" in caplog.text
    broker.thaw()
    work.gate.set()
    worker, queue = jobs(broker, work)
    async with worker, queue:
        await queue.add("quick", 3)
        await wait_for(lambda: work.runs[3] == 1 and work.runs[1] >= 2, timeout=90)


SUBSCRIBER = """
import sys
from matador.pubsub import Subscriber
sub = Subscriber(sys.argv[1], exchange=sys.argv[2], queue=sys.argv[2])
@sub.on("#")
async def handle(number: int) -> None:
    print(number, flush=True)
sub.run()
"""


async def terminated(url: str, name: str, freeze: Any) -> float:
    """How long a process takes to end that is told to while its broker stands still."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", SUBSCRIBER, url, name, stdout=PIPE
    )
    try:
        assert process.stdout is not None
        async with Publisher(url, exchange=name) as publisher, asyncio.timeout(60):
            reading = asyncio.create_task(process.stdout.readline())
            while not reading.done():  # it has begun when it has received something
                await publisher.publish("a", 1)
                await asyncio.wait([reading], timeout=0.1)
        freeze()
        watch = Watch()
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(100):
            assert await process.wait() == 0
        return watch.seconds
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


@pytest.mark.slow
@pytest.mark.chaos
@pytest.mark.broker
@pytest.mark.kafka_long
@pytest.mark.xdist_group("kafka-own")
async def test_a_process_ends_while_kafka_stands_still(tmp_path: Path) -> None:
    kafka = OwnKafka(tmp_path)
    await asyncio.to_thread(kafka.start)
    try:
        seconds = await terminated(kafka.url, "frozen", kafka.freeze)
    finally:
        await asyncio.to_thread(kafka.kill)
    assert seconds < 45, "it hung for as long as Kafka did"
