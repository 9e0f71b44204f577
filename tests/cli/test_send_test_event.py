"""``matador run`` and ``matador send-test-event``: one event through the real subscribers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import SHOP, Cli
from tests.support import payloads

from matador.cli.sample_payloads import sample_payload
from matador.codec.json import JsonCodec
from matador.model.event import event_type_of


def _module(folder: Path, more: str, name: str = "trial.py") -> str:
    (folder / name).write_text(SHOP + more)
    return name


def test_a_payload_is_made_up_and_handled_without_a_broker(cli: Cli, folder: Path) -> None:
    result = cli("send-test-event", "shop.py")
    assert result.code == 0, result.err
    assert "email-receipt" in result.out
    assert result.out.count("handled") == 2
    assert (folder / "receipts.txt").read_text() == "order_id\n"
    assert not (folder / "shop.db").exists()
    assert not (folder / "checkpoints.db").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ["order.placed", '{"order_id": "7", "amount": 5}'],
        ["order.created", "payload.json"],
        ["event.json"],
    ],
)
def test_an_event_is_run_here_and_now_and_nothing_is_stored(
    cli: Cli, folder: Path, arguments: list[str]
) -> None:
    observed = SHOP.replace(
        "    consume_from=", "    hooks=[Journal('journal'), History('h.db')],\n    consume_from="
    )
    assert observed != SHOP
    imports = "from matador.observe import History, Journal\n"
    (folder / "observed.py").write_text(imports + observed)
    (folder / "payload.json").write_text('{"order_id": "7", "amount": 5}')
    (folder / "event.json").write_text(
        '{"event_key": "order.placed", "data": {"order_id": "7", "amount": 5}, '
        '"options": {"delay": 3600}}'
    )
    before = {one.name for one in folder.iterdir()}
    result = cli("run", "observed.py", *arguments, "--json")
    assert result.code == 0, result.err
    assert {run["subscriber"] for run in result.json["runs"]} == {"email-receipt", "charge"}
    assert (folder / "receipts.txt").read_text() == "7\n"
    made = {one.name for one in folder.iterdir()} - before
    assert made - {"__pycache__"} == {"receipts.txt"}, "nothing is stored"
    failed = cli("run", "observed.py", "order.placed", '{"order_id": "8", "amount": 500}')
    assert failed.code == 1
    assert "DontRetry: the card was declined" in failed.out
    assert cli("run", "observed.py", "order.placd", "{}").code == 2


def test_the_test_event_of_the_module_is_sent(cli: Cli, folder: Path) -> None:
    app = _module(folder, "\ntest_event = OrderPlaced('t-1', 5)\n")
    assert cli("send-test-event", app).code == 0
    app = _module(
        folder,
        "\ntest_event = {'event_key': 'order.placed', 'data': {'order_id': 't-2', 'amount': 5},"
        " 'options': {'delay': 3600}}\n",
        "later.py",
    )
    assert cli("send-test-event", app).code == 0
    assert (folder / "receipts.txt").read_text().split() == ["t-1", "t-2"]


def test_metadata_with_a_type_is_made_up_too(cli: Cli, folder: Path) -> None:
    more = """
@dataclass(frozen=True)
class Origin:
    tenant: str
@event("order.traced", description="Traced.", metadata=Origin)
@dataclass(frozen=True)
class OrderTraced:
    order_id: str
@subscriber(description="Trace it.")
async def trace(envelope: Envelope[OrderTraced]) -> None:
    Path("tenant.txt").write_text(envelope.docket.metadata["tenant"])
