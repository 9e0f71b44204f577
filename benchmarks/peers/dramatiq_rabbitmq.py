"""Dramatiq on RabbitMQ, with confirms: a quorum queue, one worker with 8 threads."""

# pyright: basic, reportMissingImports=false
from __future__ import annotations

import logging
import sys
import time
from typing import Any

import dramatiq
import harness
import rabbit
from dramatiq.brokers.rabbitmq import RabbitmqBroker

URL, QUEUE = sys.argv[2], "bench.dramatiq"
THREADS = 8  # its default; more only fight for the interpreter
logging.disable(logging.CRITICAL)


class OnQuorumQueues(RabbitmqBroker):
    def _build_queue_arguments(self, queue_name: str) -> dict[str, Any]:
        return super()._build_queue_arguments(queue_name) | rabbit.QUORUM


class Dramatiq:
    def __init__(self) -> None:
        self.handle: Any = None
        self.worker: Any = None
        self.broker = OnQuorumQueues(url=URL, confirm_delivery=True, middleware=[])
        dramatiq.set_broker(self.broker)

        @dramatiq.actor(queue_name=QUEUE)
        def count(payload: dict) -> None:
            self.handle(payload)

        self.actor = count

    def fresh(self, url: str) -> None:
        rabbit.remove(URL, QUEUE, f"{QUEUE}.DQ", f"{QUEUE}.XQ")

    def connect(self) -> None:
        self.broker.declare_queue(QUEUE, ensure=True)

    def send(self, payload: harness.Payload) -> None:
        self.actor.send(payload)

    def fill(self, payloads: list[harness.Payload]) -> None:
        harness.by_threads(self.send, payloads)

    def work(self, handle: harness.Handle) -> None:
        self.handle = handle
        self.worker = dramatiq.Worker(self.broker, worker_threads=THREADS)
        self.worker.start()
        time.sleep(0.3)

    def close(self) -> None:
        time.sleep(0.05)
        if self.worker is not None:
            self.worker.stop()
        self.broker.close()

    def left(self) -> int:
        return rabbit.left(URL, QUEUE)


if __name__ == "__main__":
    harness.run_sync(Dramatiq())
