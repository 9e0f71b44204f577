"""Delivery reports: what counts as stored."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from confluent_kafka import OFFSET_INVALID
from confluent_kafka import Message as KafkaMessage
from tests.transports.kafka.conftest import Open

from matador.errors import QueueNotFoundError, SendUnconfirmedError
from matador.model.topology import Topology
from matador.testing import wait_for
from matador.transports.kafka.options import read_kafka_address
from matador.transports.kafka.producer import KafkaProducer, Location, ReportCallback
from matador.transports.kafka.wire import Record


class Reporting(KafkaProducer):
    """Reports each record without an error, at the offset that its value says, if it says one."""

    def _produce(self, records: Sequence[Record], batch: Any) -> None:
        for index, record in enumerate(records):
            offset = int(record.value) if record.value else OFFSET_INVALID
            message = KafkaMessage(topic=record.topic, partition=2, offset=offset)
            ReportCallback(self, batch, index, record)(None, message)


async def test_a_message_that_has_no_place_is_not_confirmed() -> None:
    """The client library calls a message stored that the broker calls a duplicate. A broker says so
    also of the first message in a new partition, if it has refused it and taken the second."""
    settings = {"bootstrap.servers": "127.0.0.1:1", "log_level": 0}
    producer = Reporting(settings, "Kafka at here", lambda _: None, limit=1000)
    try:
        records = [
            Record("shop.events", b"0", None, []),
            Record("shop.events", b"", None, []),
            Record("shop.events", b"7", None, [], located=True),
        ]
        first, second, third = await producer.send(records)
    finally:
        await producer.close()
    assert first is None
    assert isinstance(second, SendUnconfirmedError)
    assert "shop.events, partition 2, calls a message a duplicate" in str(second)
    assert isinstance(third, Location)
    assert third.offset == 7


@pytest.mark.broker
@pytest.mark.xdist_group("kafka")
async def test_a_thread_does_not_wait_for_a_loop_that_is_busy(
    url: str, open_transport: Open, topology: Topology
) -> None:
    """The loop takes the reports of a burst, but not those that a thread waits for: the loop may be
    blocked until the thread has them."""
    await open_transport()
    topic = topology.full_name("events")
    settings = read_kafka_address(url, {}).producer_settings()
    producer = KafkaProducer(settings, "Kafka", lambda _: None, limit=1_000_000)
    records = [Record(topic, b"%d" % number, None, [], located=True) for number in range(300)]
    try:
        with ThreadPoolExecutor(4) as threads:
            for _ in range(5):
                sending = asyncio.ensure_future(producer.send(records))
                await asyncio.sleep(0)  # they are on their way
                blocked = [threads.submit(producer.send_now, records[:20]) for _ in range(4)]
                found = [report for one in blocked for report in one.result(60)]  # no await
                assert all(isinstance(report, Location) for report in found)
                places = [one for one in await sending if isinstance(one, Location)]
                assert len({(one.partition, one.offset) for one in places}) == len(records)
    finally:
        await producer.close()


@pytest.mark.broker
@pytest.mark.xdist_group("kafka")
async def test_every_sender_gets_its_own_reports(
    url: str, open_transport: Open, topology: Topology
) -> None:
    await open_transport()
    topic = topology.full_name("events")
    settings = read_kafka_address(url, {}).producer_settings()
    producer = KafkaProducer(settings, "Kafka", lambda _: None, limit=1_000_000)
    try:
        good = [Record(topic, b"good", None, [], located=True)] * 3
        bad = Record(topic, b"bad", None, [], partition=99)
        sent = await asyncio.gather(*[producer.send([*good, bad, *good]) for _ in range(50)])
        for reports in sent:
            assert isinstance(reports[3], QueueNotFoundError)
        places = [one for reports in sent for one in reports if isinstance(one, Location)]
        assert len({(one.partition, one.offset) for one in places}) == 300
    finally:
        await producer.close()


@pytest.mark.broker
@pytest.mark.xdist_group("kafka")
async def test_a_producer_that_has_sent_leaves_nothing_behind(
    url: str, open_transport: Open, topology: Topology
) -> None:
    """The client library never releases what a delivery report raises. The frames in a traceback
    would keep the producer with its threads and sockets, and take memory for each send."""
    await open_transport()
    settings = read_kafka_address(url, {}).producer_settings()
    producer = KafkaProducer(settings, "Kafka", lambda _: None, limit=1_000_000)
    for _ in range(20):
        await producer.send([Record(topology.full_name("events"), b"1", None, [])])
    await producer.close()
    gone = weakref.ref(producer)
    del producer

    def collected() -> bool:
        gc.collect()
        return gone() is None

    await wait_for(collected)
