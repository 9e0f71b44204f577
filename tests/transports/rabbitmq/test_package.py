"""The client library: the private parts that we use are as they were when this was written.

If one of these fails after an update of pika, compare ``connection.py`` with the methods and
attributes below, run the tests of this folder, then write down what is there now and raise the
upper bound of the extra.
"""

from __future__ import annotations

import tomllib
from importlib.metadata import version
from inspect import signature
from pathlib import Path
from typing import Any, cast

import pika
import pytest
from pika.adapters.asyncio_connection import AsyncioConnection
from pika.heartbeat import HeartbeatChecker

from matador.transports.kit.options import read_address
from matador.transports.rabbitmq.connection import AmqpConnection
from matador.transports.rabbitmq.options import RabbitMQAddress


@pytest.mark.parametrize(
    ("owner", "method", "parameters"),
    [
        (AsyncioConnection, "_create_heartbeat_checker", "self"),
        (AsyncioConnection, "_on_data_available", "self, data_in"),
        (AsyncioConnection, "_adapter_emit_data", "self, data"),
        (AsyncioConnection, "_terminate_stream", "self, error"),
        (HeartbeatChecker, "__init__", "self, connection, timeout"),
        (HeartbeatChecker, "_start_send_timer", "self"),
        (HeartbeatChecker, "_start_check_timer", "self"),
        (HeartbeatChecker, "stop", "self"),
        (pika.BasicProperties, "encode", "self"),
    ],
)
def test_methods_take_what_they_are_given(owner: type, method: str, parameters: str) -> None:
    found = getattr(owner, method)
    assert ", ".join(signature(found).parameters) == parameters


@pytest.mark.broker
async def test_a_connection_has_the_attributes_that_are_used(url: str) -> None:
    address = read_address(RabbitMQAddress, url)
    (host, port), *_ = address.hosts
    connection = await AmqpConnection.open(address, host, port, "testing")
    raw = cast("Any", connection)
    assert isinstance(raw._frame_buffer, bytes)
    assert isinstance(raw.bytes_sent, int)
    assert isinstance(raw.bytes_received, int)
    transport = raw._transport
    assert transport._MAX_RECV_BYTES == 256 * 1024, "set by open()"
    assert transport._sock.fileno() >= 0
    assert transport.get_write_buffer_size() == 0
    assert raw._heartbeat_checker._check_interval == round(address.heartbeat)
    await connection.disconnect()


def test_the_bytes_of_properties_begin_with_their_flags() -> None:
    pieces = cast("Any", pika.BasicProperties(reply_to="x")).encode()
    assert b"".join(pieces) == b"\x02\x00\x01x"


def test_the_extra_allows_no_version_that_was_not_tested() -> None:
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())
    major, minor = map(int, version("pika").split(".")[:2])
    (extra,) = project["project"]["optional-dependencies"]["rabbitmq"]
    assert extra.endswith(f",<{major}.{minor + 1}")
