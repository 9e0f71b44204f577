"""Delivery reports: what counts as stored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from confluent_kafka import OFFSET_INVALID
from confluent_kafka import Message as KafkaMessage

from matador.errors import SendUnconfirmedError
from matador.transports.kafka.producer import KafkaProducer, Location
from matador.transports.kafka.wire import Record


class Reporting(KafkaProducer):
    """Reports each record without an error, at the offset that its value says, if it says one."""

    def _produce(self, records: Sequence[Record], batch: Any) -> None:
        for index, record in enumerate(records):
            offset = int(record.value) if record.value else OFFSET_INVALID
            message = KafkaMessage(topic=record.topic, partition=2, offset=offset)
            self._reported(batch, index, record, None, message)


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
