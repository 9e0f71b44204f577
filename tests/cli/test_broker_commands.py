"""Commands on Kafka and SQS: queues, dead letters and the doctor."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import pytest
from tests.cli.conftest import Cli
from tests.support.brokers import broker_url
from tests.support.kafka import forget_topics
from tests.support.sqs import CREDENTIALS, forget_queues

from matador.model.message import DeadLetter, Message
from matador.transports.urls import transport_from_url


@dataclass
class Shop:
    """The shop is on this broker now, in a namespace that no other test uses."""

    url: str
    namespace: str


@pytest.fixture(params=["kafka", "sqs"])
def shop(
    request: pytest.FixtureRequest, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Shop]:
    broker, name = request.param, f"c{uuid4().hex[:10]}"
    url = broker_url(broker)
    if broker == "sqs":
        url += "&wait=1"
        for variable, value in CREDENTIALS.items():
            monkeypatch.setenv(variable, value)
    text = (folder / "shop.py").read_text()
    text = text.replace("sqlite:///shop.db?lease=1", url)
    (folder / "shop.py").write_text(text.replace('Topology("shop"', f'Topology("{name}"'))
    yield Shop(url, name)
    if broker == "kafka":
        forget_topics(url, name)
    else:
        asyncio.run(forget_queues(url, name))


async def bury(shop: Shop, count: int) -> None:
    """Make dead letters that nobody could read."""
    transport = transport_from_url(shop.url)
    await transport.connect()
    try:
        queue = f"{shop.namespace}.events"
        await transport.send([Message(str(one), queue, b"odd") for one in range(count)])
        subscription = await transport.subscribe(queue, prefetch=count)
        for _ in range(count):
            (delivery,) = await subscription.receive(1)
            await transport.settle([DeadLetter(delivery.receipt, "undeliverable", "unreadable")])
    finally:
        await transport.disconnect()


def test_the_doctor_and_the_queues(cli: Cli, shop: Shop) -> None:
    assert cli("topology", "check", "shop.py").code == 1, "nothing is there yet"
    assert cli("topology", "apply", "shop.py").code == 0
    result = cli("doctor", "shop.py", "--json")
    (server,) = [one for one in result.json["checks"] if one["name"] == "server"]
    assert server["status"] == "ok"
    assert f"{shop.namespace}.events" in cli("queues", "shop.py").out


def test_dead_letters_are_listed_and_purged(cli: Cli, shop: Shop) -> None:
    assert cli("topology", "apply", "shop.py").code == 0
    asyncio.run(bury(shop, 3))
    listed = cli("dead-letters", "list", "shop.py")
    assert listed.code == 0, listed.err
    assert listed.out.count("unreadable") == 3
    again = cli("dead-letters", "list", "shop.py")
    assert again.out.count("unreadable") == 3, "looking at them does not hide them for long"
    purged = cli("dead-letters", "purge", "shop.py", "--all", "--yes")
    assert purged.code == 0, purged.err
    assert cli("dead-letters", "list", "shop.py").out.count("unreadable") == 0
