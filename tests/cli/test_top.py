"""``matador top``: a live view on a terminal, lines elsewhere."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
from tests.cli.conftest import Cli, Shop, Start, dedent
from tests.cli.test_terminal import Open
from tests.cli.test_terminal import terminal as terminal

pytestmark = pytest.mark.slow  # it starts many processes

ORDER = '{"order_id": "1", "amount": 5}'


def test_one_look_for_machines(cli: Cli, shop: Shop) -> None:
    cli("send", "shop.py", "order.placed", ORDER)
    cli("send", "shop.py", "order.placed", ORDER, "--delay", "3600")
    shop.bury(3)
    result = cli("top", "shop.py", "--once", "--json", "--interval", "0.1")
    assert result.code == 0
    events, billing = result.json["queues"]
    assert events.pop("oldest_seconds") >= 0
    assert events == {
        "queue": "shop.events",
        "exists": True,
        "waiting": 1,
        "delayed": 1,
        "in_flight": 0,
        "dead_letters": {"unhandled": 0, "undeliverable": 0},
        "sent_per_second": None,
        "handled_per_second": None,
        "failed_per_second": None,
        "change_per_second": 0.0,
        "workers": None,
        "paused": False,
    }
    assert billing["dead_letters"]["undeliverable"] == 3


def test_one_look_for_people(cli: Cli, shop: Shop) -> None:
    shop.bury(3)
    result = cli("top", "shop.py", "--once", "--interval", "0.1")
    assert result.code == 0
    assert "change/s" in result.out
    row = next(line for line in result.out.splitlines() if line.startswith("shop.billing"))
    assert row.split()[-1] == "3"


def test_a_journal_knows_rates_and_workers(cli: Cli, start: Start, folder: Path) -> None:
    text = (folder / "shop.py").read_text()
    more = dedent("""
        from matador.observe import Journal
        app.configure(hooks=[Journal("journal")])
    """)
    (folder / "journaled.py").write_text(text + more)
    cli("send", "journaled.py", "order.placed", ORDER)
    process = start("top", "journaled.py", "--json", "--interval", "0.1")
    process.says('"queues"')
    worker = start("worker", "journaled.py")
    process.says('"workers": 1')
    rows = [row for line in process.out.splitlines() for row in json.loads(line)["queues"]]
    assert max(row["handled_per_second"] for row in rows) > 0
    process.signal(signal.SIGINT)
    assert process.ends() == 0
    worker.signal(signal.SIGTERM)
    worker.ends()


def test_a_terminal_shows_it_live_and_keys_work(terminal: Open, cli: Cli, shop: Shop) -> None:
    shop.bury(2)
    screen = terminal("top", "shop.py", "--interval", "0.1")
    screen.shows(r"shop on sqlite")
    screen.shows(r"shop\.events: dead letters: 0 unhandled, 0 undeliverable")
    screen.type("\x1b[B")
    screen.shows(r"shop\.billing: dead letters: 0 unhandled, 2 undeliverable")
    shop.bury(5, amount=700)
    screen.shows(r"shop\.billing: dead letters: 0 unhandled, 7 undeliverable")
    screen.type("q")
    assert screen.ends() == 0
    assert "\x1b[?1049l" in screen.raw  # the screen of before is back
    interrupted = terminal("top", "shop.py")
    interrupted.shows("q quit")
    interrupted.type("\x03")
    assert interrupted.ends() == 0


def test_a_terminal_may_become_narrow(terminal: Open, shop: Shop, folder: Path) -> None:
    shop.bury(2)
    long = "billing-of-the-northern-region"
    text = (folder / "shop.py").read_text().replace("billing", long)
    (folder / "long.py").write_text(text)
    screen = terminal("top", "long.py", "--interval", "0.1")
    screen.shows(rf"shop\.{long} +missing")
    for columns, row in (
        (60, r"shop\.billing-[a-z-]+…  missing +– +0"),
        (30, r"shop\.billing-[a-z-]+…"),
    ):
        screen.resize(20, columns)
        screen.process.send_signal(signal.SIGWINCH)
        screen.shows(row)
    screen.shows("q quit")
    screen.type("q")
    assert screen.ends() == 0


def test_what_cannot_be_seen_is_said(cli: Cli, folder: Path) -> None:
    text = (folder / "shop.py").read_text().replace("sqlite:///shop.db?lease=1", "memory://")
    (folder / "memory.py").write_text(text)
    assert cli("top", "memory.py", "--once").code == 1
    missing = cli("top", "shop.py", "--once")
    assert missing.code == 1
    assert "does not exist yet" in missing.err
