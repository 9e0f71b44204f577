"""The code in the documentation runs and prints what it should."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from docs.assets.draw import drawn
from docs.snippets.backup import back_up

from matador.model.topology import Topology
from matador.testing import make_message
from matador.transports import SqliteTransport

ROOT = Path(__file__).parents[2]
SNIPPETS = ROOT / "docs" / "snippets"

SAYS: dict[str, list[str]] = {
    "payloads.py": [
        "event 'order.placed': Expected `int`, got `str` - at `$.amount`",
        "order.paid",
        "order.packed",
        "order.shipped",
    ],
    "subscribers.py": ["4 sent, 1 skipped"],
    "own_way_in.py": [
        "up answers in attempt 1",
        "slow answers in attempt 2",
        "2 answer, 1 does not",
        "dead letter: max attempts exceeded (3)",
    ],
    "own_policy.py": ["RetryLater(delay=10, reason='failed')"],
    "own_checkpoints.py": ["{'charge-card': b'{\"value\": 5}'}", "{}"],
    "sqlite_options.py": ["True"],
    "pause.py": ["shop.events is paused: True", "shop.events is paused: False"],
    "first_job.py": ["sent to ada@example.com in en"],
    "job_handlers.py": [
        "send-invoice completed: invoice 7 sent",
        "charge failed for good: invoice 8 has no amount",
        "charge completed: None",
        "completed invoice 7 sent 50 {'request': '42'}",
        "charge {'number': 8, 'amount': 0} 1 invoice 8 has no amount",
        "1 waiting, 2 completed, 0 failed",
    ],
    "blocking.py": ["sent to ada@example.com in en", "1 completed", "6", "stored in 1 queue"],
    "first_call.py": ["3", "ZeroDivisionError division by zero"],
    "rpc_dead_letters.py": [
        "1 failed",
        "WELCOME ada@example.com 1 the mail server is away",
        "1 redriven",
    ],
    "rpc_server.py": [
        "charged 5 for ada",
        "LIMIT {'limit': 1000}",
        "payments: no reply to SLOW in 0.1 s",
        "logged paid in attempt 3",
    ],
    "job_data.py": ["ship pen ada@example.com 5 ring twice", "Address(city='Paris')", "1"],
    "job_flows.py": ["3", "6"],
    "job_limits.py": [
        "synchronized invoices of ada",
        "synchronized orders of bob",
        "synchronized orders of ada",
    ],
    "job_schedules.py": [
        "looked around",
        "@clean-up 0 3 * * * Europe/Berlin",
        "@look-around 600.0 UTC",
        "east 0 0 1 * * UTC",
        "north 0 7 * * mon-fri Europe/Berlin",
        "south 0 0 * * 0 UTC",
        "True",
    ],
    "pubsub.py": [
        "stored in 3 queues",
        "orders.created: order 1, attempt 1",
        "charged 25",
        "orders.paid: order 2, attempt 1",
        "orders.paid: order 3, attempt 1",
        "cache: orders.created",
        "cache: orders.paid",
        "cache: orders.paid",
    ],
    "channels.py": [
        "order 1 in attempt 1",
        "1 new prices",
        "2 over sqlite",
        "order 2 in attempt 1",
        "healthy connected ValueError: a negative amount",
        "5 2 1",
    ],
    "coming_from/matador_emails.py": ["sent to ada@example.com in en"],
    "coming_from/matador_handlers.py": ["sent to ada@example.com"],
    "duplicates.py": ["charging 7", "receipt of 7", "receipt of 7 (again)"],
    "redis_modes.py": [
        "RedisTransport at-least-once at-most-once durable delays priorities browse depth replay",
        "RedisListTransport at-least-once at-most-once durable delays depth",
        "RedisPubSubTransport at-most-once",
    ],
}
IN_ANY_ORDER = {"channels.py", "pubsub.py"}  # consumers of several queues run side by side
ELSEWHERE = {
    "rabbitmq_fleet.py",
    "redis_replay.py",
    "backup.py",
    "dashboard.py",
    "flask_ways.py",
    "kafka_order.py",
    "job_processes.py",
    "lake_jobs.py",
    "lake_replays.py",
    "lake_s3.py",
    "lake_tables.py",
    "observed.py",
    "run.py",
    "spark_worker.py",
    "sqs_fifo.py",
    "tiny_transport.py",
}


@pytest.mark.parametrize("snippet", SAYS)
def test_a_snippet_says_what_it_should(snippet: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", str(SNIPPETS / snippet)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = done.stdout.splitlines()
    if snippet in IN_ANY_ORDER:
        # Threads write a line and its end one after the other, so that lines may run together.
        left = "".join(found)
        for line in sorted(SAYS[snippet], key=len, reverse=True):
            assert line in left, f"{line!r} is missing: {found}"
            left = left.replace(line, "", 1)
        assert left == "", f"there is more: {found}"
    else:
        assert found == SAYS[snippet]


def test_no_snippet_is_forgotten() -> None:
    named = {one for one in SAYS if "/" not in one}
    assert {path.name for path in SNIPPETS.glob("*.py")} == named | ELSEWHERE


async def test_a_queue_in_use_can_be_backed_up(tmp_path: Path) -> None:
    file, copy = tmp_path / "queue.db", tmp_path / "copy.db"
    transport = SqliteTransport(file)
    await transport.connect()
    await transport.apply_topology(Topology("shop", queues=["events"]))
    await transport.send([make_message(queue="shop.events") for _ in range(10)])
    await asyncio.to_thread(back_up, file, copy)
    await transport.send([make_message(queue="shop.events")])
    restored = SqliteTransport(copy)
    await restored.connect()
    assert (await restored.depth("shop.events")).ready == 10
    await restored.disconnect()
    await transport.disconnect()


def test_a_worker_without_the_command_line_ends_on_sigterm(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, str(SNIPPETS / "run.py")], cwd=tmp_path, stderr=subprocess.PIPE, text=True
    ) as worker:
        assert worker.stderr is not None
        for line in worker.stderr:
            if "consuming matador.events" in line:
                break
        os.kill(worker.pid, signal.SIGTERM)
        rest = worker.stderr.read()
        assert worker.wait(30) == 0, rest
    assert "shutting down" in rest


@pytest.mark.parametrize("name", drawn())
def test_the_committed_drawings_are_what_the_script_draws(name: str) -> None:
    assert (ROOT / "docs" / "assets" / name).read_text() == drawn()[name], "run docs/assets/draw.py"
