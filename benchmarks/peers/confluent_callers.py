"""Bare confluent-kafka on asyncio: each caller awaits the delivery report of its own message.

A thread serves the reports. They wake the event loop once a burst, not once a report.
"""

# pyright: basic, reportMissingImports=false
from __future__ import annotations

import asyncio
import json
import threading
from collections import deque
from typing import Any

import confluent_raw
import harness
from confluent_kafka import Producer


class ConfluentCallers(confluent_raw.Confluent):
    async def connect(self) -> None:
        settings = {"acks": "all", "enable.idempotence": True, "linger.ms": 0}
        self.producer: Any = Producer({"bootstrap.servers": confluent_raw.SERVERS, **settings})
        self.producer.list_topics(confluent_raw.TOPIC, timeout=10)
        self.loop = asyncio.get_running_loop()
        self.stored: deque[tuple[asyncio.Future[None], Any]] = deque()
        self.woken = False
        self.thread = threading.Thread(target=self.serve)
        self.thread.start()

    def serve(self) -> None:
        while not self.stopping:
            self.producer.poll(0.1)

    async def send(self, payload: harness.Payload) -> None:
        done: asyncio.Future[None] = self.loop.create_future()

        def reported(error: Any, message: Any) -> None:
            self.stored.append((done, error))
            if not self.woken:
                self.woken = True
                self.loop.call_soon_threadsafe(self.wake)

        body = json.dumps(payload).encode()
        self.producer.produce(confluent_raw.TOPIC, body, on_delivery=reported)
        await done

    def wake(self) -> None:
        self.woken = False
        while self.stored:
            done, error = self.stored.popleft()
            if error is not None:
                raise SystemExit(str(error))
            done.set_result(None)

    async def send_many(self, payloads: list[harness.Payload]) -> None:
        await harness.by_callers(self.send, payloads)


if __name__ == "__main__":
    harness.run_async(ConfluentCallers())
