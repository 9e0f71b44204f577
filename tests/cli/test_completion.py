"""What the shell offers on Tab: names of the application, which another process imports."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.conftest import Cli

from matador.cli import completion

EVENTS = """
from dataclasses import dataclass
from matador import SubscriberStub, event, subscriber

@event("order.placed", description="A customer placed an order.")
@dataclass(frozen=True)
class OrderPlaced:
    order_id: str

@event("order.paid", description="Paid.")
@dataclass(frozen=True)
class OrderPaid:
    order_id: str

@subscriber(description="Email the receipt.")
async def email_receipt(envelope): ...

@subscriber(description="Charge.", name="charge")
def charge_card(envelope): ...

stub = SubscriberStub("elsewhere", description="In another service.")
hostile = SubscriberStub("$(touch danger)", description="A command for the shell.")
"""
APP = """
import sys
from shop.events import OrderPaid, OrderPlaced, charge_card, email_receipt, hostile, stub
from matador import Matador, Schema, Topology, WorkQueue
print("printed by the application")
print("printed as an error by the application", file=sys.stderr)
app = Matador(
    "amqp://nowhere",
    schema=Schema({OrderPlaced: [email_receipt, charge_card], OrderPaid: [stub, hostile]}),
    topology=Topology("shop", queues=["events", WorkQueue("billing", concurrency=4)]),
)
"""


@pytest.fixture
def shop_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package with an application that is large enough for several files."""
    package = tmp_path / "shop"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "events.py").write_text(EVENTS)
    (package / "main.py").write_text(APP)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(autouse=True)
def plenty_of_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine needs longer to import an application than a person waits for Tab."""
    monkeypatch.setattr(completion, "_TIME_LIMIT", 120.0)


EVENT_KEYS = ["order.placed", "order.paid"]
SUBSCRIBERS = ["email-receipt", "charge", "elsewhere"]
QUEUES = ["events", "billing"]


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("matador send shop/main.py ", EVENT_KEYS),
        ("matador send shop.main ", EVENT_KEYS),
        ("matador send shop.main : app order.pl", ["order.placed"]),
        ("matador send-test-event shop/main.py --event ", EVENT_KEYS),
        ("matador worker shop/main.py --queues ", QUEUES),
        ("matador worker shop/main.py --queues events,", ["events,billing"]),
        ("matador worker shop/main.py --queues = bil", ["billing"]),
        ("matador worker --queues ev", []),
        ("matador queues pause shop/main.py ", QUEUES),
        ("matador dead-letters list shop/main.py --kind un", ["unhandled", "undeliverable"]),
        ("matador dead-letters list shop/main.py --queue ", QUEUES),
        ("matador dead-letters redrive shop/main.py --subscriber ", SUBSCRIBERS),
        ("matador tail shop/main.py --event order.pa", ["order.paid"]),
        ("matador journal tap shop/main.py --queue b", ["billing"]),
        ("matador lake replay shop/main.py --to ", [*QUEUES, *SUBSCRIBERS]),
        ("matador send nowhere.py ", []),
        ("matador send /dev/zero ", []),
        ("matador send :app ", []),
    ],
)
def test_the_shell_completes_names_of_the_application(
    cli: Cli,
    shop_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    typed: str,
    offered: list[str],
) -> None:
    assert _completed(cli, monkeypatch, typed) == offered
    assert not any(name.partition(".")[0] == "shop" for name in sys.modules), "in another process"


def _completed(cli: Cli, monkeypatch: pytest.MonkeyPatch, typed: str) -> list[str]:
    """What bash is offered. Nothing else is printed."""
    monkeypatch.setenv("_MATADOR_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", typed)
    monkeypatch.setenv("COMP_CWORD", str(typed.count(" ")))
    result = cli()
    assert (result.code, result.err) == (0, "")
    return result.out.split()


def test_zsh_gets_descriptions_too(shop_folder: Path) -> None:
    asked = {
        "_MATADOR_COMPLETE": "complete_zsh",
        "_TYPER_COMPLETE_ARGS": "matador send shop/main.py ",
    }
    program = """
from matador.cli import completion, main
completion._TIME_LIMIT = 120.0
main()
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **asked},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "order.placed" in done.stdout
    assert "A customer placed an order." in done.stdout


def test_names_of_every_way_in_are_offered(
    cli: Cli, shop_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (shop_folder / "mails.py").write_text(
        "from matador.jobs import Queue\n"
        "emails = Queue('emails', provider='sqlite:///jobs.db')\n"
        "@emails.job\n"
        "async def welcome(to: str) -> None: ...\n"
    )
    assert _completed(cli, monkeypatch, "matador queues pause mails.py ") == ["emails"]
    asked = "matador dead-letters list mails.py --subscriber "
    assert _completed(cli, monkeypatch, asked) == ["welcome"]
    assert not (shop_folder / "jobs.db").exists(), "nothing is connected"


@pytest.mark.parametrize(
    "text",
    [b"def (", b"\xff\xfe", b"import nowhere", b"raise SystemExit", b"import os; os._exit(0)", b""],
    ids=["syntax", "encoding", "import", "exit", "end", "empty"],
)
def test_an_application_that_cannot_be_imported_offers_nothing(
    cli: Cli, shop_folder: Path, monkeypatch: pytest.MonkeyPatch, text: bytes
) -> None:
    (shop_folder / "broken.py").write_bytes(text)
    assert _completed(cli, monkeypatch, "matador send broken.py ") == []


def test_an_application_that_does_not_end_is_killed(
    cli: Cli, shop_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (shop_folder / "endless.py").write_text("while True: pass")
    monkeypatch.setattr(completion, "_TIME_LIMIT", 0.5)
    assert _completed(cli, monkeypatch, "matador send endless.py ") == []
