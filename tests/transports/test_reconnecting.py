"""How a lost connection is made again can be chosen, in the same words on every transport."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest
from chaos.proxy import Proxy
from tests.support.brokers import broker_url
from tests.support.sqs import CREDENTIALS

from matador.errors import ConfigurationError
from matador.model.backoff import ReconnectBackoff
from matador.model.message import ConnectionState, Message
from matador.policy.recovery import Recovery
from matador.runtime.connection import Connection
from matador.runtime.service import Service
from matador.testing import wait_for
from matador.transports.base import Transport
from matador.transports.urls import transport_from_url

SERVERS = [
    *("amqp://host", "redis://host", "redis://host?mode=list", "redis://host?mode=pubsub"),
    *("bullmq://host", "kafka://host", "sqs://eu-west-1"),
]
REFUSED = [
    *("amqp://127.0.0.1:1", "redis://127.0.0.1:1", "bullmq://127.0.0.1:1"),
    *("kafka://127.0.0.1:1", "sqs://eu-west-1?endpoint=http://127.0.0.1:1"),
]
CHOSEN = (
    "reconnect=linear&reconnect_delay=0.01&reconnect_max_delay=0.05&reconnect_multiplier=3"
    "&reconnect_attempts=3"
)
on_servers = pytest.mark.parametrize(
    "name",
    [
        pytest.param("rabbitmq", marks=[pytest.mark.broker, pytest.mark.xdist_group("rabbitmq")]),
        *(
            pytest.param(one, marks=pytest.mark.broker)
            for one in ("redis", "list", "pubsub", "bullmq")
        ),
    ],
)


def given(url: str, options: str) -> str:
    return f"{url}{'&' if '?' in url else '?'}{options}"


def backoff_of(transport: Any) -> ReconnectBackoff:
    """What the transport waits for when it has lost its connection."""
    client = getattr(transport, "_client", transport)
    return client._supervisor._backoff


@pytest.mark.parametrize("url", SERVERS)
def test_every_transport_takes_all_of_it(url: str) -> None:
    expected = ReconnectBackoff(
        "linear", base_delay=0.01, max_delay=0.05, multiplier=3, max_attempts=3
    )
    assert backoff_of(transport_from_url(given(url, CHOSEN))) == expected
    words: dict[str, Any] = {"reconnect_delay": 1, "reconnect_max_delay": 9}
    waits = backoff_of(transport_from_url(url, **words))
    assert waits == ReconnectBackoff("exponential", base_delay=1, max_delay=9)
    assert backoff_of(transport_from_url(url)) == ReconnectBackoff(base_delay=0.1, max_delay=2)


@pytest.mark.parametrize("url", SERVERS)
@pytest.mark.parametrize(
    ("option", "says"),
    [
        ("reconnect=soon", "reconnect must be"),
        ("reconnect_delay=3", r"reconnect_max_delay \(2 s\) must be at least"),
        ("reconnect_multiplier=0.5", "reconnect_multiplier must be from 1 to 1000"),
        ("reconnect_multiplier=twice", "reconnect_multiplier must be a number"),
        ("reconnect_attempts=-1", "reconnect_attempts"),
        ("reconnect_attempt=1", "did you mean 'reconnect_attempts'"),
    ],
)
def test_what_cannot_be_is_refused(url: str, option: str, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        transport_from_url(given(url, option))


@pytest.mark.parametrize("url", SERVERS)
def test_the_options_of_a_sender_win_over_the_url_only_if_they_say_something(url: str) -> None:
    linear = given(url, "reconnect=linear")
    assert backoff_of(Connection(linear, "test", recovery=Recovery()).transport) == (
        ReconnectBackoff("linear", base_delay=0.1, max_delay=2)
    )
    hasty = Connection(linear, "test", recovery=Recovery(reconnect="immediate"))
    assert backoff_of(hasty.transport).strategy == "immediate"


@contextmanager
def behind_proxy(name: str, attempts: int = 3) -> Generator[tuple[Proxy, str]]:
    """A server behind a network that can be cut, and the URL of a transport there."""
    server = broker_url("rabbitmq" if name == "rabbitmq" else "redis")
    port = urlsplit(server).port
    assert port is not None
    proxy = Proxy(port)
    url = server.replace(f":{port}", f":{proxy.port}")
    if name in ("list", "pubsub"):
        url = given(url, f"mode={name}")
    elif name == "bullmq":
        url = url.replace("redis://", "bullmq://")
    try:
        yield proxy, given(url, CHOSEN.replace("attempts=3", f"attempts={attempts}"))
    finally:
        proxy.close()


class States:
    """Every state a connection is in."""

    def __init__(self, transport: Transport) -> None:
        self.seen: list[tuple[str, int]] = []
        transport.observe(self)

    def connection_changed(self, transport: str, state: ConnectionState) -> None:
        self.seen.append((state.status, state.attempt))

    def fell_back(self, message: Message, failed: str, next_: str, error: BaseException) -> None:
        raise AssertionError("nothing falls back here")

    def dropped(self, queue: str, number: int) -> None:
        raise AssertionError("nothing may be dropped here")


@on_servers
async def test_after_so_many_attempts_the_connection_has_failed(name: str) -> None:
    with behind_proxy(name) as (proxy, url):
        transport = transport_from_url(url)
        states = States(transport)
        await transport.connect()
        proxy.refuse()
        proxy.reset()
        await wait_for(lambda: transport.state.status == "failed", timeout=60)
        assert states.seen[-4:] == [
            *(("reconnecting", attempt) for attempt in (1, 2, 3)),
            ("failed", 3),
        ]
        proxy.heal()
        await transport.connect()
        assert transport.state.status == "connected"
        await transport.disconnect()


PROGRAM = """
import asyncio, logging, sys
from matador.runtime.connection import Connection
from matador.runtime.service import Service

