"""A file of schema version 1, which had no jobs: it is upgraded, with everything that is in it."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from threading import Barrier

import pytest

from matador.model.message import Complete, Message
from matador.transports.sqlite import SqliteTransport, browse, database, doctor
from matador.transports.sqlite.clock import DatabaseClock, Machine
from matador.transports.sqlite.database import VERSION, open_for_reading, open_for_writing
from matador.transports.sqlite.session import SqliteQueue

# As releases without jobs wrote it; never changed again.
VERSION_1 = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE queues (
    id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, dead_letters INTEGER NOT NULL,
    priorities INTEGER NOT NULL, max_length INTEGER, ttl INTEGER, retention INTEGER
);
CREATE TABLE messages (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, queue INTEGER NOT NULL, state INTEGER NOT NULL,
    due INTEGER, token INTEGER, deliveries INTEGER NOT NULL DEFAULT 0, priority INTEGER,
    rank INTEGER, stored_at INTEGER NOT NULL, ordering_key TEXT, id TEXT NOT NULL,
    headers BLOB, body BLOB NOT NULL
);
CREATE INDEX by_queue ON messages (queue);
CREATE INDEX ready ON messages (queue, rank DESC, seq) WHERE state = 0;
CREATE INDEX waiting ON messages (queue, state, due) WHERE state <> 0;
CREATE INDEX keyed ON messages (queue, ordering_key, seq)
    WHERE ordering_key IS NOT NULL AND state <> 3;
PRAGMA application_id = 1297371716;
PRAGMA user_version = 1;
"""
QUEUE = SqliteQueue(1, "t.q", False, True, None, None, None)


@pytest.fixture(autouse=True)
def old(file: Path) -> None:
    """A file of version 1 with a queue, its dead letters, and a message in each state."""
    now = int(time.time() * 1000)
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.executescript(VERSION_1)
        DatabaseClock(Machine()).anchor(connection)
        connection.executemany(
            "INSERT INTO queues VALUES (?, ?, ?, ?, ?, ?, ?)",
            [
                (1, "t.q", 0, 1, None, None, None),
                (2, "t.q.undeliverable", 1, 0, 100, 10**9, None),
            ],
        )
        connection.executemany(
            "INSERT INTO messages (queue, state, due, token, deliveries, rank, stored_at, id, "
            "headers, body) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            [
                (1, 0, None, None, 0, 1, now, "low", b'{"a": 1}', b"low"),
                (1, 0, None, None, 0, 9, now, "high", None, b"high" * 5000),
                (1, 1, now + 10**7, None, 0, None, now, "delayed", None, b"delayed"),
                (1, 2, now - 1, 77, 1, None, now, "lost", None, b"lost"),
                (2, 0, None, None, 0, None, now, "dead", None, b"dead"),
            ],
        )


def version_of(file: Path) -> int:
    with closing(sqlite3.connect(file)) as connection:
        return connection.execute("PRAGMA user_version").fetchone()[0]


async def test_everything_is_found_again(file: Path) -> None:
    transport = SqliteTransport(file)
    await transport.connect()
    assert version_of(file) == VERSION == 2
    depth = await transport.depth("t.q")
    assert (depth.ready, depth.delayed, depth.in_flight) == (3, 1, 0)
    assert [one.id async for one in transport.browse("t.q.undeliverable")] == ["dead"]
    await transport.pause_queue("t.q")
    await transport.send([Message("new", "t.q", b"new")])
    subscription = await transport.subscribe("t.q", prefetch=10)
    receiving = asyncio.create_task(subscription.receive(1))
    await asyncio.wait([receiving], timeout=0.1)
    assert not receiving.done()
    receiving.cancel()
    await transport.resume_queue("t.q")
    found = await subscription.receive(10)
    assert [one.body for one in found] == [b"high" * 5000, b"low", b"lost", b"new"]
    assert [one.receipt.delivery_count for one in found] == [1, 1, 2, 1]
    assert found[1].headers == {"a": 1}
    assert await transport.settle([Complete(one.receipt) for one in found]) == [None] * 4
    await transport.open_jobs("jobs")
    assert await transport.add_jobs([Message("j", "jobs", b"1")]) == [None]
    await transport.disconnect()


def test_readers_read_it_without_changing_it(file: Path) -> None:
    with closing(open_for_reading(file, busy_timeout=1)) as reading:
        found = browse.browse_page(reading, QUEUE, 0, None, int(time.time() * 1000))
    assert [one.id for one in found] == ["low", "high", "delayed", "lost"]
    assert list(doctor.examine_clock(file)) == []
    assert version_of(file) == 1


def test_threads_upgrade_it_once(file: Path) -> None:
    barrier = Barrier(8)

    def upgrade(_: int) -> None:
        barrier.wait()
        open_for_writing(file, synchronous="NORMAL", busy_timeout=30).close()

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(upgrade, range(8)))
    assert version_of(file) == VERSION
    with closing(sqlite3.connect(file)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert connection.execute("SELECT count(*) FROM messages").fetchone() == (5,)


PROCESS = """
import asyncio, json, sys
from matador.model.message import Message
from matador.transports.sqlite import SqliteTransport

async def run():
    transport = SqliteTransport(sys.argv[1])
    sys.stdin.readline()
    await transport.connect()
    await transport.open_jobs("jobs")
    outcomes = await transport.add_jobs([Message("the-same", "jobs", b"1")])
    print(json.dumps([outcome is None for outcome in outcomes]), flush=True)
    await transport.disconnect()

asyncio.run(run())
"""


async def test_processes_upgrade_it_once(file: Path) -> None:
    pipe = asyncio.subprocess.PIPE
    processes = [
        await asyncio.create_subprocess_exec(
            sys.executable, "-c", PROCESS, str(file), stdin=pipe, stdout=pipe
        )
        for _ in range(4)
    ]
    said = await asyncio.gather(*(process.communicate(b"go\n") for process in processes))
    assert [process.returncode for process in processes] == [0] * 4
    assert sorted(json.loads(out)[0] for out, _ in said) == [False, False, False, True]
    with closing(sqlite3.connect(file)) as connection:
        assert connection.execute("SELECT count(*) FROM messages").fetchone() == (6,)


def test_a_failed_upgrade_leaves_it_as_it_was(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = (database._SCHEMA, "ALTER TABLE queues ADD COLUMN jobs INTEGER; NONSENSE")
    monkeypatch.setattr(database, "_STEPS", broken)
    with pytest.raises(sqlite3.OperationalError):
        open_for_writing(file, synchronous="NORMAL", busy_timeout=1)
    assert version_of(file) == 1
    monkeypatch.undo()
    open_for_writing(file, synchronous="NORMAL", busy_timeout=1).close()
    assert version_of(file) == VERSION
