"""A server that wants to know who we are, and what nobody gets to see of that."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator

import pytest
from tests.support.kafka import OwnKafka
from tests.support.ports import free_ports

from matador.errors import ConnectionFailedError
from matador.model.message import Complete, Message
from matador.model.topology import Topology
from matador.transports.kafka import KafkaTransport

pytestmark = [pytest.mark.broker, pytest.mark.xdist_group("kafka-credentials")]

PASSWORD = "s3cr/t@home"
ENCODED = "s3cr%2Ft%40home"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnKafka]:
    own = OwnKafka(tmp_path_factory.mktemp("kafka"))
    own.ask_for_passwords("ada", PASSWORD)
    own.start()
    yield own
    own.kill()


async def test_every_client_says_who_it_is(server: OwnKafka) -> None:
    """Producer, administration and consumer."""
    url = f"kafka://ada:{ENCODED}@127.0.0.1:{server.sasl_port}?session=6"
    topology = Topology("shop", queues=["events"])
    transport = KafkaTransport(url)
    await transport.connect()
    await transport.apply_topology(topology)
    queue = topology.full_name("events")
    assert await transport.send([Message("1", queue, b"x")]) == [None]
    subscription = await transport.subscribe(queue, prefetch=1)
    async with asyncio.timeout(60):
        (delivery,) = await subscription.receive(1)
    assert await transport.settle([Complete(delivery.receipt)]) == [None]
    await transport.disconnect()


@pytest.mark.parametrize("credentials", ["ada:wr0ng-s3cr3t@", "eve:wr0ng-s3cr3t@", ""])
async def test_a_wrong_password_is_an_error_soon_and_is_not_shown(
    server: OwnKafka, caplog: pytest.LogCaptureFixture, credentials: str
) -> None:
    caplog.set_level(logging.DEBUG)
    timeout = 60 if credentials else 3  # a server that asks for a password does not say so
    address = f"kafka://{credentials}127.0.0.1:{server.sasl_port}?timeout={timeout}"
    transport = KafkaTransport(address)
    began = time.monotonic()
    with pytest.raises(ConnectionFailedError) as caught:
        await transport.connect()
    assert time.monotonic() - began < 30
    assert not credentials or "check user, password" in str(caught.value)
    shown = [str(caught.value), repr(caught.value), repr(transport), caplog.text]
    cause = caught.value.__cause__
    while cause is not None:
        shown.append(str(cause))
        cause = cause.__cause__
    assert not any("wr0ng" in text for text in shown)


async def test_a_first_connection_that_is_refused_is_an_error_soon() -> None:
    """Before the timeout, which is for brokers that do not answer."""
    transport = KafkaTransport(f"kafka://127.0.0.1:{free_ports(1)}", timeout=100)
    with pytest.raises(ConnectionFailedError, match="cannot reach Kafka at 127"):
        async with asyncio.timeout(30):
            await transport.connect()
    assert transport.state.status == "failed"
