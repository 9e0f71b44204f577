"""Addresses: what they may say, what they must not give away."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from matador.errors import ConfigurationError, ConnectionFailedError
from matador.transports import transport_from_url
from matador.transports.kit.options import read_address
from matador.transports.rabbitmq import RabbitMQTransport
from matador.transports.rabbitmq.options import RabbitMQAddress

SECRET = "hunter2"


def parse_url(url: str) -> RabbitMQAddress:
    return read_address(RabbitMQAddress, url)


def test_defaults_are_those_of_a_fresh_server() -> None:
    address = parse_url("amqp://")
    assert address.hosts == (("localhost", 5672),)
    assert (address.user, address.password, address.vhost) == ("guest", "guest", "/")
    assert not address.tls


def test_everything_can_be_said(tmp_path: Path) -> None:
    ca = tmp_path / "ca.pem"
    ca.touch()
    address = parse_url(
        "amqps://me:p%40ss@one,two:5673,[::1]:5674/my%2Fhost"
        f"?heartbeat=5&send_timeout=2.5&window=10&tls_ca={ca}&tls_verify=no&tls_server_name=rabbit"
        "&delays=levels&delay_prefix=shop.delay&max_message_size=1000&connect_timeout=1"
        "&management=http://one:15672"
    )
    assert address.hosts == (("one", 5671), ("two", 5673), ("::1", 5674))
    assert (address.user, address.password, address.vhost) == ("me", "p@ss", "my/host")
    assert (address.tls, address.tls_ca, address.tls_verify) == (True, str(ca), False)
    assert address.tls_server_name == "rabbit"
    assert (address.heartbeat, address.send_timeout, address.window) == (5, 2.5, 10)
    assert (address.delays, address.delay_prefix) == ("levels", "shop.delay")
    assert (address.max_message_size, address.connect_timeout) == (1000, 1)
    assert address.management == "http://one:15672"


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("redis://here", "not an address of RabbitMQ"),
        ("amqp://host?hartbeat=3", "did you mean 'heartbeat'?"),
        ("amqp://host?heartbeat=soon", "heartbeat must be a number of seconds"),
        ("amqp://host?heartbeat=0.2", "at least 1 s"),
        ("amqp://host?window=0", "window must be at least 1"),
        ("amqp://host?delays=plugins", "did you mean 'plugin'?"),
        ("amqp://host?delay_prefix=", "delay_prefix must not be empty"),
        ("amqp://host?tls_ca=ca.pem", "there is no file"),
        ("amqp://host?tls_verify=no", "tls_verify needs TLS; write amqps://"),
        ("amqp://host?heartbeat=5&heartbeat=6", "duplicate option 'heartbeat'"),
        ("amqps://host?tls_verify=perhaps", "true or false"),
        ("amqp://host:port", "invalid host and port"),
        ("amqp://host:70000", "invalid host and port"),
        ("amqp://a,,b", "not a host and a port"),
        ("amqp://host?management=rabbit-1:15672", "management must be true, false, auto, or"),
        ("amqp://host?management=http://[me:pw", "management must be true, false, auto"),
        ("amqp://host?management=http://me:pw%40rabbit-1:15672", "takes no user or password"),
    ],
)
def test_mistakes_are_named(url: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said.replace("?", r"\?")):
        parse_url(url)


@pytest.mark.parametrize(
    "url",
    [
        f"amqp//me:{SECRET}@host",
        f"amqp://me:{SECRET}@host:x",
        f"amqp://me:{SECRET}@host?nope=1",
        # What must be percent-encoded in a password, and is not.
        f"amqp://me:{SECRET}/x@host/shop",
        f"amqp://me:x/{SECRET}@host",
        f"amqp://me:x@{SECRET}/y@host",
        f"amqp://me:{SECRET}?x@host/shop",
        f"amqp://me:x?{SECRET}@host/shop",
        f"amqp://me:x?{SECRET}=y@host/shop",
        f"amqp://me:{SECRET}",
    ],
)
def test_a_mistake_does_not_give_the_password_away(url: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        transport_from_url(url)
    assert SECRET not in str(caught.value)


async def test_the_password_is_in_no_repr_log_or_error(caplog: pytest.LogCaptureFixture) -> None:
    transport = transport_from_url(f"amqp://me:{SECRET}@127.0.0.1:1/shop")
    assert isinstance(transport, RabbitMQTransport)
    with caplog.at_level(logging.DEBUG), pytest.raises(ConnectionFailedError) as caught:
        await transport.connect()
    seen = [repr(transport), str(caught.value), repr(caught.value), caplog.text]
    seen += [repr(transport._address), str(transport._address)]
    error: BaseException | None = caught.value
    while error is not None:
        seen.append(repr(error))
        error = error.__cause__ or error.__context__
    assert not [text for text in seen if SECRET in text]
    assert repr(transport) == "RabbitMQTransport('amqp://127.0.0.1:1/shop', failed)"
    assert "127.0.0.1:1" in str(caught.value)


def test_what_the_address_can_say_a_keyword_can_too() -> None:
    transport = RabbitMQTransport("amqp://host?window=5", window=7, heartbeat=10, name="shop")
    assert (transport._address.window, transport._address.heartbeat) == (7, 10)
    assert transport.name == "shop"
    assert transport_from_url("amqp://host?name=shop").name == "shop"
    again = RabbitMQTransport(transport._address, window=9)
    assert (again._address.window, again._address.heartbeat, again.name) == (9, 10, "shop")
    with pytest.raises(ConfigurationError, match="did you mean 'window'"):
        RabbitMQTransport("amqp://host", windou=3)  # pyright: ignore[reportCallIssue] - the point
