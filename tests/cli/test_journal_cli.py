"""Messages of a queue land in a journal, each on the disk before it is acknowledged."""

from __future__ import annotations

import signal
from pathlib import Path

from tests.cli.conftest import Cli, Shop, Start, envelope, wait

from matador.observe.journal.records import MalformedRecord, SentRecord, decode_record
from matador.observe.journal.segments import finished

TAP = ("journal", "tap", "shop.py", "--journal", "journal/")


def landed(folder: Path) -> list[SentRecord | MalformedRecord]:
    records = [
        decode_record(line)
        for segment in finished(folder / "journal")
        for line in segment.read_bytes().splitlines()
    ]
    return [one for one in records if isinstance(one, SentRecord | MalformedRecord)]


def test_a_queue_is_emptied_into_the_journal(cli: Cli, shop: Shop, folder: Path) -> None:
    shop.put("shop.billing", [(f"id-{n}", envelope(f"id-{n}", n)) for n in range(20)])
    shop.put("shop.billing", [("raw", b"no envelope")])
    result = cli(*TAP, "--queue", "billing", "--until-empty", "--json")
    assert result.code == 0, result.err
    assert result.json == {"queue": "shop.billing", "landed": 21, "malformed": 1}
    assert shop.ids("shop.billing") == []
    found = landed(folder)
    assert {one.id for one in found if isinstance(one, SentRecord)} == {
        f"id-{n}" for n in range(20)
    }
    assert len(found) == 21


def test_people_are_told_how_many(cli: Cli, shop: Shop) -> None:
    shop.put("shop.billing", [("one", envelope("one", 1))])
    result = cli(*TAP, "--queue", "billing", "--until-empty")
    assert result.code == 0
    assert result.out == ""
    assert result.err.endswith("\n1 message of shop.billing written to journal\n")


def test_ctrl_c_ends_a_tap_in_good_order(start: Start, shop: Shop, folder: Path) -> None:
    shop.put("shop.billing", [("one", envelope("one", 1))])
    process = start(*TAP, "--queue", "billing", "--rotate", "0.1")
    wait(lambda: len(landed(folder)) == 1, lambda: f"a record; {process.err}")
    process.signal(signal.SIGINT)
    assert process.ends() == 0, process.err
    assert "1 message of shop.billing written" in process.err
    assert "Traceback" not in process.err


def test_a_queue_that_there_is_not(cli: Cli, shop: Shop) -> None:
    shop.put("shop.billing", [])
    result = cli(*TAP, "--queue", "biling")
    assert result.code == 2
    assert "did you mean 'billing'?" in result.err
    assert "Traceback" not in result.err


def test_a_shop_without_a_file_is_told_so(cli: Cli) -> None:
    result = cli(*TAP, "--queue", "billing")
    assert result.code == 1
    assert "shop.db does not exist yet" in result.err


def test_a_folder_that_cannot_be_made(cli: Cli, shop: Shop, folder: Path) -> None:
    shop.put("shop.billing", [("one", envelope("one", 1))])
    (folder / "journal").write_text("a file")
    result = cli(*TAP, "--queue", "billing", "--until-empty")
    assert result.code == 2
    assert "journal is a file" in result.err
    assert shop.ids("shop.billing") == ["one"]
