"""``matador messages``: waiting and delayed messages, listed, shown and cancelled."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.cli.conftest import Cli, Shop, envelope

from matador import SqliteCheckpointStore
from matador.transports.sqlite import SqliteTransport

BILLING = "shop.billing"
ORDER = '{"order_id": "1", "amount": 5}'


def _send(cli: Cli, *options: str) -> None:
    assert cli("send", "shop.py", "order.placed", ORDER, *options).code == 0


def test_a_list_says_what_waits_where_and_until_when(cli: Cli, shop: Shop) -> None:
    _send(cli)
    _send(cli, "--delay", "3600")
    result = cli("messages", "list", "shop.py")
    assert result.code == 0, result.err
    header, *lines = result.out.splitlines()
    assert header.split() == ["id", "message", "receiver", "attempts", "state", "due", "queue"]
    assert sum(" delayed " in line for line in lines) == 2
    assert result.err.splitlines()[-1] == "4 messages"
    found = cli("messages", "list", "shop.py", "--queue", "billing", "--json").json["messages"]
    assert [one["state"] for one in found] == ["waiting", "delayed"]
    assert (found[1]["event"], found[1]["subscriber"]) == ("order.placed", "charge")
    assert found[1]["due_at"] > found[0]["sent_at"]


def test_an_empty_list_is_fine(cli: Cli, shop: Shop) -> None:
    shop.put("shop.events", [])
    result = cli("messages", "list", "shop.py")
    assert (result.code, result.out, result.err.splitlines()[-1]) == (0, "", "no messages")
    assert cli("messages", "list", "shop.py", "--json").json == {"messages": [], "more": False}


def test_filters_and_limits(cli: Cli, shop: Shop) -> None:
    _send(cli)
    _send(cli, "--delay", "3600")
    shop.put("shop.events", [("odd", b"\xff")])

    def found(*filters: str) -> int:
        return len(cli("messages", "list", "shop.py", "--json", *filters).json["messages"])

    assert found() == 5
    assert found("--state", "delayed") == 2
    assert found("--state", "in-flight") == 0
    assert found("--queue", "events") == 3
    assert found("--subscriber", "charge") == 2
    assert found("--event", "order.placed") == 4
    assert found("--event", "nothing") == 0
    assert found("--limit", "2") == 2
    assert cli("messages", "list", "shop.py", "--json", "--limit", "5").json["more"] is False
    limited = cli("messages", "list", "shop.py", "--limit", "4")
    assert "the first 4; --limit shows more" in limited.err


def test_one_is_shown_in_full(cli: Cli, shop: Shop) -> None:
    shop.put(BILLING, [("a1", envelope("a1", 500)), ("raw", b"\xff\x00oops")])
    shown = cli("messages", "show", "shop.py", "--id", "a")
    assert shown.code == 0
    for text in ("a1", "order.placed", "the card was declined", '"amount": 500'):
        assert text in shown.out
    assert "ff 00 6f 6f 70 73" in cli("messages", "show", "shop.py", "--id", "raw").out
    (one,) = cli("messages", "show", "shop.py", "--id", "a1", "--json").json["messages"]
    assert one["data"] == {"order_id": "a1", "amount": 500}


def test_cancelled_messages_and_their_checkpoints_are_gone(
    cli: Cli, shop: Shop, folder: Path
) -> None:
    shop.put(BILLING, [(id_, envelope(id_, 500)) for id_ in ("a1", "a2", "b1")])

    async def steps(*ids: str, save: bool = False) -> list[bool]:
        store = SqliteCheckpointStore(folder / "checkpoints.db")
        await store.open()
        try:
            for id_ in ids if save else ():
                await store.save(id_, "step", b"1")
            return [bool(await store.load(id_)) for id_ in ids]
        finally:
            await store.close()

    assert asyncio.run(steps("a1", "b1", save=True)) == [True, True]
    result = cli("messages", "cancel", "shop.py", "--id", "a1", "--id", "a2", "--yes", "--json")
    assert result.code == 0, result.err
    assert result.json == {"chosen": 2, "cancelled": 2, "gone": 0, "held": 0, "failed": []}
    assert shop.ids(BILLING) == ["b1"]
    assert asyncio.run(steps("a1", "b1")) == [False, True]


def test_delayed_ones_are_cancelled_by_filter(cli: Cli, shop: Shop) -> None:
    _send(cli)
    _send(cli, "--delay", "3600")
    result = cli("messages", "cancel", "shop.py", "--state", "delayed", "--yes")
    assert (result.code, result.out) == (0, "2 messages cancelled\n")
    assert [one.state for one in shop.messages(BILLING)] == ["ready"]
    assert cli("messages", "cancel", "shop.py", "--all", "--yes").out == "2 messages cancelled\n"
    nothing = cli("messages", "cancel", "shop.py", "--all")
    assert (nothing.code, nothing.err.splitlines()[-1]) == (0, "no messages match")


def test_what_a_worker_holds_is_left_alone(cli: Cli, shop: Shop, folder: Path) -> None:
    shop.put(BILLING, [(id_, envelope(id_, 500)) for id_ in ("a1", "a2")])

    async def hold() -> None:
        transport = SqliteTransport(folder / "shop.db", lease=60)
        await transport.connect()
        subscription = await transport.subscribe(BILLING, prefetch=1)
        assert len(await subscription.receive(1)) == 1
        # Disconnecting would give it back: the process of this transport "dies" instead.
        result = await asyncio.to_thread(
            lambda: cli("messages", "cancel", "shop.py", "--all", "--yes")
        )
        assert result.code == 0
        assert "1 message cancelled" in result.out
        assert "1 message taken by another process in the meantime" in result.err
        await transport.disconnect()

    asyncio.run(hold())
    assert shop.ids(BILLING) == ["a1"]


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["list", "shop.py", "--queue", "bilings"], 2, "did you mean 'billing'?"),
        (["list", "shop.py", "--state", "delay"], 2, "did you mean 'delayed'?"),
        (["list", "shop.py", "--limit", "0"], 2, "--limit"),
        (["cancel", "shop.py", "--yes"], 2, "choose what to cancel"),
        (["cancel", "shop.py", "--all"], 2, "2 messages would be cancelled; add --yes"),
        (["cancel", "shop.py", "--id", "a", "--yes"], 2, "'a' is ambiguous: a1, a2"),
        (["cancel", "shop.py", "--id", "c", "--yes"], 1, "there is no message with the id 'c'"),
        (["show", "shop.py"], 2, "--id"),
    ],
)
def test_wrong_usage_changes_nothing(
    cli: Cli, shop: Shop, arguments: list[str], code: int, says: str
) -> None:
    shop.put(BILLING, [(id_, envelope(id_, 500)) for id_ in ("a1", "a2")])
    result = cli("messages", *arguments)
    assert result.code == code, result.err
    assert says in result.err
    assert shop.ids(BILLING) == ["a1", "a2"]


def test_a_transport_in_this_process_has_nothing_to_show(cli: Cli, folder: Path) -> None:
    text = (folder / "shop.py").read_text()
    (folder / "memory.py").write_text(text.replace("sqlite:///shop.db?lease=1", "memory://"))
    result = cli("messages", "list", "memory.py")
    assert result.code == 1
    assert "keeps messages inside each process" in result.err
