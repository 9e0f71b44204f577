"""A client by itself: its arguments, retries, the buffer and the circuit breaker."""

from __future__ import annotations

import asyncio
import codecs
import contextlib
from collections.abc import Sequence
from typing import Any

import pytest
from tests.support.faulty import FaultyTransport

from matador import Shutdown
from matador.errors import (
    CircuitOpenError,
    ConfigurationError,
    ConnectionLostError,
    MatadorError,
    NotConnectedError,
    SendTimeoutError,
    SendUnconfirmedError,
    ShuttingDownError,
    UnsupportedError,
)
from matador.model.message import ConnectionState, Delivery, Message, Receipt
from matador.rpc import (
    CallRetry,
    CircuitBreaker,
    Deduplication,
    Fixed,
    Recovery,
    RemoteError,
    RpcClient,
    RpcServer,
    RpcTimeoutError,
)
from matador.rpc.client import SyncRpcClient
from matador.rpc.wire import read_reply
from matador.testing import wait_for
from matador.transports import MemoryTransport, MultiTransport


class LossyTransport(FaultyTransport):
    """Loses its connection when it is told to, and drops replies."""

    def __init__(self) -> None:
        super().__init__()
        self.drop_replies = 0
        self.held: list[Message] | None = None

    def lose(self) -> None:
        self._change_state(ConnectionState("reconnecting", 1, OSError("cut")))

    def find(self) -> None:
        self._change_state(ConnectionState("connected"))

    async def send(self, messages: Sequence[Message]) -> Sequence[MatadorError | None]:
        if self.state.status != "connected":
            raise NotConnectedError
        if self.held is not None and not messages[0].id:  # replies, until they are let go
            self.held += messages
            return [None for _ in messages]
        if self.drop_replies and not messages[0].id:
            self.drop_replies -= 1
            return [None for _ in messages]
        return await super().send(messages)


@pytest.mark.parametrize(
    "wrong",
    [
        {"queue": ""},
        {"queue": 7},
        {"queue": "q", "timeout": 0},
        {"queue": "q", "timeout": "soon"},
    ],
)
def test_wrong_arguments(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="RpcClient"):
        RpcClient("memory://", **wrong)


@pytest.mark.parametrize("command", ["", "  ", None, 7])
async def test_a_command_must_be_a_text(command: Any) -> None:
    async with RpcClient("memory://", queue="q") as client:
        with pytest.raises(ConfigurationError, match="command"):
            await client.call(command)
        with pytest.raises(ConfigurationError, match="command"):
            await client.notify(command)


async def test_a_result_type_that_cannot_be_read() -> None:
    async with RpcClient("memory://", queue="q") as client:
        with pytest.raises(ConfigurationError, match="result_type"):
            await client.call("x", result_type=list[int] | set[int])


async def test_a_transport_without_replies() -> None:
    transport = MultiTransport([MemoryTransport()])
    client = RpcClient(transport, queue="q")
    with pytest.raises(UnsupportedError, match="cannot receive replies"):
        await client.start()
    await transport.disconnect()


async def serve(transport: LossyTransport, **options: Any) -> tuple[RpcServer, list[int]]:
    server = RpcServer(transport, queue="q", **options)
    ran: list[int] = []

    @server.handler("count")
    async def count() -> int:
        ran.append(1)
        return len(ran)

    @server.handler("fail")
    async def fail() -> None:
        ran.append(1)
        raise ValueError("no")

    @server.handler("hang")
    async def hang() -> None:
        ran.append(1)
        await asyncio.Event().wait()

    await server.start()
    return server, ran


async def test_a_lost_connection_fails_the_calls_that_were_sent() -> None:
    transport = LossyTransport()
    server, ran = await serve(transport)
    async with RpcClient(transport, queue="q") as client:
        calls = [asyncio.create_task(client.call("hang")) for _ in range(3)]
        await wait_for(lambda: len(ran) == 3)
        transport.lose()
        for call in calls:
            with pytest.raises(ConnectionLostError, match="may or may not have run"):
                await call
        waiting = asyncio.create_task(client.call("count"))
        await wait_for(lambda: client.sender_health.buffered == 1)
        assert client.health().status == "unhealthy"
        transport.find()
        assert await waiting == 4
        assert client.metrics().connection_losses == 1
    await server.shutdown(timeout=0)


