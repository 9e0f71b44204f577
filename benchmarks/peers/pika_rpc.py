"""Raw pika on asyncio with direct reply-to, as the wire format says, without confirms."""

# pyright: basic, reportMissingImports=false
from __future__ import annotations

import asyncio
import json
import sys
import uuid
from typing import Any

import pika
import rabbit
import rpc_harness
from pika.adapters.asyncio_connection import AsyncioConnection

URL, QUEUE = sys.argv[2], "bench.rpc.pika"
DIRECT = "amq.rabbitmq.reply-to"


class PikaRpc:
    def __init__(self) -> None:
        self.connection: Any = None
        self.waiting: dict[str, asyncio.Future[bytes]] = {}

    async def open_channel(self) -> Any:
        loop = asyncio.get_running_loop()
        opened: asyncio.Future[Any] = loop.create_future()
        self.connection = AsyncioConnection(
            pika.URLParameters(URL),
            on_open_callback=opened.set_result,
            on_open_error_callback=lambda _, error: opened.set_exception(error),
        )
        await opened
        got: asyncio.Future[Any] = loop.create_future()
        self.connection.channel(on_open_callback=got.set_result)
        return await got

    async def serve(self) -> None:
        rabbit.remove(URL, QUEUE)
        rabbit.declare(URL, QUEUE, quorum=False)
        channel = await self.open_channel()

        def on_message(_: Any, method: Any, properties: Any, body: bytes) -> None:
            result = json.dumps(json.loads(body)["amount"] + 1).encode()
            reply = pika.BasicProperties(
                content_type="application/json", correlation_id=properties.correlation_id
            )
            channel.basic_publish("", properties.reply_to, result, reply)
            channel.basic_ack(method.delivery_tag)

        loop = asyncio.get_running_loop()
        limited: asyncio.Future[Any] = loop.create_future()
        channel.basic_qos(prefetch_count=100, callback=limited.set_result)
        await limited
        started: asyncio.Future[Any] = loop.create_future()
        channel.basic_consume(QUEUE, on_message, callback=started.set_result)
        await started

    async def connect(self) -> None:
        self.channel = await self.open_channel()
        started: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def on_reply(_: Any, method: Any, properties: Any, body: bytes) -> None:
            future = self.waiting.pop(properties.correlation_id, None)
            if future is not None:
                future.set_result(body)

        self.channel.basic_consume(DIRECT, on_reply, auto_ack=True, callback=started.set_result)
        await started

    async def call(self, payload: dict[str, Any]) -> Any:
        id_ = str(uuid.uuid4())
        future = self.waiting[id_] = asyncio.get_running_loop().create_future()
        properties = pika.BasicProperties(
            content_type="application/json",
            delivery_mode=1,
            correlation_id=id_,
            reply_to=DIRECT,
            message_id=id_,
            type="ADD",
        )
        self.channel.basic_publish("", QUEUE, json.dumps(payload).encode(), properties)
        async with asyncio.timeout(30):
            return json.loads(await future)

    async def close(self) -> None:
        self.connection.close()
        for _ in range(100):
            if self.connection.is_closed:
                break
            await asyncio.sleep(0.01)


if __name__ == "__main__":
    rpc_harness.run(PikaRpc())
