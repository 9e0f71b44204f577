"""``matador dead-letters``: listed, shown, sent back, deleted; by id, by filter, all."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Cli, Shop, Start, envelope, wait

from matador import SqliteCheckpointStore

DEAD = "shop.billing.undeliverable"


def _ids(result: Any) -> list[str]:
    return [one["id"] for one in result.json["dead_letters"]]


def test_a_list_says_what_died_when_and_why(cli: Cli, shop: Shop) -> None:
    shop.bury(2)
    result = cli("dead-letters", "list", "shop.py")
    assert result.code == 0, result.err
    header, first, *_ = result.out.splitlines()
    assert header.split() == ["id", "message", "receiver", "attempts", "died", "queue", "why"]
    assert first.startswith("0000-500  order.placed  charge")
    assert "the card was declined" in first
    assert "2 dead letters" in result.err
    (found, _) = cli("dead-letters", "list", "shop.py", "--json").json["dead_letters"]
    assert found.pop("died_at") is not None
    assert found == {
        "way": "events",
        "id": "0000-500",
        "queue": "billing",
        "kind": "undeliverable",
        "dead_letter_queue": DEAD,
        "decodable": True,
        "event": "order.placed",
        "subscriber": "charge",
        "attempts": 3,
        "reason": "it failed",
        "error_type": None,
        "last_error": "the card was declined",
        "held": False,
    }


def test_an_empty_list_is_fine(cli: Cli, shop: Shop) -> None:
    shop.put("shop.events", [])
    result = cli("dead-letters", "list", "shop.py")
    assert (result.code, result.out) == (0, "")
    assert "no dead letters" in result.err
    assert cli("dead-letters", "list", "shop.py", "--json").json["dead_letters"] == []


def test_a_file_that_is_not_there_is_not_made(cli: Cli, folder: Path) -> None:
    result = cli("dead-letters", "list", "shop.py")
    assert result.code == 1
    assert "does not exist yet" in result.err
    assert not (folder / "shop.db").exists()


def test_filters_must_all_hold(cli: Cli, shop: Shop) -> None:
    shop.put(DEAD, [("small", envelope("small", 10)), ("large", envelope("large", 1000))])
    shop.put(DEAD, [("odd", envelope("odd", 10, last_error="TIMEOUT", event_key="order.moved"))])
    shop.put("shop.events.unhandled", [("mail", envelope("mail", 10, subscriber="email"))])

    def found(*filters: str) -> list[str]:
        return _ids(cli("dead-letters", "list", "shop.py", "--json", *filters))

    assert found() == ["mail", "small", "large", "odd"]
    assert found("--queue", "billing") == ["small", "large", "odd"]
    assert found("--queue", "shop.billing", "--limit", "2") == ["small", "large"]
    assert found("--kind", "unhandled") == ["mail"]
    assert found("--event", "order.moved") == ["odd"]
    assert found("--subscriber", "email") == ["mail"]
    assert found("--error", "timeout") == ["odd"]
    assert found("--error", "IT FAILED") == ["mail", "small", "large", "odd"]
    assert found("--field", "amount > 100") == ["large"]
    assert found("--field", "amount<100", "--queue", "billing", "--error", "declined") == ["small"]
    assert found("--event", "nothing") == []


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["list", "shop.py", "--queue", "bilings"], "did you mean 'billing'?"),
        (["list", "shop.py", "--kind", "undelivered"], "did you mean 'undeliverable'?"),
        (["list", "shop.py", "--field", "amount"], "--field"),
        (["list", "shop.py", "--limit", "0"], "--limit"),
        (["redrive", "shop.py", "--yes"], "choose what to"),
        (["purge", "shop.py", "--yes"], "choose what to"),
        (["redrive", "shop.py", "--all"], "add --yes"),
        (["purge", "shop.py", "--id", "0001", "--id", "0002"], "2 dead letters would be purged"),
        (["purge", "shop.py", "--id", "", "--yes"], "--id is empty"),
        (["redrive", "shop.py", "--id", "000", "--yes"], "'000' is ambiguous"),
        (["show", "shop.py"], "--id"),
    ],
)
def test_wrong_usage_changes_nothing(cli: Cli, shop: Shop, arguments: list[str], says: str) -> None:
    ids = shop.bury(3)
    result = cli("dead-letters", *arguments)
    assert result.code == 2, result.err
    assert says in result.err
    assert shop.ids(DEAD) == ids


def test_an_id_that_is_not_there_is_an_error(cli: Cli, shop: Shop) -> None:
    shop.bury(1)
    result = cli("dead-letters", "purge", "shop.py", "--id", "0000", "--id", "9", "--yes")
    assert result.code == 1
    assert "there is no dead letter with the id '9'" in result.err
    assert len(shop.ids(DEAD)) == 1


def test_a_field_that_nothing_has_is_pointed_out(cli: Cli, shop: Shop) -> None:
    shop.bury(1)
    result = cli("dead-letters", "list", "shop.py", "--field", "amout>1")
    assert "no payload has a field 'amout'; did you mean 'amount'?" in result.err


def test_one_is_shown_in_full(cli: Cli, shop: Shop) -> None:
    shop.bury(2)
    result = cli("dead-letters", "show", "shop.py", "--id", "0001")
    assert result.code == 0
    for text in ("0001-500", "the gateway timed out", "the card was declined", '"amount": 500'):
        assert text in result.out
    (found,) = cli("dead-letters", "show", "shop.py", "--id", "0001", "--json").json["dead_letters"]
    assert found["data"] == {"order_id": "0001-500", "amount": 500}
    assert found["docket"]["firstError"] == "the gateway timed out"


def test_the_exception_of_a_worker_is_shown(cli: Cli, start: Start, shop: Shop) -> None:
    order = '{"order_id": "1", "amount": 500}'
    assert cli("send", "shop.py", "order.placed", order).code == 0
    worker = start("worker", "shop.py", "--queues", "billing")
    wait(lambda: len(shop.ids(DEAD)) == 1, lambda: f"a dead letter; {worker.err}")
    (id_,) = shop.ids(DEAD)
    shown = cli("dead-letters", "show", "shop.py", "--id", id_).out
    assert "DontRetry" in shown
    assert 'raise DontRetry("the card was declined")' in shown
    (found,) = cli("dead-letters", "show", "shop.py", "--id", id_, "--json").json["dead_letters"]
    assert found["error_type"].endswith("DontRetry")
    assert found["traceback"].startswith("Traceback (most recent call last)")


def test_a_redriven_one_is_as_new_and_goes_home(cli: Cli, shop: Shop) -> None:
    shop.bury(2)
    result = cli("dead-letters", "redrive", "shop.py", "--id", "0000", "--yes", "--json")
    assert result.code == 0, result.err
    assert result.json == {"chosen": 1, "redriven": 1, "gone": 0, "held": 0, "failed": []}
    assert shop.ids(DEAD) == ["0001-500"]
    (back,) = shop.messages("shop.billing")
    assert (back.id, back.state, back.delivery_count, back.reason) == ("0000-500", "ready", 0, None)
    body = json.loads(back.body)
    docket = body["docket"]
    assert docket["attempts"] == 1
    assert not {"firstError", "lastError", "scheduledFor"} & set(docket)
    assert docket["correlationId"] == "c-1"
    assert docket["metadata"] == {"till": 7}
    assert body["id"] == "0000-500"
    assert body["data"] == {"order_id": "0000-500", "amount": 500}


def test_one_without_an_original_queue_goes_to_the_queue_of_its_dead_letters(
    cli: Cli, shop: Shop
) -> None:
    shop.put(DEAD, [("a", envelope("a", 1, original_queue=None))])
    shop.put(DEAD, [("b", envelope("b", 1, original_queue="gone.queue"))])
    assert cli("dead-letters", "redrive", "shop.py", "--all", "--yes").code == 0
    assert shop.ids("shop.billing") == ["a", "b"]


def test_an_exact_id_is_not_the_beginning_of_another(cli: Cli, shop: Shop) -> None:
    shop.put(DEAD, [(id_, envelope(id_, 1)) for id_ in ("a", "ab")])
    assert cli("dead-letters", "redrive", "shop.py", "--id", "a", "--yes").code == 0
    assert shop.ids(DEAD) == ["ab"]


def test_filters_choose_what_is_redriven(cli: Cli, shop: Shop) -> None:
    shop.bury(3, amount=10)
    shop.bury(3, amount=1000)
    result = cli("dead-letters", "redrive", "shop.py", "--field", "amount > 100", "--yes")
    assert "3 dead letters redriven" in result.out
    assert shop.ids("shop.billing") == ["0000-1000", "0001-1000", "0002-1000"]
    assert shop.ids(DEAD) == ["0000-10", "0001-10", "0002-10"]


def test_nothing_that_matches_is_fine(cli: Cli, shop: Shop) -> None:
    shop.bury(1)
    result = cli("dead-letters", "redrive", "shop.py", "--event", "nothing")
    assert result.code == 0
    assert "no dead letters match" in result.err


def test_what_is_not_an_envelope_is_shown_and_left_alone_unless_asked_for(
    cli: Cli, shop: Shop
) -> None:
    shop.put(DEAD, [("raw-1", b"\xff\x00oops"), ("fine", envelope("fine", 1)), ("raw-2", b"")])
    listed = cli("dead-letters", "list", "shop.py").out
    assert listed.count("undecodable") == 2
    shown = cli("dead-letters", "show", "shop.py", "--id", "raw-1").out
    assert "ff 00 6f 6f 70 73" in shown
    assert "..oops" in shown
    raw = cli("dead-letters", "show", "shop.py", "--id", "raw-1", "--json").json["dead_letters"][0]
    assert bytes.fromhex(raw["body_hex"]) == b"\xff\x00oops"
    redriven = cli("dead-letters", "redrive", "shop.py", "--all", "--yes")
    assert redriven.code == 0
    assert "2 dead letters cannot be decoded and will stay" in redriven.err
    assert shop.ids(DEAD) == ["raw-1", "raw-2"]
    assert cli("dead-letters", "redrive", "shop.py", "--id", "raw-1", "--yes").code == 0
    assert cli("dead-letters", "redrive", "shop.py", "--undecodable", "--yes").code == 0
    assert shop.ids(DEAD) == []
    bodies = {one.id: one.body for one in shop.messages("shop.billing")}
    assert bodies["raw-1"] == b"\xff\x00oops"
    assert bodies["raw-2"] == b""


def test_purge_deletes_letters_and_checkpoints(cli: Cli, shop: Shop, folder: Path) -> None:
    shop.bury(3)

    async def steps(*ids: str, save: bool = False) -> list[bool]:
        store = SqliteCheckpointStore(folder / "checkpoints.db")
        await store.open()
        try:
            for id_ in ids if save else ():
                await store.save(id_, "step", b"1")
            return [bool(await store.load(id_)) for id_ in ids]
        finally:
            await store.close()

    assert asyncio.run(steps("0000-500", "0001-500", save=True)) == [True, True]
    result = cli("dead-letters", "purge", "shop.py", "--id", "0000", "--yes", "--json")
    assert result.json["purged"] == 1
    assert shop.ids(DEAD) == ["0001-500", "0002-500"]
    assert asyncio.run(steps("0000-500", "0001-500")) == [False, True]
    assert cli("dead-letters", "purge", "shop.py", "--all", "--yes").code == 0
    assert shop.ids(DEAD) == shop.ids("shop.billing") == []


def test_a_redrive_that_is_killed_resumes_without_repeats(
    start: Start, shop: Shop, cli: Cli
) -> None:
    ids = shop.bury(9000)
    process = start("dead-letters", "redrive", "shop.py", "--all", "--yes")
    wait(lambda: len(shop.ids("shop.billing")) > 0, lambda: f"a first one; {process.err}")
    process.signal(signal.SIGKILL)
    assert process.ends() == -signal.SIGKILL
    there = shop.ids("shop.billing")
    assert 0 < len(there) < len(ids), "killed in the middle"
    result = cli("dead-letters", "redrive", "shop.py", "--all", "--yes", "--json")
    assert result.code == 0, result.err
    assert result.json["redriven"] == len(ids) - len(there)
    assert shop.ids(DEAD) == []
    assert sorted(shop.ids("shop.billing")) == sorted(ids), "each exactly once"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_redrive_gives_back_what_it_holds(
    start: Start, shop: Shop, number: signal.Signals, code: int
) -> None:
    ids = shop.bury(9000)
    process = start("dead-letters", "redrive", "shop.py", "--all", "--yes")
    wait(lambda: len(shop.ids("shop.billing")) > 0, lambda: f"a first one; {process.err}")
    process.signal(number)
    assert process.ends() == code
    assert process.err.splitlines()[-1] == "error: interrupted"
    assert "Traceback" not in process.err
    assert not any(one.state == "in-flight" for one in shop.messages(DEAD))
    assert sorted(shop.ids("shop.billing") + shop.ids(DEAD)) == sorted(ids)


def test_a_misspelt_name_is_pointed_at(cli: Cli, shop: Shop) -> None:
    shop.bury(1)
    result = cli("dead-letters", "list", "shop.py", "--subscriber", "chrage")
    assert result.code == 0
    assert "there is no subscriber 'chrage' in the code; did you mean 'charge'?" in result.err
    assert "no dead letters match" in result.err
    event = cli("messages", "list", "shop.py", "--event", "order.placd")
    assert "there is no event 'order.placd' in the code; did you mean 'order.placed'?" in event.err
