"""Taskiq on RabbitMQ: a quorum queue, acknowledged after the handler."""

# pyright: basic, reportMissingImports=false
from __future__ import annotations

import asyncio
import logging
import sys
from typing import Any

import harness
import rabbit
from taskiq.acks import AcknowledgeType
from taskiq.api import run_receiver_task
from taskiq_aio_pika import AioPikaBroker
from taskiq_aio_pika.exchange import Exchange
from taskiq_aio_pika.queue import Queue, QueueType

URL, QUEUE, DEAD, EXCHANGE = sys.argv[2], "bench.taskiq", "bench.taskiq.dead", "bench.taskiq"
logging.disable(logging.WARNING)


class Taskiq:
    def __init__(self) -> None:
        self.handle: Any = None
        self.worker: asyncio.Task[None] | None = None
        self.broker = AioPikaBroker(
            URL,
            qos=harness.CONCURRENCY,
            exchange=Exchange(name=EXCHANGE),
            task_queues=[Queue(name=QUEUE, type=QueueType.QUORUM)],
            dead_letter_queue=Queue(name=DEAD, type=QueueType.QUORUM),
        )

        @self.broker.task(task_name="count")
        async def count(payload: dict) -> None:
            self.handle(payload)

        self.task = count
        self.started = False

    async def fresh(self, url: str) -> None:
        rabbit.remove(URL, QUEUE, DEAD, exchanges=(EXCHANGE,))

    async def connect(self) -> None:
        self.broker.is_worker_process = True
        await self.broker.startup()
        self.started = True

    async def send(self, payload: harness.Payload) -> None:
        await self.task.kiq(payload)

    async def send_many(self, payloads: list[harness.Payload]) -> None:
        await harness.by_callers(self.send, payloads)

    async def work(self, handle: harness.Handle) -> None:
        self.handle = handle
        if not self.started:
            await self.connect()
        self.worker = asyncio.create_task(
            run_receiver_task(
                self.broker,
                max_async_tasks=harness.CONCURRENCY,
                ack_time=AcknowledgeType.WHEN_EXECUTED,
            )
        )
        await asyncio.sleep(0.2)

    async def close(self) -> None:
        await asyncio.sleep(0.05)
        if self.worker is not None:
            self.worker.cancel()
            await asyncio.wait([self.worker])
        await self.broker.shutdown()

    async def left(self) -> int:
        return rabbit.left(URL, QUEUE)


if __name__ == "__main__":
    harness.run_async(Taskiq())
