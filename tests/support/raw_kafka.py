"""Records as a foreign program writes them to Kafka: odd in every part."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

from confluent_kafka import KafkaError, Producer
from tests.support.kafka import servers_of

from matador.transports.kafka.topics import topic_name

_BODIES: tuple[bytes | None, ...] = (
    *(None, b"", b" ", b"x", b"null", b"true", b"7", b'"text"', b"{", b"[]", b"{}"),
    *(b'{"a":1,"a":2}', b'"\\ud800"', b"\x00", b"\xff\xfe", b"\xed\xa0\x80", bytes(range(256))),
    *(b"[" * 3000, b'{"a":' * 3000, b"x" * 500_000, "é漢😀".encode(), b"\x1f\x8b\x08\x00"),
    *(b'{"id":7,"data":null,"docket":[]}', b"\x00\x00\x00\x00\x01avro"),
    b'{"id":"1","data":{},"docket":{"eventKey":"x","attempts":"many"}}',
)
_KEYS: tuple[bytes | None, ...] = (
    *(None, None, None, b"", b"k", b"\xff", b"\x00" * 8, b"x" * 3000, "é漢😀".encode()),
)
_NAMES = (
    *("plain", "", " ", "é漢😀", "x" * 3000, "a\tb", "__TypeId__", "traceparent"),
    *("x-matador-id", "x-matador-delay", "x-matador-priority", "x-matador-numbers"),
    *("x-matador-properties", "x-matador-dead-letter-reason", "x-matador-attempts"),
)
_VALUES: tuple[bytes | None, ...] = (
    *(None, b"", b"x", b"0", b"-0", b"-1", b"1e3", b"nan", b"inf", b"-inf", b"1e400", b"0x10"),
    *(b"9" * 30, b"9" * 5000, b"\xff", b"\xed\xa0\x80", b"\x00", bytes(range(256)), b"{", b"[]"),
    *(b'["plain"]', b'["plain","plain","no"]', b"[7]", b'"x"', b"[" * 3000, b'{"type":7}'),
    *(b'{"expires_at":"never"}', b"x" * 20_000, "é漢😀".encode(), "١٢٣".encode()),
)


class RawKafka:
    """Sends past the transport. See ``matador.testing.compliance.raw.RawEntries``."""

    def __init__(self, url: str) -> None:
        self._producer = Producer({"bootstrap.servers": servers_of(url), "acks": "all"})

    async def write(self, queue: str, random: Random) -> str:
        """Send one record that is odd; says how."""
        record = _record(random)
        await asyncio.to_thread(self._write, topic_name(queue), record)
        return str(record)[:300]

    def _write(self, topic: str, record: dict[str, Any]) -> None:
        failed: list[KafkaError] = []
        self._producer.produce(
            topic, **record, on_delivery=lambda error, _: failed.append(error) if error else None
        )
        assert self._producer.flush(30) == 0
        assert failed == []

    async def close(self) -> None:
        """Nothing is open for long."""


def _record(random: Random) -> dict[str, Any]:
    headers: list[tuple[str, bytes | None]] = []
    for _ in range(random.choice([0, 1, 2, 5, 30])):
        name, value = random.choice(_NAMES), random.choice(_VALUES)
        if name == "x-matador-delay" and value in (b"1e3", b"9" * 30):
            value = b"soon"  # a delay that is none: entries have to be due
        headers.append((name, value))
    record: dict[str, Any] = {"value": random.choice(_BODIES), "key": random.choice(_KEYS)}
    if headers:
        record["headers"] = headers
    if random.random() < 0.2:
        record["timestamp"] = random.choice([1, 1_000_000_000_000, 1_700_000_000_000])
    return record