async def test_a_call_that_times_out_in_the_buffer_is_not_sent() -> None:
    transport = LossyTransport()
    server, _ = await serve(transport)
    async with RpcClient(transport, queue="q") as client:
        transport.lose()
        with pytest.raises(RpcTimeoutError, match="was not sent"):
            await client.call("count", timeout=0.05)
        transport.find()
        assert await client.call("count") == 1
    await server.shutdown()


async def test_a_call_that_is_cancelled_in_the_buffer_is_not_sent() -> None:
    transport = LossyTransport()
    server, ran = await serve(transport)
    async with RpcClient(transport, queue="q") as client:
        transport.lose()
        given_up = asyncio.create_task(client.call("count"))
        waiting = asyncio.create_task(client.call("count"))
        await wait_for(lambda: client.sender_health.buffered == 2)
        given_up.cancel()
        await asyncio.gather(given_up, return_exceptions=True)
        assert client.pending == 1
        transport.find()
        assert await waiting == 1
        assert (len(ran), client.metrics().messages_sent) == (1, 1)
    await server.shutdown()


async def test_without_a_buffer_calls_fail_at_once() -> None:
    transport = LossyTransport()
    server, _ = await serve(transport)
    async with RpcClient(transport, queue="q", recovery=Recovery(buffer=False)) as client:
        transport.lose()
        with pytest.raises(NotConnectedError):
            await client.call("count")
        transport.find()
        assert await client.call("count") == 1
    await server.shutdown()


async def test_an_open_circuit_fails_calls_at_once() -> None:
    transport = LossyTransport()
    server, ran = await serve(transport)
    breaker = CircuitBreaker(threshold=1, recovery_time=60)
    recovery = Recovery(buffer=False)
    async with RpcClient(
        transport, queue="q", circuit_breaker=breaker, recovery=recovery
    ) as client:
        transport.lose()
        with pytest.raises(NotConnectedError):
            await client.call("count")
        with pytest.raises(CircuitOpenError):
            await client.call("count")
        assert client.sender_health.circuit == "open"
        assert ran == []
        transport.find()
    await server.shutdown()


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (SendUnconfirmedError("lost"), ConnectionLostError),
        (SendTimeoutError("slow"), RpcTimeoutError),
    ],
)
async def test_a_request_without_a_confirmation(
    raised: MatadorError, expected: type[MatadorError]
) -> None:
    transport = LossyTransport()
    async with RpcClient(transport, queue="q") as client:
        transport.send_errors.append(raised)
        with pytest.raises(expected) as caught:
            await client.call("count")
        assert caught.value.__cause__ is raised


async def test_a_late_reply_is_not_taken_for_that_of_the_next_call_with_its_id() -> None:
    transport = LossyTransport()
    server, ran = await serve(transport)
    async with RpcClient(transport, queue="q") as client:
        transport.held = held = list[Message]()
        with pytest.raises(RpcTimeoutError):
            await client.call("count", correlation_id="trace", timeout=0.05)
        await wait_for(lambda: len(held) == 1)
        second = asyncio.create_task(client.call("count", correlation_id="trace", timeout=60))
        await wait_for(lambda: len(held) == 2)
        transport.held = None
        late, expected = held
        assert late.properties is not None
        assert late.properties.correlation_id == "trace"
        await transport.send([late])
        assert await client.call("count") == 3  # whose reply came after the late one
        assert not second.done()
        await transport.send([expected])
        assert await second == 2
    assert len(ran) == 3
    await server.shutdown()


