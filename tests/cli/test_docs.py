"""``matador docs`` and ``matador schema check``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from tests.catalog.test_asyncapi import problems
from tests.cli.conftest import Cli, dedent

EVERYTHING = dedent('''
    """All ways in, in one module."""

    from dataclasses import dataclass

    from shop import app as app
    from matador.channels import QueueService, QueueSettings, Settings, channel, consume
    from matador.jobs import ActiveJob, Queue, Worker
    from matador.pubsub import MessageContext, Subscriber
    from matador.rpc import RpcServer

    __version__ = "1.2.3"
    emails = Queue("emails")

    @emails.job
    async def welcome(to: str, lang: str = "en") -> str:
        """Welcome a customer."""
        return to

    worker = Worker(emails)

    @dataclass
    class Resize:
        width: int

    async def resize(job: ActiveJob[Resize]) -> None:
        """Resize an image."""

    images = Worker("images", {"resize": resize})
    server = RpcServer("memory://", queue="maths")

    @server.handler("ADD")
    async def add(request: list[int]) -> int:
        """Add numbers."""
        return sum(request)

    listener = Subscriber("memory://", exchange="news", queue="analytics")

    @listener.on("orders.*", "returns.#")
    async def count(message: dict[str, int], ctx: MessageContext) -> None:
        """Count them."""

    @channel("stock")
    class Stock:
        @consume("moved")
        async def moved(self, item: Resize) -> None:
            """Move an item."""

    service = QueueService(
        Settings(QueueSettings(type="memory", url="memory://")), channels=[Stock]
    )
''')


@pytest.fixture
def everything(folder: Path) -> str:
    (folder / "everything.py").write_text(EVERYTHING)
    return "everything.py"


def test_the_document_of_an_application_is_valid_and_connects_nothing(
    cli: Cli, folder: Path
) -> None:
    result = cli("docs", "shop.py")
    assert (result.code, problems(result.json)) == (0, [])
    document = result.json
    assert document["info"] == {"title": "shop", "version": "0"}
    assert set(document["channels"]) == {"shop.events", "shop.billing"}
    assert set(document["components"]["messages"]) == {"order.placed", "order.lost"}
    assert document["components"]["messages"]["order.placed"]["x-matador-aliases"] == [
        "order.created"
    ]
    assert set(document["operations"]) == {
        "handle.order.placed.email-receipt",
        "handle.order.placed.charge",
        "send.order.placed.shop.events",
        "send.order.placed.shop.billing",
    }
    assert not (folder / "shop.db").exists()


def test_all_ways_in_of_a_module_are_described(cli: Cli, everything: str) -> None:
    result = cli("docs", everything)
    assert problems(result.json) == []
    messages = result.json["components"]["messages"]
    assert {(one["x-matador-kind"], one["x-matador-key"]) for one in messages.values()} == {
        ("event", "order.placed"),
        ("event", "order.lost"),
        ("job", "emails/welcome"),
        ("reply", "emails/welcome"),
        ("job", "images/resize"),
        ("command", "maths/ADD"),
        ("reply", "maths/ADD"),
        ("message", "news/orders.*"),
        ("message", "news/returns.#"),
        ("message", "stock/moved"),
    }
    assert result.json["info"]["version"] == "1.2.3"
    welcome = result.json["components"]["schemas"]["WelcomeParameters"]
    assert (list(welcome["properties"]), welcome["required"]) == (["to", "lang"], ["to"])
    addresses = {one["address"] for one in result.json["channels"].values()}
    assert {"emails", "images", "maths", "analytics", "stock.moved"} <= addresses


def test_a_job_queue_or_a_server_without_an_application(cli: Cli, folder: Path) -> None:
    (folder / "only.py").write_text(
        "from matador.rpc import RpcServer\nserver = RpcServer('memory://', queue='maths')\n"
        "server.register('ADD', lambda numbers: sum(numbers))\n"
    )
    result = cli("docs", "only.py:server")
    assert (result.code, problems(result.json)) == (0, [])
    assert result.json["info"]["title"] == "only"


def test_yaml_html_and_files(cli: Cli, everything: str, folder: Path) -> None:
    plain = cli("docs", everything).json
    assert yaml.safe_load(cli("docs", everything, "--format", "yaml").out) == plain
    page = cli("docs", everything, "--format", "html").out
    assert page.startswith("<!doctype html>")
    for text in ("order.placed", "Charge the card.", "emails/welcome", "Add numbers.", "width"):
        assert text in page
    written = cli("docs", everything, "--output", "a.json", "--html", "a.html", "--title", "Shop")
    assert (written.code, written.out) == (0, "")
    assert "wrote a.json: 2 events, 2 jobs, 1 command, 3 messages" in written.err
    assert json.loads((folder / "a.json").read_text()) == {
        **plain,
        "info": {"title": "Shop", "version": "1.2.3"},
    }
    assert "<h1>Shop</h1>" in (folder / "a.html").read_text()
    summary = cli("docs", everything, "--output", "a.json", "--json")
    assert summary.json == {
        "events": 2,
        "jobs": 2,
        "commands": 1,
        "messages": 3,
        "output": "a.json",
        "html": None,
    }


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["docs", "shop.py", "--format", "htm"], "did you mean 'html'"),
        (["docs", "shop.py", "--output", "no/such/folder/a.json"], "cannot write"),
        (["schema", "check", "shop.py", "--against", "none.json"], "cannot read none.json"),
        (["schema", "check", "shop.py", "--against", "shop.py"], "is not JSON"),
        (["schema", "check", "shop.py", "--against", "list.json"], "not an AsyncAPI document"),
        (["schema", "check", "shop.py", "--against", "empty.json"], "matador docs"),
        (["schema", "check", "shop.py"], "--against"),
    ],
)
def test_wrong_usage(cli: Cli, folder: Path, arguments: list[str], says: str) -> None:
    (folder / "list.json").write_text("[]")
    (folder / "empty.json").write_text("{}")
    result = cli(*arguments)
    assert result.code == 2
    assert says in result.err
    assert result.err.splitlines()[-1].startswith("error: ")


def test_a_check_passes_until_a_payload_changes(cli: Cli, folder: Path) -> None:
    assert cli("docs", "shop.py", "--output", "old.json").code == 0
    fine = cli("schema", "check", "shop.py", "--against", "old.json")
    assert (fine.code, fine.out) == (0, "compatible with old.json\n")

    text = (folder / "shop.py").read_text()
    changed = text.replace("amount: int", "amount: str\n    currency: str\n    note: str = ''")
    changed = changed.replace('@event("order.lost"', '@event("order.found"')
    (folder / "new.py").write_text(changed)
    result = cli("schema", "check", "new.py", "--against", "old.json")
    assert result.code == 1
    assert result.out.splitlines() == [
        "event order.placed $.amount: the type integer is now string (breaks readers and writers)",
        "event order.placed $.currency: is a new required field (breaks writers)",
        "event order.lost: was removed (breaks readers and writers)",
    ]
    readers = cli("schema", "check", "new.py", "--against", "old.json", "--for", "readers")
    assert "currency" not in readers.out
    machine = cli("schema", "check", "new.py", "--against", "old.json", "--json")
    assert machine.code == 1
    assert machine.json["compatible"] is False
    assert machine.json["changes"][1] == {
        "message": "event order.placed",
        "path": "$.currency",
        "change": "is a new required field",
        "breaks": ["writers"],
    }


def test_a_renamed_event_with_an_alias_passes_with_a_note(cli: Cli, folder: Path) -> None:
    cli("docs", "shop.py", "--output", "old.json")
    text = (folder / "shop.py").read_text()
    (folder / "new.py").write_text(
        text.replace('@event("order.lost", ', '@event("order.found", aliases=["order.lost"], ')
    )
    result = cli("schema", "check", "new.py", "--against", "old.json")
    assert result.code == 0
    assert "order.lost is order.found now" in result.err
