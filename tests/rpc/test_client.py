"""A client by itself: its arguments, retries, the buffer and the circuit breaker."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from tests.support.faulty import FaultyTransport

from matador.errors import (
    CircuitOpenError,
    ConfigurationError,
    ConnectionLostError,
    MatadorError,
    NotConnectedError,
    SendTimeoutError,
    SendUnconfirmedError,
    UnsupportedError,
)
from matador.model.message import ConnectionState, Message
from matador.rpc import (
    CallRetry,
    CircuitBreaker,
    Deduplication,
    Recovery,
    RemoteError,
    RpcClient,
    RpcServer,
    RpcTimeoutError,
)
from matador.testing import wait_for
from matador.transports import MemoryTransport, MultiTransport


class LossyTransport(FaultyTransport):
    """Loses its connection when it is told to, and drops replies."""

    def __init__(self) -> None:
        super().__init__()
        self.drop_replies = 0

    def lose(self) -> None:
        self._change_state(ConnectionState("reconnecting", 1, OSError("cut")))

    def find(self) -> None:
        self._change_state(ConnectionState("connected"))

    async def send(self, messages: Sequence[Message]) -> Sequence[MatadorError | None]:
        if self.state.status != "connected":
            raise NotConnectedError
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
        await wait_for(lambda: client.health().buffered == 1)
        assert client.health().status == "unhealthy"
        transport.find()
        assert await waiting == 4
        assert client.metrics().connection_losses == 3
    await server.stop(force=True)


async def test_a_call_that_times_out_in_the_buffer_is_not_sent() -> None:
    transport = LossyTransport()
    server, _ = await serve(transport)
    async with RpcClient(transport, queue="q") as client:
        transport.lose()
        with pytest.raises(RpcTimeoutError, match="was not sent"):
            await client.call("count", timeout=0.05)
        transport.find()
        assert await client.call("count") == 1
    await server.stop()


async def test_without_a_buffer_calls_fail_at_once() -> None:
    transport = LossyTransport()
    server, _ = await serve(transport)
    async with RpcClient(transport, queue="q", recovery=Recovery(buffer=False)) as client:
        transport.lose()
        with pytest.raises(NotConnectedError):
            await client.call("count")
        transport.find()
        assert await client.call("count") == 1
    await server.stop()


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
        assert client.health().circuit == "open"
        assert ran == []
        transport.find()
    await server.stop()


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


async def test_a_retry_has_the_same_id() -> None:
    transport = LossyTransport()
    server, ran = await serve(transport, deduplication=Deduplication())
    async with RpcClient(transport, queue="q", retry=CallRetry(attempts=3, delay=0.01)) as client:
        transport.drop_replies = 2
        assert await client.call("count", timeout=1) == 1
        assert len(ran) == 1
        assert client.metrics().retries == 2
        assert client.metrics().calls == 3
    await server.stop()


async def test_errors_of_the_server_are_not_tried_again() -> None:
    transport = LossyTransport()
    server, ran = await serve(transport)
    async with RpcClient(transport, queue="q", retry=CallRetry()) as client:
        with pytest.raises(RemoteError):
            await client.call("fail")
        assert len(ran) == 1
    always = CallRetry(attempts=2, delay=0, when=lambda error, attempt: True)
    async with RpcClient(transport, queue="q", retry=always) as client:
        with pytest.raises(RemoteError):
            await client.call("fail")
        assert len(ran) == 3
    await server.stop()


async def test_without_retries_a_lost_reply_is_a_timeout() -> None:
    transport = LossyTransport()
    server, ran = await serve(transport)
    async with RpcClient(transport, queue="q") as client:
        transport.drop_replies = 1
        with pytest.raises(RpcTimeoutError):
            await client.call("count", timeout=1)
        assert len(ran) == 1
    await server.stop()


def test_delays_of_retries_grow() -> None:
    retry = CallRetry(attempts=9, delay=0.5, multiplier=2, max_delay=3)
    assert [retry.delay_after(n) for n in range(1, 6)] == [0.5, 1.0, 2.0, 3.0, 3.0]
    assert retry.delay_after(100_000) == 3.0
    with pytest.raises(ConfigurationError, match="attempts"):
        CallRetry(attempts=0)
    with pytest.raises(ConfigurationError, match="multiplier"):
        CallRetry(multiplier=0.5)