async def test_a_retry_has_the_same_id() -> None:
    transport = LossyTransport()
    server, ran = await serve(transport, deduplication=Deduplication())
    async with RpcClient(transport, queue="q", retry=CallRetry(3, Fixed(0.01))) as client:
        transport.drop_replies = 2
        assert await client.call("count", timeout=1) == 1
        assert len(ran) == 1
        assert client.metrics().messages_sent == 3
    await server.shutdown()


async def test_errors_of_the_server_are_not_tried_again() -> None:
    transport = LossyTransport()
    server, ran = await serve(transport)
    async with RpcClient(transport, queue="q", retry=CallRetry()) as client:
        with pytest.raises(RemoteError):
            await client.call("fail")
        assert len(ran) == 1
    always = CallRetry(2, Fixed(0), when=lambda error, attempt: True)
    async with RpcClient(transport, queue="q", retry=always) as client:
        with pytest.raises(RemoteError):
            await client.call("fail")
        assert len(ran) == 3
    await server.shutdown()


async def test_without_retries_a_lost_reply_is_a_timeout() -> None:
    transport = LossyTransport()
    server, ran = await serve(transport)
    async with RpcClient(transport, queue="q") as client:
        transport.drop_replies = 1
        with pytest.raises(RpcTimeoutError):
            await client.call("count", timeout=1)
        assert len(ran) == 1
    await server.shutdown()


@pytest.mark.parametrize("wrong", [{"attempts": 0}, {"backoff": 1}, {"when": True}], ids=str)
def test_retries_are_checked(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(wrong))):
        CallRetry(**wrong)


def test_a_call_may_be_made_once_only_and_has_a_blocking_form() -> None:
    assert CallRetry(attempts=1).attempts == 1
    client = RpcClient("memory://", queue="q", timeout=0.001)
    assert isinstance(client.sync(), SyncRpcClient)
    assert client.sync() is client.sync()


async def test_the_time_for_a_call_is_checked() -> None:
    async with RpcClient("memory://", queue="q") as client:
        for timeout in (0, -1, 0.0001):
            with pytest.raises(ConfigurationError, match="timeout"):
                await client.call("count", timeout=timeout)


def test_delays_of_retries_grow() -> None:
    waits = [CallRetry().backoff.wait(attempt) for attempt in (1, 2, 3, 100_000)]
    assert waits == [0.1, 0.2, 0.4, 5.0]


async def test_a_call_that_is_made_during_a_shutdown_fails_at_once() -> None:
    client = RpcClient(MemoryTransport(), queue="q")
    server = RpcServer(client._broker.transport, queue="q")

    @server.handler("hang")
    async def hang() -> None:
        await asyncio.Event().wait()

    async def call() -> None:
        while client.is_running:
            with contextlib.suppress(ShuttingDownError):
                await client.call("hang", timeout=600)

    async with server:
        await client.start()
        calling = asyncio.create_task(call())
        await wait_for(lambda: client.pending == 1)
        async with asyncio.timeout(10):
            await client.shutdown()
            await calling
        await server.shutdown(timeout=0)


async def test_a_shutdown_ends_even_if_the_broker_does_not_answer(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    client = RpcClient(MemoryTransport(), queue="q", shutdown=Shutdown(0, grace=0.1))
    await client.start()
    assert client._replies is not None
    never = asyncio.Event()
    monkeypatch.setattr(client._replies._subscription, "close", never.wait)
    async with asyncio.timeout(10):
        await client.shutdown()
    never.set()
    assert "could not stop receiving replies in time" in caplog.text


@pytest.mark.parametrize("body", [b"7", b'{"error": {"code": "Odd", "message": "no"}}'])
def test_a_reply_may_begin_with_a_byte_order_mark(body: bytes) -> None:
    delivery = Delivery(codecs.BOM_UTF8 + body, {}, Receipt("replies", None))
    if b"error" in body:
        with pytest.raises(RemoteError, match="no"):
            read_reply(delivery, None, "ADD")
    else:
        assert read_reply(delivery, None, "ADD") == 7
