"""``matador queues pause`` and ``resume``: commands in one process, workers in others."""

from __future__ import annotations

import asyncio
import re
import signal
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from tests.cli.conftest import Cli, Process, Shop, Start, wait
from tests.support.brokers import broker_url
from tests.support.ports import free_ports
from tests.support.redis import forget_keys

BROKERS = ("redis", "list", "bullmq")
ORDER = '{"order_id": "%s", "amount": 5}'


@pytest.fixture(
    params=["sqlite", *(pytest.param(one, marks=pytest.mark.broker) for one in BROKERS)]
)
def namespace(request: pytest.FixtureRequest, folder: Path) -> Iterator[str]:
    """The shop is on one of the transports that can pause queues."""
    name, text = request.param, (folder / "shop.py").read_text()
    if name == "sqlite":
        yield "shop"
        return
    namespace = f"pause{uuid4().hex[:8]}"
    url = broker_url("redis")
    given = {"list": f"{url}?mode=list", "bullmq": url.replace("redis://", "bullmq://")}
    text = text.replace("sqlite:///shop.db?lease=1", given.get(name, url))
    (folder / "shop.py").write_text(text.replace('Topology("shop"', f'Topology("{namespace}"'))
    yield namespace
    for key in (namespace, f"bull:{namespace}"):
        asyncio.run(forget_keys(url, key))


def receipts(folder: Path) -> list[str]:
    file = folder / "receipts.txt"
    return file.read_text().split() if file.exists() else []


def _place(cli: Cli, order: str) -> None:
    """Place an order: a message for the queue of events, and one for billing."""
    assert cli("send", "shop.py", "order.placed", ORDER % order).code == 0


def _ready(cli: Cli) -> list[int]:
    """How many messages wait for events, and for billing."""
    return [
        one["waiting"] + one["in_flight"]
        for one in cli("queues", "shop.py", "--json").json["queues"]
    ]


@pytest.mark.slow
def test_a_pause_holds_all_workers_and_those_that_start_later(
    start: Start, cli: Cli, folder: Path, namespace: str
) -> None:
    port = free_ports()
    first = start("worker", "shop.py", "--metrics-port", str(port))
    first.says(f"consuming {namespace}.events")
    _place(cli, "before")
    wait(lambda: receipts(folder) == ["before"], lambda: first.err)
    assert cli("queues", "pause", "shop.py", "events").out == f"{namespace}.events is paused\n"
    _place(cli, "during")
    wait(lambda: _ready(cli) == [1, 0], lambda: f"billing goes on: {first.err}")
    second = start("worker", "shop.py")
    second.says(f"consuming {namespace}.events")
    _place(cli, "later")
    wait(lambda: _ready(cli) == [2, 0], lambda: f"billing goes on: {second.err}")
    assert receipts(folder) == ["before"]
    events, billing = cli("queues", "shop.py", "--json").json["queues"]
    assert (events["paused"], billing["paused"]) == (True, False)
    assert re.search(rf"{namespace}\.events +paused ", cli("queues", "shop.py").out)
    looked = cli("top", "shop.py", "--once", "--interval", "0.1")
    assert re.search(rf"{namespace}\.events +paused ", looked.out)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/health/ready") as answer:
        assert answer.status == 200, "a worker that waits for the end of a pause is healthy"

    began = time.monotonic()
    first.signal(signal.SIGTERM)
    assert first.ends() == 0, first.err
    assert time.monotonic() - began < 20, "nothing is waited for, which would be 30 s"
    result = cli("queues", "resume", "shop.py", f"{namespace}.events", "--json")
    assert result.json == {"queue": f"{namespace}.events", "paused": False}
    wait(lambda: sorted(receipts(folder)) == ["before", "during", "later"], lambda: second.err, 10)
    _stop(second)


def _stop(worker: Process) -> None:
    worker.signal(signal.SIGTERM)
    assert worker.ends() == 0, worker.err


def test_what_is_in_hand_is_finished(start: Start, cli: Cli, folder: Path) -> None:
    text = (folder / "shop.py").read_text()
    slow = """
    import asyncio
    Path("begun.txt").touch()
    while not Path("go.txt").exists():
        await asyncio.sleep(0.01)
    with Path("receipts.txt")"""
    (folder / "shop.py").write_text(text.replace('\n    with Path("receipts.txt")', slow))
    worker = start("worker", "shop.py")
    _place(cli, "begun")
    wait((folder / "begun.txt").exists, lambda: worker.err)
    assert cli("queues", "pause", "shop.py", "events").code == 0
    assert _ready(cli)[0] == 1
    (folder / "go.txt").touch()
    wait(lambda: receipts(folder) == ["begun"] and _ready(cli) == [0, 0], lambda: worker.err)
    _stop(worker)


def test_listing_needs_no_name_of_a_command(cli: Cli, shop: Shop) -> None:
    shop.bury(1)
    forms = [["shop.py", "--json"], ["--json", "shop.py"], ["list", "shop.py", "--json"]]
    results = [cli("queues", *form) for form in forms]
    assert [one.code for one in results] == [0, 0, 0]
    assert len({one.out for one in results}) == 1


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["shop.py", "event"], 2, "did you mean 'events'?"),
        (["shop.py", "shop.billing.undeliverable"], 2, "pause the queue that they came from"),
        (["shop.py"], 2, "QUEUE"),
        (["missing.py", "events"], 2, "missing.py"),
        (["memory.py", "events"], 1, "inside each process"),
        (["other.py", "events"], 1, "other.db does not exist yet"),
        (["more.py", "parcels"], 1, "shop.parcels does not exist yet: start a worker, or run"),
    ],
)
def test_what_cannot_be_paused(
    cli: Cli, folder: Path, shop: Shop, arguments: list[str], code: int, says: str
) -> None:
    shop.bury(1)
    text = (folder / "shop.py").read_text()
    url = "sqlite:///shop.db?lease=1"
    (folder / "memory.py").write_text(text.replace(url, "memory://"))
    (folder / "other.py").write_text(text.replace(url, "sqlite:///other.db"))
    (folder / "more.py").write_text(
        text.replace('queues=["events", ', 'queues=["events", "parcels", ')
    )
    result = cli("queues", "pause", *arguments)
    assert (result.code, says in result.err) == (code, True), result.err


def test_a_queue_that_is_not_in_the_topology_goes_by_its_full_name(
    cli: Cli, folder: Path, shop: Shop
) -> None:
    shop.bury(1)
    text = (folder / "shop.py").read_text()
    (folder / "narrow.py").write_text(
        text.replace('queues=["events", WorkQueue("billing", concurrency=4)]', 'queues=["events"]')
        .replace(', "billing"]', "]")
        .replace(', queue="billing"', "")
    )
    assert cli("queues", "pause", "narrow.py", "shop.billing").code == 0
    assert [one["paused"] for one in cli("queues", "shop.py", "--json").json["queues"]] == [
        False,
        True,
    ]
