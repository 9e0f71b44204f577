"""Dramatiq on Redis: one worker with 8 threads."""

# pyright: basic, reportMissingImports=false
from __future__ import annotations

import logging
import sys
import time
from typing import Any

import dramatiq
import harness
import redis
from dramatiq.brokers.redis import RedisBroker

URL, QUEUE = sys.argv[2], "bench"
THREADS = 8  # its default; more only fight for the interpreter
logging.disable(logging.CRITICAL)


class Dramatiq:
    def __init__(self) -> None:
        self.handle: Any = None
        self.worker: Any = None
        self.broker = RedisBroker(url=URL, middleware=[])
        dramatiq.set_broker(self.broker)

        @dramatiq.actor(queue_name=QUEUE)
        def count(payload: dict) -> None:
            self.handle(payload)

        self.actor = count

    def fresh(self, url: str) -> None:
        redis.Redis.from_url(URL).flushdb()

    def connect(self) -> None:
        self.broker.client.ping()

    def send(self, payload: harness.Payload) -> None:
        self.actor.send(payload)

    def fill(self, payloads: list[harness.Payload]) -> None:
        for payload in payloads:
            self.send(payload)

    def work(self, handle: harness.Handle) -> None:
        self.handle = handle
        self.worker = dramatiq.Worker(self.broker, worker_threads=THREADS)
        self.worker.start()
        time.sleep(0.3)

    def close(self) -> None:
        time.sleep(0.1)
        if self.worker is not None:
            self.worker.stop()
        self.broker.close()

    def left(self) -> int:
        return redis.Redis.from_url(URL).hlen(f"dramatiq:{QUEUE}.msgs")


if __name__ == "__main__":
    harness.run_sync(Dramatiq())