logging.basicConfig(level=logging.WARNING, format="%(name)s %(message)s")
if len(sys.argv) > 2:
    logging.getLogger("pika").setLevel(sys.argv[2])
try:
    asyncio.run(Service("test", Connection(sys.argv[1], "test")).start())
except Exception as error:
    print(type(error).__name__, error)
"""


def run(*arguments: str) -> tuple[str, list[str]]:
    """A program that cannot connect: what was raised, and the lines that were logged."""
    command = [sys.executable, "-c", PROGRAM, *arguments]
    environment = {**os.environ, **CREDENTIALS}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=120, check=True
    )
    return done.stdout.strip(), done.stderr.splitlines()


@pytest.mark.parametrize("url", REFUSED)
def test_a_refused_connection_is_logged_once_by_us_and_not_by_a_client_library(url: str) -> None:
    error, logged = run(url)
    kind, _, text = error.partition(" ")
    assert kind == "ConnectionFailedError"
    assert len(logged) == 1, logged
    assert logged[0].startswith("matador.transport ")
    assert logged[0].endswith(f" is failed: {text}")


def test_who_gives_the_logger_of_a_client_library_a_level_sees_its_lines() -> None:
    _, logged = run(REFUSED[0], "ERROR")
    assert [one for one in logged if one.startswith("pika.")]


@on_servers
async def test_an_outage_is_logged_once_for_each_reason(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO), behind_proxy(name, attempts=0) as (proxy, url):
        service = Service("test", Connection(url, "test"))
        async with service:
            states = States(service.transport)
            caplog.clear()
            proxy.refuse()
            proxy.reset()
            await wait_for(lambda: ("reconnecting", 9) in states.seen, timeout=60)
            proxy.heal()
            await wait_for(lambda: service.transport.state.status == "connected", timeout=60)
            said = [one.getMessage() for one in loud(caplog)]
            assert len(said) == len(set(said))
            assert 1 <= len(said) <= 3, "the loss, and why the attempts fail"
            assert all("is reconnecting: " in one for one in said)
            assert "is connected" in caplog.text


def loud(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [one for one in caplog.records if one.levelno >= logging.WARNING]
