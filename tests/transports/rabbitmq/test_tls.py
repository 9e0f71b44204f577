"""TLS, several hosts, and what is said when the server does not want us."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from tests.support.brokers import SCRIPT

from matador.errors import ConfigurationError, ConnectionFailedError
from matador.model.message import Complete, Message
from matador.transports.rabbitmq import RabbitMQTransport
from matador.transports.rabbitmq.connection import AmqpChannel

pytestmark = [pytest.mark.broker, pytest.mark.xdist_group("rabbitmq")]

BROKERS = Path(os.environ.get("MATADOR_BROKERS_FOLDER") or SCRIPT.parents[1] / ".brokers")
CERTIFICATE = BROKERS / "rabbitmq" / "tls" / "server.pem"


@pytest.fixture
def secure(url: str) -> str:
    """The port for TLS, which ``script/brokers`` opens three above the other."""
    port = urlsplit(url).port
    if port is None or not CERTIFICATE.is_file():
        pytest.skip("the server of script/brokers has no certificate: is openssl there?")
    return f"amqps://guest:guest@localhost:{port + 3}/"


@pytest.fixture
def dead() -> Iterator[int]:
    """A port on which nobody listens."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        yield int(sock.getsockname()[1])


async def test_messages_travel_encrypted(secure: str) -> None:
    transport = RabbitMQTransport(f"{secure}?tls_ca={CERTIFICATE}")
    await transport.connect()
    try:
        channel = await AmqpChannel.open(transport._supervisor.connection.consuming)
        queue = await _exclusive(channel)
        bodies = [b"x" * 300_000, b"small"]
        assert await transport.send([Message("m", queue, body) for body in bodies]) == [None] * 2
        subscription = await transport.subscribe(queue, prefetch=10)
        got = [one for _ in bodies for one in await subscription.receive(1)]
        assert [one.body for one in got] == bodies
        assert await transport.settle([Complete(one.receipt) for one in got]) == [None] * 2
    finally:
        await transport.disconnect()


async def _exclusive(channel: Any) -> str:
    """A queue that goes with the connection."""
    name = f"tls-{id(channel)}"
    await channel._call("a queue", "queue_declare", name, exclusive=True)
    return name


async def test_a_certificate_nobody_vouches_for_is_refused(secure: str) -> None:
    with pytest.raises(ConnectionFailedError, match="certificate is not trusted"):
        await RabbitMQTransport(secure).connect()


async def test_a_certificate_can_be_taken_on_trust(secure: str) -> None:
    transport = RabbitMQTransport(f"{secure}?tls_verify=false")
    await transport.connect()
    assert transport.state.status == "connected"
    await transport.disconnect()


async def test_files_that_are_not_there_or_hold_no_certificate_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"there is no file '.*nowhere\.pem'"):
        RabbitMQTransport(f"amqps://localhost:1?tls_ca={tmp_path / 'nowhere.pem'}")
    (tmp_path / "empty.pem").write_text("nothing")
    transport = RabbitMQTransport(f"amqps://localhost:1?tls_ca={tmp_path / 'empty.pem'}")
    with pytest.raises(ConnectionFailedError, match="tls_ca"):
        await transport.connect()


async def test_the_next_host_is_tried(url: str, dead: int) -> None:
    given = urlsplit(url)
    hosts = f"127.0.0.1:{dead},{given.hostname}:{given.port}"
    transport = RabbitMQTransport(f"amqp://guest:guest@{hosts}/")
    await transport.connect()
    assert transport.state.status == "connected"
    await transport.disconnect()


async def test_every_host_that_failed_is_named(dead: int) -> None:
    transport = RabbitMQTransport(f"amqp://127.0.0.1:{dead},127.0.0.1:{dead}")
    with pytest.raises(ConnectionFailedError) as caught:
        await transport.connect()
    assert str(caught.value).count(f"127.0.0.1:{dead}") == 2
    assert transport.state.status == "failed"


@pytest.mark.parametrize(
    ("credentials", "vhost", "remedy"),
    [("guest:wrong", "", "user and password"), ("guest:guest", "nowhere", "virtual host")],
)
async def test_a_refusal_says_what_to_check(
    url: str, credentials: str, vhost: str, remedy: str
) -> None:
    given = urlsplit(url)
    transport = RabbitMQTransport(f"amqp://{credentials}@{given.hostname}:{given.port}/{vhost}")
    with pytest.raises(ConnectionFailedError, match=remedy) as caught:
        await transport.connect()
    assert "wrong" not in str(caught.value)


async def test_a_server_that_says_nothing_is_given_up(dead: int) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        port = silent.getsockname()[1]
        transport = RabbitMQTransport(f"amqp://127.0.0.1:{port}?connect_timeout=0.2")
        with pytest.raises(ConnectionFailedError):
            await transport.connect()
