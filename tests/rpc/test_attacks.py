"""Servers and clients under attack, on every broker: each hostile request with a neighbour."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from tests.rpc.conftest import Place
from tests.support.looking import connected, disconnect

from matador.errors import MatadorError
from matador.model.message import Message, Properties
from matador.rpc import RemoteError
from matador.testing import wait_for
from matador.transports.base import Routing


def request(place: Place, number: int, body: bytes = b"1", **given: Any) -> Message:
    headers = given.pop("headers", {})
    fields: dict[str, Any] = {"type": "ECHO", **given}
    properties = Properties(**fields)
    return Message(f"odd-{number}", place.queue, body, headers, properties=properties)


ODD: list[Callable[[Place, int], Message]] = [
    lambda p, n: request(p, n, b""),
    lambda p, n: request(p, n, b"\0"),
    lambda p, n: request(p, n, b"[" * 100_000, reply_to="nobody"),
    lambda p, n: request(p, n, type=None, reply_to="matador.reply.nobody"),
    lambda p, n: request(p, n, type="", reply_to=p.queue),
    lambda p, n: request(p, n, reply_to=p.queue),  # the reply comes back as a request
    lambda p, n: request(p, n, type="FAIL", reply_to=p.queue),
    lambda p, n: request(p, n, type="x" * 200, reply_to=p.queue, correlation_id=None),
    lambda p, n: request(p, n, reply_to="no-such-queue", correlation_id="c" * 200),
    lambda p, n: request(p, n, reply_to="\x01 \n", correlation_id=""),
    lambda p, n: request(p, n, reply_to="x" * 255),
    lambda p, n: request(p, n, expires_at=0.0, reply_to="nobody"),
    lambda p, n: request(p, n, type="FAIL", headers={"x-retry-count": 2**63 - 1}),
    lambda p, n: request(p, n, type="FAIL", headers={"x-first-failure": -(2**63)}),
    lambda p, n: request(p, n, type="FAIL", headers={"x-retry-count": "9" * 5000}),
    lambda p, n: request(p, n, type="FAIL", headers={f"h{i}": "v" * 50 for i in range(500)}),
]


async def test_hostile_requests_and_their_neighbours(place: Place) -> None:
    server = place.server(concurrency=4)
    runs: list[Any] = []

    @server.handler("ECHO")
    async def echo(data: Any) -> Any:
        runs.append(data)
        return data

    @server.handler("FAIL")
    async def fail(data: Any) -> None:
        raise ValueError("never")

    transport = await connected(place.url)
    try:
        async with server, place.client() as client:
            for number, make in enumerate(ODD):
                assert await transport.send([make(place, number)]) == [None]
                assert await client.call("ECHO", f"good-{number}", timeout=30) == f"good-{number}"
            await client.call("ECHO", "last", timeout=30)
            await wait_for(lambda: server.in_flight == 0)

            async def is_quiet() -> bool:  # the last retries may be under way
                before = server.metrics().messages_received
                assert await client.call("ECHO", "quiet", timeout=30) == "quiet"
                return server.metrics().messages_received == before + 1

            await wait_for(is_quiet, message="nothing to go round any more", timeout=30)
            assert client.pending == 0
    finally:
        await disconnect(transport, place.url)


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (RemoteError(404, "not here"), "404", "not here"),  # type: ignore[arg-type] - users
        (RemoteError("E", None), "E", "None"),  # type: ignore[arg-type] - users
        (RemoteError("\ud800", "\0", details=object()), "?", "\N{REPLACEMENT CHARACTER}"),
    ],
    ids=["number", "none", "odd text"],
)
async def test_odd_remote_errors_reach_the_caller(
    place: Place, error: RemoteError, code: str, text: str
) -> None:
    server = place.server()

    @server.handler("FAIL")
    async def fail() -> None:
        raise error

    async with server, place.client() as client:
        with pytest.raises(RemoteError) as caught:
            await client.call("FAIL", timeout=60)
        assert (caught.value.code, caught.value.remote_message) == (code, text)


async def test_a_handler_that_ignores_cancellation(place: Place) -> None:
    server = place.server(concurrency=1, timeout=0.05)
    go = asyncio.Event()

    @server.handler("STUBBORN")
    async def stubborn() -> str:
        while not go.is_set():
            try:
                await go.wait()
            except asyncio.CancelledError:
                go.set()
        return "done after all"

    @server.handler("PING")
    async def ping() -> str:
        return "pong"

    async with server, place.client() as client:
        assert await client.call("STUBBORN", timeout=60) == "done after all"
        assert await client.call("PING", timeout=60) == "pong"


@pytest.mark.broker
@pytest.mark.parametrize("place", ["rabbitmq", "redis"], indirect=True)
async def test_the_queue_is_deleted_under_a_server(place: Place) -> None:
    server = place.server()

    @server.handler("PING")
    async def ping() -> str:
        return "pong"

    transport = await connected(place.url)
    try:
        async with server, place.client() as client:
            assert await client.call("PING", timeout=60) == "pong"
            assert isinstance(transport, Routing)
            await transport.delete_queue(place.queue)

            async def works_again() -> bool:
                try:
                    return await client.call("PING", timeout=2) == "pong"
                except MatadorError:
                    return False

            await wait_for(works_again, timeout=60)
    finally:
        await disconnect(transport, place.url)
