"""Commands on a group of transports: what is in any of them is counted, shown and moved."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.cli.conftest import TOPOLOGY, Cli, Shop, envelope

from matador.model.message import Message
from matador.transports.sqlite import SqliteTransport

LETTERS = "shop.billing.undeliverable"
GROUP = """MultiTransport([
        SqliteTransport("shop.db", lease=1), SqliteTransport("spare.db", name="spare", lease=1), {}
    ])"""


@pytest.fixture
def shop(folder: Path) -> Shop:
    """The shop on two files, the second with a letter and a message; and on a memory."""
    given = (folder / "shop.py").read_text()
    assert '"sqlite:///shop.db?lease=1"' in given
    imported = "from matador.transports import *\n"
    text = given.replace('"sqlite:///shop.db?lease=1"', GROUP.format("MemoryTransport()"))
    (folder / "shop.py").write_text(imported + text)
    text = given.replace(
        '"sqlite:///shop.db?lease=1"', GROUP.format("RabbitMQTransport('amqp://127.0.0.1:1')")
    )
    (folder / "down.py").write_text(imported + text)

    async def fill() -> None:
        spare = SqliteTransport(folder / "spare.db")
        await spare.connect()
        await spare.apply_topology(TOPOLOGY)
        reason = {"x-matador-dead-letter-reason": "it failed"}
        letter = Message("spare-letter", LETTERS, envelope("spare-letter", 5), reason)
        waits = Message("spare-waits", "shop.billing", envelope("spare-waits", 5))
        assert list(await spare.send([letter, waits])) == [None, None]
        await spare.disconnect()

    asyncio.run(fill())
    return Shop(folder)


def _counts(cli: Cli) -> dict[str, tuple[int, int]]:
    result = cli("queues", "shop.py", "--json")
    assert result.code == 0, result.err
    return {
        one["queue"]: (one["waiting"], sum(one["dead_letters"].values()))
        for one in result.json["queues"]
    }


def test_queues_and_dead_letters_of_all_are_counted_shown_and_moved(cli: Cli, shop: Shop) -> None:
    ids = shop.bury(2, amount=5)
    assert _counts(cli) == {"shop.events": (0, 0), "shop.billing": (1, 3)}
    listed = cli("dead-letters", "list", "shop.py", "--json").json["dead_letters"]
    assert [one["id"] for one in listed] == [*ids, "spare-letter"]
    waiting = cli("messages", "list", "shop.py", "--json").json["messages"]
    assert [one["id"] for one in waiting] == ["spare-waits"]
    moved = cli("dead-letters", "redrive", "shop.py", "--all", "--yes", "--json")
    assert moved.json["redriven"] == 3, moved.err
    assert _counts(cli) == {"shop.events": (0, 0), "shop.billing": (4, 0)}
    assert shop.ids("shop.billing") == ids


def test_a_queue_is_looked_for_on_every_transport(cli: Cli, shop: Shop, folder: Path) -> None:
    shop.bury(1)
    spare = SqliteTransport(folder / "spare.db")

    async def forget() -> None:
        await spare.connect()
        await spare.delete_queue("shop.events")
        await spare.disconnect()

    asyncio.run(forget())
    result = cli("topology", "check", "shop.py", "--json")
    assert result.code == 1
    missing = [
        (one["queue"], one["transport"]) for one in result.json["queues"] if not one["exists"]
    ]
    assert missing == [("shop.events", "spare")]
    assert {one["transport"] for one in result.json["queues"]} == {"sqlite", "spare"}
    assert "shop.events on spare" in cli("topology", "check", "shop.py").out
    assert "missing: shop.events on spare" in cli("doctor", "shop.py").out
    assert cli("topology", "apply", "shop.py").code == 0
    assert cli("topology", "check", "shop.py").code == 0


def test_what_cannot_be_reached_is_said(cli: Cli, shop: Shop) -> None:
    shop.bury(1)
    result = cli("topology", "check", "down.py")
    assert result.code == 1
    assert "rabbitmq is failed: could not connect to 127.0.0.1:1" in result.err
    assert "rabbitmq is failed: could not connect to 127.0.0.1:1" in cli("doctor", "down.py").out
    result = cli("queues", "down.py", "--json")
    assert result.code == 0
    assert [sum(one["dead_letters"].values()) for one in result.json["queues"]] == [0, 2]
    assert "could not connect to 127.0.0.1:1" in result.err
