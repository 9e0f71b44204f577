"""huey on Redis: one consumer with 8 threads, results off, a blocking pop."""

# pyright: basic, reportMissingImports=false
from __future__ import annotations

import logging
import sys
import time
from typing import Any

import harness
import redis
from huey import RedisHuey

URL, QUEUE = sys.argv[2], "bench"
THREADS = 8
logging.disable(logging.CRITICAL)


class Huey:
    def __init__(self) -> None:
        self.handle: Any = None
        self.consumer: Any = None
        self.huey = RedisHuey(QUEUE, url=URL, results=False, blocking=True)

        @self.huey.task()
        def count(payload: dict) -> None:
            self.handle(payload)

        self.task = count

    def fresh(self, url: str) -> None:
        redis.Redis.from_url(URL).flushdb()

    def connect(self) -> None:
        redis.Redis.from_url(URL).ping()

    def send(self, payload: harness.Payload) -> None:
        self.task(payload)

    def fill(self, payloads: list[harness.Payload]) -> None:
        for payload in payloads:
            self.send(payload)

    def work(self, handle: harness.Handle) -> None:
        self.handle = handle
        self.consumer = self.huey.create_consumer(workers=THREADS, periodic=False)
        self.consumer.start()
        time.sleep(0.3)

    def close(self) -> None:
        time.sleep(0.1)
        if self.consumer is not None:
            self.consumer.stop(graceful=False)

    def left(self) -> int:
        return self.huey.pending_count()


if __name__ == "__main__":
    harness.run_sync(Huey())
