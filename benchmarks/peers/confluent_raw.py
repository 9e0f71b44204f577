"""Bare confluent-kafka: a delivery report for each message, one commit for 64 after the handler.

A group of messages is flushed, which is the quickest way there is: with the default linger of 5 ms
they travel in one request, and the flush ends the linger. Without the flush it takes at least twice
as long, whatever the linger.
"""

# pyright: basic, reportMissingImports=false
from __future__ import annotations

import json
import sys
import threading
from typing import Any

import harness
import kafka_topics
from confluent_kafka import Consumer, Producer

URL, TOPIC, GROUP = sys.argv[2], "bench.raw", "bench.raw"
SERVERS = kafka_topics.servers_of(URL)
WINDOW = 64


class Confluent:
    """Blocks the event loop of the harness, which has nothing else to do."""

    def __init__(self) -> None:
        self.stopping = False
        self.thread: threading.Thread | None = None
        self.reports = 0

    async def fresh(self, url: str) -> None:
        kafka_topics.make(url, TOPIC, GROUP)

    async def connect(self) -> None:
        settings = {"bootstrap.servers": SERVERS, "acks": "all", "enable.idempotence": True}
        self.producer: Any = Producer(settings)
        self.producer.list_topics(TOPIC, timeout=10)

    def reported(self, error: Any, message: Any) -> None:
        if error is not None:
            raise SystemExit(str(error))
        self.reports += 1

    def produce(self, payload: harness.Payload) -> None:
        self.producer.produce(TOPIC, json.dumps(payload).encode(), on_delivery=self.reported)

    async def send(self, payload: harness.Payload) -> None:
        self.fill([payload])

    async def send_many(self, payloads: list[harness.Payload]) -> None:
        """In groups: the next one follows when all of this one are stored."""
        for start in range(0, len(payloads), WINDOW):
            self.fill(payloads[start : start + WINDOW])

    def fill(self, payloads: list[harness.Payload]) -> None:
        wanted = self.reports + len(payloads)
        for payload in payloads:
            self.produce(payload)
        while self.reports < wanted:
            self.producer.flush(1)

    async def work(self, handle: harness.Handle) -> None:
        settings = {"bootstrap.servers": SERVERS, "group.id": GROUP, "enable.auto.commit": False}
        consumer: Any = Consumer({**settings, "auto.offset.reset": "earliest"})
        consumer.subscribe([TOPIC])

        def loop() -> None:
            while not self.stopping:
                first = consumer.poll(0.1)
                if first is None:
                    continue
                for message in (first, *consumer.consume(WINDOW - 1, 0)):
                    handle(json.loads(message.value()))
                consumer.commit(asynchronous=False)
            consumer.close()

        self.thread = threading.Thread(target=loop)
        self.thread.start()

    async def close(self) -> None:
        self.stopping = True
        if self.thread is not None:
            self.thread.join()

    async def left(self) -> int:
        return kafka_topics.left(URL, TOPIC, GROUP)


if __name__ == "__main__":
    harness.run_async(Confluent())
