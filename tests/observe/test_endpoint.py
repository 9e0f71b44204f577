"""The HTTP endpoint of a worker: metrics, health checks, and clients that mean no good."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.support.shop import QUEUE, OrderPlaced, failing, make_app, settled

from matador.errors import ConfigurationError
from matador.observe import Metrics, MetricsServer
from matador.observe import endpoint as endpoint_module
from matador.observe.probes import live, ready
from matador.runtime.health import ConsumerHealth, Health, health_status
from matador.testing import wait_for


@pytest.fixture
async def server() -> AsyncIterator[MetricsServer]:
    metrics = Metrics()
    app = make_app(None, failing(), hooks=metrics)
    metrics.watch(app)
    async with app, MetricsServer(app, metrics, port=0) as server:
        await app.send(OrderPlaced("o-1"))
        await settled(app)
        yield server


async def raw(server: MetricsServer, request: bytes) -> bytes:
    """What a client gets that sends these bytes, and nothing more."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    try:
        writer.write(request)
        return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


async def get(server: MetricsServer, path: str, method: str = "GET") -> tuple[int, bytes]:
    answer = await raw(server, f"{method} {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split(b" ")[1]), body


async def test_metrics_and_health(server: MetricsServer) -> None:
    status, body = await get(server, "/metrics?name=x")
    assert status == 200
    assert b'matador_messages_sent_total{name="order.placed"' in body
    assert f'matador_queue_depth{{queue="{QUEUE}",state="waiting"}} 0.0'.encode() in body
    for path in ("/health/live", "/health/ready"):
        status, body = await get(server, path)
        told = json.loads(body)
        assert (status, told["ok"], told["connection"]) == (200, True, "connected")
        assert told["queues"][QUEUE]["receiving"]
    assert await get(server, "/health/live", "HEAD") == (200, b"")


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET /nowhere HTTP/1.1\r\n\r\n", b" 404 "),
        (b"GET /metrics/../../etc/passwd HTTP/1.1\r\n\r\n", b" 404 "),
        (b"POST /metrics HTTP/1.1\r\nContent-Length: 9\r\n\r\nabcdefghi", b" 405 "),
        (b"\x16\x03\x01 a client that speaks TLS\r\n\r\n", b" 400 "),
        (b"GET /metrics\r\n\r\n", b" 400 "),
        (b"\r\n\r\n", b" 400 "),
        (b"GET / HTTP/1.1\r\nX: " + b"x" * 100_000 + b"\r\n\r\n", b" 431 "),
        (b"\xff" * 20_000, b" 431 "),
    ],
)
async def test_requests_it_does_not_answer(
    server: MetricsServer, request_: bytes, status: bytes
) -> None:
    answer = await raw(server, request_)
    # Where it did not read all there was, the answer may be lost with the connection.
    assert status in answer.split(b"\r\n")[0] or (status == b" 431 " and answer == b"")
    assert (await get(server, "/health/live"))[0] == 200


async def test_slow_clients_are_dropped_and_too_many_are_refused(
    server: MetricsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoint_module, "_PATIENCE", 0.2)
    idle = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(50)]
    answers = await asyncio.gather(*(reader.read() for reader, _ in idle), return_exceptions=True)
    assert any(b" 408 " in one for one in answers if isinstance(one, bytes))
    for _, writer in idle:
        writer.close()

    async def answers_again() -> bool:
        return (await raw(server, b"GET /health/live HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 200")

    await wait_for(answers_again, message="an answer")


async def test_silent_clients_do_not_keep_health_checks_out(server: MetricsServer) -> None:
    idle = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(40)]
    await wait_for(lambda: len(server._connections) == 32, message="all places taken")
    for path in ("/health/live", "/metrics") * 20:
        assert (await get(server, path))[0] == 200
    for _, writer in idle:
        writer.close()


async def test_a_client_that_does_not_read_is_dropped(
    server: MetricsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoint_module, "_PATIENCE", 0.2)
    monkeypatch.setattr(server._metrics, "text", lambda: b"x" * 20_000_000)
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", server.port))
        client.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        await wait_for(lambda: bool(server._connections), message="the connection")
        await wait_for(lambda: not server._connections, message="its end")


async def test_a_port_that_is_taken_is_told_at_once(server: MetricsServer) -> None:
    app = make_app(None, failing())
    with pytest.raises(ConfigurationError, match="choose another host or port"):
        MetricsServer(app, port=server.port)
    with pytest.raises(ConfigurationError, match="cannot serve metrics on"):
        MetricsServer(app, host="host.invalid", port=0)
    with pytest.raises(ConfigurationError, match="port"):
        MetricsServer(app, port=-1)


class Fake:
    """Something with a health of our choice."""

    def __init__(self, status: Any, **queue: Any) -> None:
        given: dict[str, Any] = {"running": 0, "receiving": True, "last_poll": 0.0} | queue
        one = ConsumerHealth(queue="q", concurrency=2, waiting=0, handled=0, **given)
        self.consumer_health = (one,)
        self._health = Health(health_status(status, consumers=(one,)), status)

    def health(self) -> Health:
        return self._health


@pytest.mark.parametrize(
    ("source", "is_live", "is_ready"),
    [
        (Fake("connected"), True, True),
        (Fake("reconnecting"), True, False),
        (Fake("connected", receiving=False, last_poll=10.0), True, True),
        (Fake("connected", receiving=False, last_poll=100.0), False, False),
        # A restart would only count as one more delivery of what is running.
        (Fake("connected", receiving=False, last_poll=100.0, running=1), True, False),
        (Fake("reconnecting", receiving=False, last_poll=100.0), True, False),
    ],
)
def test_live_and_ready_mean_polled_lately(source: Fake, is_live: bool, is_ready: bool) -> None:
    assert live(source).ok == is_live
    assert ready(source).ok == is_ready


async def test_an_application_that_is_not_started_or_stopping_is_not_ready() -> None:
    app = make_app(None, failing())
    async with MetricsServer(app, port=0) as server:
        assert (await get(server, "/health/ready"))[0] == 503
        assert (await get(server, "/health/live"))[0] == 200
        assert (await get(server, "/metrics"))[0] == 404, "without metrics there is no such page"
        async with app:
            assert (await get(server, "/health/ready"))[0] == 200
            await app.pause()
            assert (await get(server, "/health/ready"))[0] == 503
    await server.close()
