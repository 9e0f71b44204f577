"""``matador send``: what arrives, and what is refused."""

from __future__ import annotations

import codecs
import json
import sqlite3
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from tests.cli.conftest import Cli, Shop, Start

ORDER = '{"order_id": "1", "amount": 5}'


def test_an_event_reaches_the_queue_of_every_subscriber_and_is_not_consumed(
    cli: Cli, shop: Shop, folder: Path
) -> None:
    result = cli("send", "shop.py", "order.placed", ORDER)
    assert result.code == 0, result.err
    assert "order.placed sent to 2 subscribers" in result.out
    assert "email-receipt" in result.out
    assert len(shop.ids("shop.events")) == len(shop.ids("shop.billing")) == 1
    assert not (folder / "receipts.txt").exists(), "the application consumes; a send must not"


def test_json_names_every_message(cli: Cli, shop: Shop) -> None:
    result = cli("send", "shop.py", "order.created", ORDER, "--json")
    assert result.code == 0
    (mail,), (charge,) = shop.ids("shop.events"), shop.ids("shop.billing")
    assert result.json == {
        "event": "order.placed",
        "sent": [
            {
                "subscriber": "email-receipt",
                "queue": "shop.events",
                "id": mail,
                "transport": "sqlite",
            },
            {
                "subscriber": "charge",
                "queue": "shop.billing",
                "id": charge,
                "transport": "sqlite",
            },
        ],
        "skipped": 0,
        "errors": [],
    }


def test_a_group_does_not_store_in_the_memory_of_this_command(cli: Cli, folder: Path) -> None:
    text = (folder / "shop.py").read_text()
    assert '"sqlite:///shop.db?lease=1"' in text
    group = "MultiTransport([RabbitMQTransport('amqp://127.0.0.1:1'), MemoryTransport()])"
    (folder / "group.py").write_text(
        "from matador.transports import MemoryTransport, MultiTransport, RabbitMQTransport\n"
        + text.replace('"sqlite:///shop.db?lease=1"', group)
    )
    result = cli("send", "group.py", "order.placed", ORDER)
    assert result.code == 1
    assert "order.placed sent to 0 subscribers" in result.out
    result = cli("send", "group.py", "order.placed", ORDER, "--json")
    assert result.code == 1
    assert [error["queue"] for error in result.json["errors"]] == ["shop.events", "shop.billing"]
    assert "nothing in this process consumes shop.events" in result.json["errors"][0]["error"]


def test_options_travel_with_the_event(cli: Cli, shop: Shop) -> None:
    options = ["--delay", "60", "--correlation-id", "c-7", "--ordering-key", "k"]
    more = ["--metadata", '{"till": 3}', "--before", '{"order_id": "1", "amount": 4}']
    result = cli("send", "shop.py", "order.placed", ORDER, *options, *more)
    assert result.code == 0, result.err
    (stored,) = shop.messages("shop.events")
    assert stored.state == "delayed"
    assert stored.ordering_key == "k"
    body = json.loads(stored.body)
    assert body["before"] == {"order_id": "1", "amount": 4}
    assert body["docket"]["correlationId"] == "c-7"
    assert body["docket"]["metadata"] == {"till": 3}


def test_a_file_holds_an_event_and_the_command_line_wins(
    cli: Cli, shop: Shop, folder: Path
) -> None:
    event = {
        "eventKey": "order.placed",
        "data": {"order_id": "9", "amount": 1},
        "before": {"order_id": "9", "amount": 0},
        "options": {"delayMs": 90_000, "correlationId": "of the file", "metadata": {"a": 1}},
    }
    (folder / "event.json").write_text(json.dumps(event), "utf-8-sig")
    result = cli("send", "shop.py", "event.json", "--correlation-id", "mine")
    assert result.code == 0, result.err
    (stored,) = shop.messages("shop.events")
    body = json.loads(stored.body)
    assert stored.state == "delayed"
    assert body["before"] == {"order_id": "9", "amount": 0}
    assert body["docket"]["correlationId"] == "mine"
    assert body["docket"]["metadata"] == {"a": 1}


def test_a_dry_run_touches_nothing(cli: Cli, folder: Path) -> None:
    result = cli("send", "shop.py", "order.placed", ORDER, "--dry-run", "--json", "--priority", "3")
    assert result.code == 0
    assert result.json["dry_run"] is True
    first = result.json["would_send"][0]
    assert (first["subscriber"], first["queue"]) == ("email-receipt", "shop.events")
    assert first["bytes"] > len(ORDER)
    assert first["warnings"] == ["sent without its priority: the queue does not support priorities"]
    assert not (folder / "shop.db").exists()
    people = cli("send", "shop.py", "order.placed", ORDER, "--dry-run")
    assert "order.placed would be sent to" in people.out


