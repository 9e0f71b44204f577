"""Bare pika on the other side, as services in other languages use RabbitMQ."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from base64 import b64encode
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pika
import pytest
from tests.rpc.conftest import Place
from tests.support.rabbitmq import Raw

from matador.errors import InvalidMessageError
from matador.rpc import AckStrategy, RemoteError, RpcContext, RpcTimeoutError
from matador.testing import wait_for

pytestmark = [pytest.mark.broker, pytest.mark.parametrize("place", ["rabbitmq"], indirect=True)]

DIRECT = "amq.rabbitmq.reply-to"


class BareClient:
    """A client written by hand."""

    def __init__(self, url: str, queue: str) -> None:
        self._connection = pika.BlockingConnection(pika.URLParameters(url))
        self._channel: Any = self._connection.channel()
        self._queue = queue
        self._replies: list[tuple[Any, bytes]] = []
        self._channel.basic_consume(DIRECT, self._arrived, auto_ack=True)

    def _arrived(self, channel: Any, method: Any, properties: Any, body: bytes) -> None:
        self._replies.append((properties, body))

    def send(self, body: bytes, **properties: Any) -> None:
        given = pika.BasicProperties(
            content_type="application/json",
            delivery_mode=1,
            timestamp=int(time.time() * 1000),
            **properties,
        )
        self._channel.basic_publish("", self._queue, body, given)

    def call(self, body: bytes, **properties: Any) -> tuple[Any, Any]:
        """The properties of the reply, and what is in it."""
        self.send(body, reply_to=DIRECT, **properties)
        until = time.monotonic() + 20
        while not self._replies:
            assert time.monotonic() < until, "no reply"
            self._connection.process_data_events(0.05)  # type: ignore[arg-type] - takes floats
        found, reply = self._replies.pop()
        return found, json.loads(reply)

    def close(self) -> None:
        self._connection.close()


async def test_a_client_written_by_hand_calls_our_server(place: Place) -> None:
    server = place.server()
    seen: list[RpcContext] = []

    @server.handler("ADD")
    async def add(data: dict[str, int], ctx: RpcContext) -> int:
        seen.append(ctx)
        return data["a"] + data["b"]

    @server.handler("NOTHING")
    async def nothing() -> None: ...

    @server.handler("FAIL")
    async def fail() -> None:
        raise LookupError("not here")

    async with server:
        bare = await asyncio.to_thread(BareClient, place.url, place.queue)
        try:
            properties, result = await asyncio.to_thread(
                bare.call,
                b'{"a": 1, "b": 2}',
                type="add",
                correlation_id="c-1",
                message_id="m-1",
                headers={"tenant": "acme", "flag": True, "odd": [1, {"a": None}]},
            )
            assert result == 3
            assert properties.correlation_id == "c-1"
            assert properties.content_type == "application/json"
            assert properties.delivery_mode is None
            assert properties.message_id is None
            assert properties.timestamp is None
            assert not properties.headers
            assert (seen[0].message_id, seen[0].correlation_id) == ("m-1", "c-1")
            assert seen[0].headers["tenant"] == "acme"
            assert seen[0].deadline is None
            assert (await asyncio.to_thread(bare.call, b"{}", type="NOTHING"))[1] is None
            assert (await asyncio.to_thread(bare.call, b"{}", type="Fail"))[1] == {
                "error": {"code": "LookupError", "message": "not here"}
            }
            _, unknown = await asyncio.to_thread(bare.call, b"1", type="NOPE")
            assert unknown == {
                "error": {
                    "code": "ValidationError",
                    "message": "No handler registered for command: NOPE",
                    "details": {
                        "command": "NOPE",
                        "registeredCommands": ["ADD", "FAIL", "NOTHING"],
                    },
                }
            }
        finally:
            await asyncio.to_thread(bare.close)


@pytest.mark.parametrize("body", [b"", b"{", b"\xff\xfe", b"[1,\0]", b"[" * 100_000, b'{"a":1}'])
async def test_malformed_requests_get_an_error_reply(place: Place, body: bytes) -> None:
    server = place.server()

    @server.handler("ADD")
    async def add(data: list[int]) -> int:
        return sum(data)

    async with server:
        bare = await asyncio.to_thread(BareClient, place.url, place.queue)
        try:
            _, reply = await asyncio.to_thread(bare.call, body, type="ADD", correlation_id="c")
            assert reply["error"]["code"] == "ValidationError"
            _, reply = await asyncio.to_thread(bare.call, body)  # no type, no correlation id
            assert reply["error"]["code"] == "ValidationError"
            await asyncio.to_thread(bare.send, body, type="ADD")  # nobody to be told
            _, reply = await asyncio.to_thread(bare.call, b"[1, 2]", type="ADD")
            assert reply == 3
        finally:
            await asyncio.to_thread(bare.close)
        await wait_for(lambda: server.metrics().messages_received == 4 and server.in_flight == 0)


@pytest.mark.parametrize("reply_to", ["nobody", f"{DIRECT}.gone", "x" * 255, "caf\xe9\n"])
async def test_a_reply_to_nobody_is_dropped(place: Place, reply_to: str) -> None:
    server = place.server()

    @server.handler("PING")
    async def ping() -> str:
        return "pong"

    async with server:
        bare = await asyncio.to_thread(BareClient, place.url, place.queue)
        try:
            await asyncio.to_thread(bare.send, b"1", type="PING", reply_to=reply_to)
            _, reply = await asyncio.to_thread(bare.call, b"1", type="PING")
            assert reply == "pong"
            await wait_for(lambda: server.metrics().messages_succeeded == 2)
        finally:
            await asyncio.to_thread(bare.close)


async def test_a_caller_whose_queue_is_full_holds_up_nobody(place: Place) -> None:
    server = place.server(concurrency=1)

    @server.handler("PING")
    async def ping() -> str:
        return "pong"

    full = f"{place.queue}.replies"
    with Raw(place.url) as raw:
        raw.declare_queue(full, x_max_length=1, x_overflow="reject-publish")
        raw.publish("", full, b"it is full", {})
        try:
            async with server, place.client() as client:
                for _ in range(30):
                    raw.publish("", place.queue, b"1", {}, type="PING", reply_to=full)
                assert await client.call("PING", timeout=60) == "pong"
        finally:
            raw.channel.queue_delete(full)


def address_of(node: bytes) -> str:
    """A direct reply-to address as RabbitMQ makes them, for a process of this node."""
    process = b"\x83Xv" + len(node).to_bytes(2, "big") + node + b"\0\0\x3b\x94" + b"\0" * 8
    return f"{DIRECT}.{b64encode(process).decode()}.a2V5"


@pytest.mark.parametrize(
    "reply_to",
    [f"{DIRECT}.!!!!.key", f"{DIRECT}.aGVsbG8=.key", address_of(b"reply@1"), address_of(b"nobody")],
    ids=["no base64", "no process", "of a node that is gone", "of no node"],
)
async def test_an_address_that_rabbitmq_cannot_resolve_costs_no_connection(
    place: Place, reply_to: str, caplog: pytest.LogCaptureFixture
) -> None:
    """RabbitMQ would end the connection, and with it what the server is handling."""
    server = place.server(concurrency=2)
    runs: list[str] = []

    @server.handler("PING")
    async def ping(data: str) -> str:
        runs.append(data)
        return "pong"

    async with server, place.client() as client:
        with Raw(place.url) as raw:
            for _ in range(3):
                raw.publish("", place.queue, b'"odd"', {}, type="PING", reply_to=reply_to)
                assert await client.call("PING", "good", timeout=20) == "pong"
        await wait_for(lambda: server.metrics().messages_succeeded == 6)
    assert sorted(runs) == ["good"] * 3 + ["odd"] * 3
    assert "lost the connection" not in caplog.text
    assert "cannot resolve the address" in caplog.text


class BareServer:
    """A server written by hand, in a thread of its own."""

    def __init__(self, url: str, queue: str) -> None:
        self._url = url
        self._queue = queue
        self.requests: list[tuple[Any, Any, bytes]] = []
        self._ready = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()
        assert self._ready.wait(20)

    def _serve(self) -> None:
        connection = pika.BlockingConnection(pika.URLParameters(self._url))
        channel: Any = connection.channel()
        channel.queue_declare(self._queue, durable=True)
        channel.basic_qos(prefetch_count=10)
        channel.basic_consume(self._queue, self._handle)
        self._ready.set()
        while not self._stop.is_set():
            connection.process_data_events(0.02)  # type: ignore[arg-type] - takes floats
        connection.close()

    def _handle(self, channel: Any, method: Any, properties: Any, body: bytes) -> None:
        self.requests.append((method, properties, body))
        for reply, correlation_id in self._replies(properties, body):
            channel.basic_publish(
                "",
                properties.reply_to,
                reply,
                pika.BasicProperties(
                    content_type="application/json", correlation_id=correlation_id
                ),
            )
        channel.basic_ack(method.delivery_tag)

    def _replies(self, properties: Any, body: bytes) -> Iterator[tuple[bytes, str | None]]:
        mine = properties.correlation_id
        match properties.type:
            case "ADD":
                given = json.loads(body)
                yield json.dumps(given["a"] + given["b"]).encode(), mine
            case "FAIL":
                error = {"code": "NOPE", "message": "no", "details": {"a": 1}}
                yield json.dumps({"error": error}).encode(), mine
            case "GARBAGE":
                yield b"\xff{", mine
            case "EMPTY":
                yield b"", mine
            case "DEEP":
                yield b"[" * 100_000, mine
            case "TWICE":
                yield b'"first"', mine
                yield b'"second"', mine
            case "STRANGE":
                yield b'"none"', None
                yield b'"other"', "unknown"
                yield b'"mine"', mine
            case _:
                return

    def close(self) -> None:
        self._stop.set()
        self._thread.join()


async def test_our_client_calls_a_server_written_by_hand(place: Place) -> None:
    bare = await asyncio.to_thread(BareServer, place.url, place.queue)
    try:
        async with place.client() as client:
            total = await client.call(
                "add", {"a": 1, "b": 2}, metadata={"tenant": "acme"}, correlation_id="c", timeout=20
            )
            assert total == 3
            method, properties, body = bare.requests[0]
            assert (method.exchange, method.routing_key) == ("", place.queue)
            assert body == b'{"a":1,"b":2}'
            assert properties.type == "ADD"
            assert properties.content_type == "application/json"
            assert properties.delivery_mode == 1
            assert properties.correlation_id == "c"
            assert properties.reply_to.startswith(DIRECT)
            assert UUID(properties.message_id)
            assert abs(properties.timestamp / 1000 - time.time()) < 60
            assert properties.expiration is None
            assert properties.headers.pop("x-matador-expires-at")
            assert properties.headers == {"tenant": "acme"}
            with pytest.raises(RemoteError) as caught:
                await client.call("fail", timeout=20)
            assert (caught.value.code, caught.value.details) == ("NOPE", {"a": 1})
            for command in ("garbage", "empty", "deep"):
                with pytest.raises(InvalidMessageError, match=command.upper()):
                    await client.call(command, timeout=20)
            assert await client.call("twice", timeout=20) == "first"
            assert await client.call("strange", timeout=20) == "mine"
            with pytest.raises(RpcTimeoutError):
                await client.call("silent", timeout=0.2)
            assert await client.call("add", {"a": 3, "b": 4}, timeout=20) == 7
            await client.notify("log", {"text": "hi"})
            await wait_for(lambda: bare.requests[-1][1].type == "LOG")
            assert bare.requests[-1][1].reply_to is None
    finally:
        await asyncio.to_thread(bare.close)


async def test_a_queue_that_was_declared_without_dead_letters_has_them(place: Place) -> None:
    """RabbitMQ does not change the arguments of a queue that exists."""
    with Raw(place.url) as raw:
        raw.channel.queue_declare(place.queue, durable=True)
        server = place.server(ack=AckStrategy(max_retries=1))

        @server.handler("fail")
        async def fail(data: str) -> None:
            raise ValueError("no")

        async with server, place.client() as client:
            await client.notify("fail", "kept")
            with pytest.raises(RemoteError):
                await client.call("fail", "kept, too", timeout=20)
            await wait_for(lambda: server.metrics().messages_dead_lettered == 2)
        letters = [raw.get(f"{place.queue}.dlq") for _ in range(2)]
    assert {body for _, _, body in letters} == {b'"kept"', b'"kept, too"'}
    for _, properties, _ in letters:  # nobody waits for it: it neither expires nor is it answered
        assert properties.reply_to is None
        assert properties.expiration is None
        assert properties.delivery_mode == 2


async def test_one_at_a_time_takes_one(place: Place) -> None:
    servers = [place.server(concurrency=1), place.server(concurrency=1)]
    ran: list[int] = []
    go_on = asyncio.Event()

    for number, server in enumerate(servers):

        @server.handler("work")
        async def work(data: int, number: int = number) -> None:
            ran.append(number)
            await go_on.wait()

    async with servers[0], servers[1], place.client() as client:
        for n in range(10):
            await client.notify("work", n)
        await wait_for(lambda: sorted(ran) == [0, 1])
        with Raw(place.url) as raw:
            assert raw.count(place.queue) == 8  # the others wait for whichever server is free
        go_on.set()
        await wait_for(lambda: len(ran) == 10)
