"""``matador worker``: real processes, real signals."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path

import pytest
from tests.cli.conftest import Cli, Process, Shop, Start, wait

ORDER = '{"order_id": "1", "amount": 5}'


def _receipts(folder: Path) -> list[str]:
    file = folder / "receipts.txt"
    return file.read_text().split() if file.exists() else []


def _pids(process: Process, number: int) -> list[int]:
    process.says("is running, pid", times=number)
    return [int(pid) for pid in re.findall(r"process \d is running, pid (\d+)", process.err)]


def test_a_worker_handles_what_is_sent_and_ends_with_zero(
    start: Start, cli: Cli, shop: Shop, folder: Path
) -> None:
    assert cli("send", "shop.py", "order.placed", ORDER).code == 0
    assert cli("send", "shop.py", "order.placed", '{"order_id": "2", "amount": 500}').code == 0
    worker = start("worker", "shop.py")
    wait(lambda: sorted(_receipts(folder)) == ["1", "2"], lambda: f"receipts; {worker.err}")
    wait(lambda: len(shop.ids("shop.billing.undeliverable")) == 1, lambda: worker.err)
    worker.signal(signal.SIGTERM)
    assert worker.ends() == 0, worker.err
    assert worker.out == ""
    assert worker.err.splitlines()[1].split() == ["message", "receiver", "queue"]
    assert re.search(r"order\.placed +email-receipt +shop\.events", worker.err)
    assert "shop.events: 2 handled, 0 failed, 0 dead letters" in worker.err
    assert "shop.billing: 1 handled, 1 failed, 1 dead letter" in worker.err


def test_only_the_queues_that_are_asked_for_are_consumed(
    start: Start, cli: Cli, shop: Shop, folder: Path
) -> None:
    assert cli("send", "shop.py", "order.placed", ORDER).code == 0
    worker = start("worker", "shop.py", "--queues", "shop.events", "--json", "--concurrency", "3")
    wait(lambda: _receipts(folder) == ["1"], lambda: f"a receipt; {worker.err}")
    worker.signal(signal.SIGINT)
    assert worker.ends() == 0, worker.err
    lines = [json.loads(line) for line in worker.out.splitlines()]
    assert [line["type"] for line in lines] == ["started", "counts", "stopped"]
    assert lines[0]["queues"] == ["shop.events"]
    assert lines[1]["queues"]["shop.events"]["handled"] == 1
    assert len(shop.ids("shop.billing")) == 1, "left alone"
    assert "with concurrency 3" in worker.err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["shop.py", "--queues", "event"], "did you mean 'events'?"),
        (["shop.py", "--queues", ","], "--queues is empty; the queues are events, billing"),
        (["producer.py"], "add --queues events,billing"),
        (["shop.py", "--processes", "0"], "--processes"),
        (["shop.py", "--concurrency", "0"], "--concurrency"),
    ],
)
def test_wrong_usage(cli: Cli, folder: Path, arguments: list[str], says: str) -> None:
    text = (folder / "shop.py").read_text().replace('consume_from=["events", "billing"],', "")
    (folder / "producer.py").write_text(text)
    result = cli("worker", *arguments)
    assert result.code == 2
    assert says in result.err


def test_what_keeps_it_from_starting_is_one_line(cli: Cli, folder: Path) -> None:
    (folder / "shop.db").write_text("this is not a database, and never was one")
    result = cli("worker", "shop.py")
    assert result.code == 1
    assert "error: " in result.err
    assert "shop.db is not an SQLite database" in result.err
    assert "Traceback" not in result.err


def test_a_second_signal_does_not_wait_for_callbacks(
    start: Start, cli: Cli, folder: Path, shop: Shop
) -> None:
    text = (folder / "shop.py").read_text()
    endless = "async def email_receipt(envelope: Envelope[OrderPlaced]) -> None:\n"
    assert endless in text
    waits = (
        '    import asyncio\n    print("for ever", flush=True)\n    await asyncio.Event().wait()\n'
    )
    (folder / "shop.py").write_text(text.replace(endless, endless + waits))
    assert cli("send", "shop.py", "order.placed", ORDER).code == 0
    worker = start("worker", "shop.py")
    worker.says("for ever")
    worker.signal(signal.SIGTERM)
    worker.says("shutting down, once running callbacks have finished")
    worker.signal(signal.SIGTERM)
    worker.ends(20)
    assert "again: shutting down at once" in worker.err
    assert len(shop.ids("shop.events")) == 1, "given back"


# -- several processes ----------------------------------------------------------------------------


def test_several_processes_share_the_work_and_dead_ones_are_replaced(
    start: Start, cli: Cli, folder: Path
) -> None:
    worker = start("worker", "shop.py", "--processes", "2")
    first, second = _pids(worker, 2)
    worker.says("[1] ")
    worker.says("[2] ")
    os.kill(first, signal.SIGKILL)
    worker.says("was killed by SIGKILL; restarting")
    third = _pids(worker, 3)[-1]
    assert third not in (first, second)
    for number in range(20):
        order = json.dumps({"order_id": str(number), "amount": 1})
        assert cli("send", "shop.py", "order.placed", order).code == 0
    wait(lambda: len(_receipts(folder)) == 20, lambda: f"receipts; {worker.err}")
    worker.signal(signal.SIGTERM)
    assert worker.ends() == 0, worker.err
    assert len(set(_receipts(folder))) == len(_receipts(folder)) == 20


def test_children_end_with_a_supervisor_that_was_killed(start: Start) -> None:
    worker = start("worker", "shop.py", "--processes", "2")
    pids = _pids(worker, 2)
    worker.says("consuming shop.billing", times=2)
    worker.signal(signal.SIGKILL)
    worker.ends()
    for pid in pids:
        wait(lambda pid=pid: not Path(f"/proc/{pid}").exists(), lambda pid=pid: f"the end of {pid}")


def test_it_gives_up_on_processes_that_die_at_their_start(start: Start, folder: Path) -> None:
    text = (folder / "shop.py").read_text()
    dies = "import sys\nif '--process' in sys.argv:\n    raise RuntimeError('no luck')\n"
    (folder / "shop.py").write_text(dies + text)
    worker = start("worker", "shop.py", "--processes", "2")
    assert worker.ends() == 1
    assert "RuntimeError: no luck" in worker.err
    assert "died 5 times at startup; giving up" in worker.err


def test_json_lines_of_children_say_which_one_they_are_of(start: Start) -> None:
    worker = start("worker", "shop.py", "--processes", "2", "--json")
    worker.says('"started"', times=2)
    worker.says("consuming shop.billing", times=2)
    worker.signal(signal.SIGTERM)
    assert worker.ends() == 0, worker.err
    lines = [json.loads(line) for line in worker.out.splitlines()]
    assert {(line["type"], line["process"]) for line in lines} == {
        (type_, process) for type_ in ("started", "stopped") for process in (1, 2)
    }
