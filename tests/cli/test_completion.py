"""What the shell offers on Tab: names from the source of the application, which is never run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.conftest import Cli

from matador.cli.app_outline import outline

EVENTS = """
from dataclasses import dataclass
from matador import SubscriberStub, event, subscriber

@event("order.placed", description="A customer placed an order.")
@dataclass(frozen=True)
class OrderPlaced:
    order_id: str

Paid = event("order.paid", description="Paid.")(dict)
hostile = event("$(touch danger)", description="No.")(dict)
spaced = event("two words", description="No.")(dict)

@subscriber(description="Email the receipt.")
async def email_receipt(envelope): ...

@subscriber(description="Charge.", name="charge")
def charge_card(envelope): ...

stub = SubscriberStub("elsewhere", description="In another service.")
"""
APP = """
from pathlib import Path
Path("danger").touch()
print("danger")
from .events import OrderPlaced
from matador import Matador, Topology, WorkQueue
app = Matador("amqp://nowhere", schema=None, topology=Topology(
    "shop", queues=["events", WorkQueue("billing", concurrency=4)]
))
"""


@pytest.fixture
def shop_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package whose application must not be imported."""
    package = tmp_path / "shop"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "events.py").write_text(EVENTS)
    (package / "main.py").write_text(APP)
    monkeypatch.chdir(tmp_path)
    return tmp_path


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
    monkeypatch.setenv("_MATADOR_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", typed)
    monkeypatch.setenv("COMP_CWORD", str(typed.count(" ")))
    result = cli()
    assert (result.code, result.out.split(), result.err) == (0, offered, "")
    assert not (shop_folder / "danger").exists(), "the application was not imported"


def test_zsh_gets_descriptions_too(shop_folder: Path) -> None:
    asked = {
        "_MATADOR_COMPLETE": "complete_zsh",
        "_TYPER_COMPLETE_ARGS": "matador send shop/main.py ",
    }
    done = subprocess.run(
        [sys.executable, "-c", "from matador.cli import main; main()"],
        env={**os.environ, **asked},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "order.placed" in done.stdout
    assert "A customer placed an order." in done.stdout


def test_an_application_without_a_topology_has_one_queue(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text("app = Matador(url)")
    assert list(outline("shop.py", tmp_path).queues) == ["events"]


@pytest.mark.parametrize(
    "text",
    [b"def (", b"\xff\xfe", b"\x00", b"[" * 20_000, b"import shop, .x", b"from .... import up"],
    ids=["syntax", "encoding", "null", "deep", "dots", "above"],
)
def test_files_that_cannot_be_read_offer_nothing(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "shop.py").write_bytes(text)
    assert outline("shop.py", tmp_path).events == {}


def test_modules_that_import_each_other_are_read_once(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("import b\nevent('a', description='A.')")
    (tmp_path / "b.py").write_text("import a\nevent('b', description='B.')")
    assert outline("a.py", tmp_path).events == {"a": "A.", "b": "B."}