app.configure(schema=Schema({OrderTraced: [trace]}))
"""
    result = cli("send-test-event", _module(folder, more))
    assert result.code == 0, result.err
    assert (folder / "tenant.txt").read_text() == "tenant"


def test_a_failure_says_what_a_worker_would_do(cli: Cli, folder: Path) -> None:
    slow = "    import time; time.sleep(0.05)\n"
    head = "async def charge(envelope: Envelope[OrderPlaced]) -> None:\n"
    assert head in SHOP
    more = "\ntest_event = OrderPlaced('t-1', 500)\n"
    (folder / "trial.py").write_text(SHOP.replace(head, head + slow) + more)
    result = cli("send-test-event", "trial.py", "--json")
    assert result.code == 1
    runs = {run["subscriber"]: run for run in result.json["runs"]}
    assert runs["email-receipt"]["outcome"] == "handled"
    assert runs["charge"]["outcome"] == "failed"
    assert runs["charge"]["duration_ms"] >= 50
    assert runs["charge"]["remark"] == (
        "DontRetry: the card was declined; a worker would move it to the undeliverable dead letters"
    )


def test_what_subscribers_send_is_run_too_through_the_application_itself(
    cli: Cli, folder: Path
) -> None:
    more = """
@subscriber(description="Tell.", idempotent="yes")
async def tell(envelope: Envelope[OrderLost]) -> None:
    await app.send(OrderPlaced(envelope.data.order_id, 1))

app.configure(schema=Schema({OrderLost: [tell], OrderPlaced: [email_receipt]}))
"""
    result = cli("send-test-event", _module(folder, more), "--json")
    assert result.code == 0, result.err
    assert [run["subscriber"] for run in result.json["runs"]] == ["tell", "email-receipt"]


def test_stubs_are_left_out_and_named(cli: Cli, folder: Path) -> None:
    more = """
from matador import SubscriberStub
ship = SubscriberStub("ship", description="Ship it.")
app.configure(schema=Schema({OrderPlaced: [email_receipt, ship]}))
"""
    result = cli("send-test-event", _module(folder, more))
    assert result.code == 0, result.err
    assert "ship" in result.err


def test_it_does_not_wait_longer_than_told(cli: Cli, folder: Path) -> None:
    more = """
import asyncio
@subscriber(description="Never done.")
async def never(envelope: Envelope[OrderPlaced]) -> None:
    await asyncio.Event().wait()

app.configure(schema=Schema({OrderPlaced: [never, email_receipt]}))
"""
    result = cli("send-test-event", _module(folder, more), "--timeout", "0.2")
    assert result.code == 1
    assert "1 message unfinished after 0.2 s" in result.err
    assert "unfinished" in result.out


def test_verbose_shows_every_hook(cli: Cli) -> None:
    result = cli("send-test-event", "shop.py", "--verbose")
    for hook in ("on_enqueue_success", "on_worker_before_process", "on_worker_success"):
        assert hook in result.err


def test_a_dry_run_runs_nobody(cli: Cli, folder: Path) -> None:
    result = cli("send-test-event", "shop.py", "--dry-run", "--json")
    assert result.json == {
        "event": "order.placed",
        "dry_run": True,
        "data": {"order_id": "order_id", "amount": 1},
        "would_run": ["email-receipt", "charge"],
        "stubs": [],
        "skipped": 0,
    }
    assert not (folder / "receipts.txt").exists()


@pytest.mark.parametrize(
    ("more", "arguments", "code", "says"),
    [
        ("", ["--event", "order.plced"], 2, "did you mean 'order.placed'?"),
        ("\ntest_event = 5\n", [], 1, "test_event is neither a payload nor a dict"),
        ("\ntest_event = {'data': 1}\n", [], 2, "must have"),
        ("\ntest_event = OrderPlaced(7, 1)\n", [], 1, "`$.order_id`"),
        ("\napp.configure(schema=Schema({}))\n", [], 1, "the schema has no events"),
    ],
)
def test_wrong_input(
    cli: Cli, folder: Path, more: str, arguments: list[str], code: int, says: str
) -> None:
    result = cli("send-test-event", _module(folder, more), *arguments)
    assert result.code == code, result.err
    assert says in result.err


@pytest.mark.parametrize("payload", [kind.order for kind in payloads.KINDS.values()])
def test_a_made_up_payload_fits_every_kind_of_type(payload: type[Any]) -> None:
    event = event_type_of(payload)
    made = sample_payload(event)
    JsonCodec().encode_payload(event, made)
