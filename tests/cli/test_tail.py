"""``matador tail``: traffic as it happens, from a journal or from what a broker shows."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Cli, Process, Shop, Start, dedent

pytestmark = pytest.mark.slow  # it starts many processes

ORDER = '{"order_id": "1", "amount": 5}'
EXPENSIVE = '{"order_id": "2", "amount": 500}'


@pytest.fixture
def journaled(folder: Path) -> str:
    text = (folder / "shop.py").read_text()
    more = dedent("""
        from matador.observe import Journal
        app.configure(hooks=[Journal("journal")])
    """)
    (folder / "journaled.py").write_text(text + more)
    return "journaled.py"


def lines(process: Process) -> list[dict[str, Any]]:
    return [json.loads(line) for line in process.out.splitlines()]


def test_a_journal_shows_sends_and_attempts(cli: Cli, start: Start, journaled: str) -> None:
    people, machine = start("tail", journaled), start("tail", journaled, "--json")
    failed = start("tail", journaled, "--failed", "--subscriber", "charge", "--json")
    other = start("tail", journaled, "--event", "order.lost", "--json")
    for one in (people, machine, failed, other):
        one.says("following")
    worker = start("worker", journaled, "--json")
    worker.says("started")
    assert cli("send", journaled, "order.placed", ORDER, "--correlation-id", "c-1").code == 0
    assert cli("send", journaled, "order.placed", EXPENSIVE).code == 0
    machine.says('"type": "success"', times=3)
    machine.says('"type": "dead-letter"')
    found = lines(machine)
    assert sorted(one["type"] for one in found) == ["dead-letter"] + ["sent"] * 4 + ["success"] * 3
    sent = next(one for one in found if one["type"] == "sent" and one["correlation_id"] == "c-1")
    assert sent["data"] == {"order_id": "1", "amount": 5}
    failed.says("dead-letter")
    (letter,) = lines(failed)
    assert (letter["subscriber"], letter["attempt"]) == ("charge", 1)
    assert "the card was declined" in letter["error"]
    people.says("order.placed → charge", times=4)
    assert "the card was declined" in people.out
    for one in (people, machine, failed, other):
        one.signal(signal.SIGINT)
        assert one.ends() == 0
    assert lines(other) == []
    worker.signal(signal.SIGTERM)
    worker.ends()


def test_what_a_journal_has_already(cli: Cli, start: Start, journaled: str) -> None:
    cli("send", journaled, "order.placed", ORDER)
    process = start("tail", journaled, "--from-start", "--queue", "billing", "--json")
    process.says('"sent"')
    assert [one["queue"] for one in lines(process)] == ["shop.billing"]
    process.signal(signal.SIGTERM)
    process.ends()


def test_without_a_journal_the_queues_are_looked_at(cli: Cli, start: Start) -> None:
    cli("send", "shop.py", "order.placed", ORDER)  # makes the file; waits before the first look
    process = start("tail", "shop.py", "--json", "--interval", "0.05")
    process.says("there is no journal")
    people = start("tail", "shop.py", "--failed", "--interval", "0.05")
    people.says("there is no journal")
    # A look that comes before this shows nothing, so it is sent until it is seen.
    while '"waiting"' not in process.out:
        assert process.process.poll() is None
        cli("send", "shop.py", "order.placed", EXPENSIVE)
    assert all(one["data"]["order_id"] == "2" for one in lines(process))
    worker = start("worker", "shop.py")
    process.says('"dead-letter"')
    people.says("dead-letter")
    assert "the card was declined" in people.out
    assert "waiting" not in people.out
    for one in (process, people, worker):
        one.signal(signal.SIGINT)
    assert (process.ends(), people.ends()) == (0, 0)
    worker.ends()


def test_what_cannot_be_seen_is_said(cli: Cli, folder: Path) -> None:
    text = (folder / "shop.py").read_text().replace("sqlite:///shop.db?lease=1", "memory://")
    (folder / "memory.py").write_text(text)
    result = cli("tail", "memory.py")
    assert result.code == 1
    assert "inside each process" in result.err
    assert cli("tail", "shop.py", "--queue", "biling").code == 2


def test_hostile_texts_do_not_reach_the_terminal(
    start: Start, folder: Path, journaled: str
) -> None:
    from matador.observe.journal.records import DeliveryRecord, encode_record

    escape = "\x1b]0;owned\x07\x9b31m\u202e"
    record = DeliveryRecord(
        escape, escape, escape, escape, "t", 1, "retry", -(10**30), 1, 1, 1, 1, "x", 10**17, "w",
        error=escape,
    )  # fmt: skip
    (folder / "journal").mkdir()
    (folder / "journal" / "a.jsonl").write_bytes(encode_record(record) + b"\n")
    process = start("tail", journaled, "--from-start")
    process.says("retry")
    for odd in "\x1b\x07\x9b\u202e":
        assert odd not in process.out
    process.signal(signal.SIGINT)
    assert process.ends() == 0


def test_a_filter_that_the_schema_does_not_know_is_pointed_out(start: Start, shop: Shop) -> None:
    shop.bury(1)
    process = start("tail", "shop.py", "--event", "order.plcaed", "--subscriber", "charge")
    process.says("warning: there is no event 'order.plcaed' in the code; did you mean")
    process.says("Ctrl-C ends it")
    assert "no subscriber" not in process.err
    process.signal(signal.SIGINT)
    assert process.ends() == 0