def test_an_event_that_nobody_wants_is_fine_and_said(cli: Cli) -> None:
    result = cli("send", "shop.py", "order.lost", '{"order_id": "1"}')
    assert result.code == 0
    assert "order.lost has no subscribers" in result.err


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["order.plced", ORDER], 2, "did you mean 'order.placed'?"),
        (["order.placed", '{"order_id": 1, "amount": 5}'], 1, "`$.order_id`"),
        (["order.placed", '{"order_id": "1"}'], 1, "missing required field `amount`"),
        (["order.placed", '"text"'], 1, "order.placed"),
        (["order.placed", ""], 2, "the payload is not valid JSON"),
        (["order.placed", '{"order_id": "1",}'], 2, "line 1, column 18"),
        (["order.placed", '{"amount": 1, "amount": 2}'], 2, "duplicate key 'amount'"),
        (["order.placed", '{"amount": NaN}'], 2, "NaN is not valid JSON"),
        (["order.placed", "[" * 100_000], 2, "nested too deeply"),
        (["order.placed", ORDER, "--metadata", "[]"], 2, "--metadata must be a JSON object"),
        (["order.placed", ORDER, "--before", "{"], 2, "--before is not valid JSON"),
        (["order.placed", ORDER, "--delay", "-1"], 2, "delay must be at least 0"),
        (["order.placed", ORDER, "--delay", "nan"], 2, "finite"),
        (["order.placed", ORDER, "--priority", "-1"], 2, "priority"),
        (["order.placed", ORDER, "--timeout", "0"], 2, "--timeout"),
        (["order.placed"], 2, "the payload is missing"),
        (["nothing.json"], 2, "the file nothing.json does not exist"),
        (["wrong.json"], 2, "unknown field 'optoins'; did you mean 'options'?"),
        (["short.json"], 2, 'must have "event_key"'),
        (["bytes.json"], 2, "cannot be read"),
        ([], 2, "Missing argument"),
    ],
)
def test_wrong_input_is_refused_with_its_place(
    cli: Cli, folder: Path, arguments: list[str], code: int, says: str
) -> None:
    (folder / "wrong.json").write_text('{"event_key": "a", "data": {}, "optoins": {}}')
    (folder / "short.json").write_text("{}")
    (folder / "bytes.json").write_bytes(b"\xff\xfe")
    result = cli("send", "shop.py", *arguments)
    assert result.code == code, result.err
    assert says in result.err
    assert "Traceback" not in result.err
    assert result.out == ""
    assert not (folder / "shop.db").exists()


def test_the_place_of_a_json_error_is_pointed_at(cli: Cli) -> None:
    result = cli("send", "shop.py", "order.placed", '{"order_id": "1" "amount": 5}')
    *_, line, arrow = result.err.rstrip("\n").split("\n")
    assert line[arrow.index("^")] == '"'
    assert line[: arrow.index("^")].endswith('"1" ')


def test_a_process_of_its_own_reads_stdin_and_prints_json_alone(folder: Path, shop: Shop) -> None:
    event = msgspec.json.encode(
        {"event_key": "order.placed", "data": {"order_id": "1", "amount": 5}}
    )
    command = [Path(sys.executable).with_name("matador"), "send", "shop.py", "-", "--json"]
    ran = subprocess.run(
        command, cwd=folder, input=codecs.BOM_UTF8 + event, capture_output=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert len(json.loads(ran.stdout)["sent"]) == 2
    assert b"the shop's module was imported" in ran.stderr
    assert len(shop.ids("shop.events")) == 1


def test_a_send_gives_up_in_time(start: Start, shop: Shop, folder: Path) -> None:
    shop.put("shop.events", [])
    text = (folder / "shop.py").read_text().replace("lease=1", "busy_timeout=600")
    (folder / "shop.py").write_text(text)
    blocker = sqlite3.connect(folder / "shop.db", isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")
    process = start("send", "shop.py", "order.placed", ORDER, "--timeout", "0.3")
    assert process.ends(60) == 1, "long before the file's own patience ends"
    blocker.execute("ROLLBACK")
    blocker.close()
    assert "took longer than 0.3 s" in process.err
    assert process.err.count("error: ") == 1


def test_a_memory_transport_cannot_be_sent_to_from_outside(cli: Cli, folder: Path) -> None:
    text = (folder / "shop.py").read_text().replace("sqlite:///shop.db?lease=1", "memory://")
    (folder / "here.py").write_text(text)
    result = cli("send", "here.py", "order.placed", ORDER)
    assert result.code == 1
    assert "inside each process" in result.err


HALF = """
from dataclasses import dataclass
from matador import Matador, Schema, SubscriberStub, Topology, event
from matador.errors import SendRefusedError
from matador.transports import SqliteTransport

@event("order.placed", description="An order.")
@dataclass
class OrderPlaced:
    order_id: str

class Half(SqliteTransport):
    async def send(self, messages):
        outcomes = await super().send(messages)
        full = SendRefusedError("the queue is full")
        return [full if m.queue == "shop.billing" else o for m, o in zip(messages, outcomes)]

app = Matador(
    Half("half.db"),
    schema=Schema({OrderPlaced: [
        SubscriberStub("email", description="It."),
        SubscriberStub("bill", description="It.", queue="billing"),
    ]}),
    topology=Topology("shop", queues=["events", "billing"]),
)
"""


def test_what_could_not_be_stored_is_shown_beside_what_was(cli: Cli, folder: Path) -> None:
    (folder / "half.py").write_text(HALF)
    result = cli("send", "half.py", "order.placed", '{"order_id": "1"}')
    assert result.code == 1
    assert "order.placed sent to 1 subscriber" in result.out
    assert "the queue is full" in result.out
    shown = cli("send", "half.py", "order.placed", '{"order_id": "1"}', "--json")
    assert shown.code == 1
    assert [one["subscriber"] for one in shown.json["sent"]] == ["email"]
    assert [one["subscriber"] for one in shown.json["errors"]] == ["bill"]
