"""Raw pika on asyncio: a window of 256 unconfirmed messages, one acknowledgement for 64."""

# pyright: basic, reportMissingImports=false
from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import harness
import pika
import rabbit
from pika.adapters.asyncio_connection import AsyncioConnection
from pika.spec import Basic

URL, QUEUE = sys.argv[2], "bench.pika"
WINDOW = 256
ACK = 64


class Pika:
    def __init__(self) -> None:
        self.connections: list[Any] = []
        self.waiting: dict[int, asyncio.Future[None]] = {}
        self.unconfirmed = 0
        self.room: asyncio.Future[None] | None = None
        self.properties = pika.BasicProperties(
            content_type="application/json", delivery_mode=2, message_id="0123456789abcdef"
        )

    async def fresh(self, url: str) -> None:
        rabbit.remove(URL, QUEUE)
        rabbit.declare(URL, QUEUE, quorum=True)

    async def open_channel(self) -> Any:
        loop = asyncio.get_running_loop()
        opened: asyncio.Future[Any] = loop.create_future()
        connection = AsyncioConnection(
            pika.URLParameters(URL),
            on_open_callback=opened.set_result,
            on_open_error_callback=lambda _, error: opened.set_exception(error),
        )
        await opened
        self.connections.append(connection)
        got: asyncio.Future[Any] = loop.create_future()
        connection.channel(on_open_callback=got.set_result)
        return await got

    async def connect(self) -> None:
        self.channel = await self.open_channel()
        self.tag = self.confirmed = 0
        selected: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.channel.confirm_delivery(self.on_confirm, callback=selected.set_result)
        await selected

    def on_confirm(self, frame: Any) -> None:
        assert isinstance(frame.method, Basic.Ack), "not stored"
        if frame.method.multiple:
            self.confirmed = max(self.confirmed, frame.method.delivery_tag)
            self.unconfirmed = self.tag - self.confirmed
        else:
            self.unconfirmed -= 1
            self.confirmed += 1
        if self.room is not None and not self.room.done():
            self.room.set_result(None)

    def publish(self, payload: harness.Payload) -> None:
        self.tag += 1
        self.unconfirmed += 1
        body = json.dumps(payload).encode()
        self.channel.basic_publish("", QUEUE, body, self.properties, mandatory=True)

    async def until(self, unconfirmed: int) -> None:
        while self.unconfirmed > unconfirmed:
            self.room = asyncio.get_running_loop().create_future()
            await self.room

    async def send(self, payload: harness.Payload) -> None:
        self.publish(payload)
        await self.until(0)

    async def send_many(self, payloads: list[harness.Payload]) -> None:
        for payload in payloads:
            self.publish(payload)
            if self.unconfirmed >= WINDOW:
                await self.until(WINDOW - 1)
        await self.until(0)

    async def work(self, handle: harness.Handle) -> None:
        channel = await self.open_channel()
        unacknowledged = 0
        flush: asyncio.TimerHandle | None = None
        loop = asyncio.get_running_loop()
        last = 0

        def acknowledge() -> None:
            nonlocal unacknowledged, flush
            channel.basic_ack(last, multiple=True)
            unacknowledged = 0
            if flush is not None:
                flush.cancel()
                flush = None

        def on_message(_: Any, method: Any, properties: Any, body: bytes) -> None:
            nonlocal unacknowledged, flush, last
            handle(json.loads(body))
            last = method.delivery_tag
            unacknowledged += 1
            if unacknowledged >= ACK:
                acknowledge()
            elif flush is None:
                flush = loop.call_later(0.005, acknowledge)

        limited: asyncio.Future[Any] = loop.create_future()
        channel.basic_qos(prefetch_count=256, callback=limited.set_result)
        await limited
        started: asyncio.Future[Any] = loop.create_future()
        channel.basic_consume(QUEUE, on_message, callback=started.set_result)
        await started

    async def close(self) -> None:
        await asyncio.sleep(0.05)  # the last acknowledgement
        for connection in self.connections:
            connection.close()
        for _ in range(100):
            if all(connection.is_closed for connection in self.connections):
                break
            await asyncio.sleep(0.01)

    async def left(self) -> int:
        return rabbit.left(URL, QUEUE)


if __name__ == "__main__":
    harness.run_async(Pika())
