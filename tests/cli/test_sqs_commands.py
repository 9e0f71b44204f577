"""Commands on SQS: queues, dead letters and the doctor."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from tests.cli.conftest import Cli
from tests.support.brokers import broker_url
from tests.support.sqs import CREDENTIALS, forget_queues

from matador.model.message import DeadLetter, Message
from matador.transports.sqs import SqsTransport


@pytest.fixture
def namespace(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The shop is on SQS now, in a namespace that no other test uses."""
    url, name = broker_url("sqs"), f"c{uuid4().hex[:10]}"
    for variable, value in CREDENTIALS.items():
        monkeypatch.setenv(variable, value)
    text = (folder / "shop.py").read_text()
    text = text.replace("sqlite:///shop.db?lease=1", f"{url}&wait=1").replace(
        'Topology("shop"', f'Topology("{name}"'
    )
    (folder / "shop.py").write_text(text)
    yield name
    asyncio.run(forget_queues(url, name))


async def bury(namespace: str, count: int) -> None:
    """Make dead letters that nobody could read."""
    transport = SqsTransport(broker_url("sqs"), wait=1)
    await transport.connect()
    try:
        queue = f"{namespace}.events"
        await transport.send([Message(str(one), queue, b"odd") for one in range(count)])
        subscription = await transport.subscribe(queue, prefetch=count)
        for _ in range(count):
            (delivery,) = await subscription.receive(1)
            await transport.settle([DeadLetter(delivery.receipt, "undeliverable", "unreadable")])
    finally:
        await transport.disconnect()


def test_the_doctor_and_the_queues(cli: Cli, namespace: str) -> None:
    assert cli("topology", "check", "shop.py").code == 1, "nothing is there yet"
    assert cli("topology", "apply", "shop.py").code == 0
    result = cli("doctor", "shop.py", "--json")
    (server,) = [one for one in result.json["checks"] if one["name"] == "server"]
    assert server["status"] == "ok"
    assert f"{namespace}.events" in cli("queues", "shop.py").out


def test_dead_letters_are_listed_and_purged(cli: Cli, namespace: str) -> None:
    assert cli("topology", "apply", "shop.py").code == 0
    asyncio.run(bury(namespace, 3))
    listed = cli("dead-letters", "list", "shop.py")
    assert listed.code == 0, listed.err
    assert listed.out.count("unreadable") == 3
    again = cli("dead-letters", "list", "shop.py")
    assert again.out.count("unreadable") == 3, "looking at them does not hide them for long"
    purged = cli("dead-letters", "purge", "shop.py", "--all", "--yes")
    assert purged.code == 0, purged.err
    assert cli("dead-letters", "list", "shop.py").out.count("unreadable") == 0
