"""The history: several processes, percentiles, what is kept and what is deleted."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.observe.facts import attempt, job, received

from matador.errors import HistoryError
from matador.observe import History
from matador.observe.history.records import (
    BOUNDS,
    FailedAttempt,
    OutcomeKey,
    OutcomeTotals,
    WorkerState,
    percentile,
)
from matador.observe.history.store import KEPT, HistoryStore
from matador.runtime.hooks import HookSet

KEY = OutcomeKey("shop.events", "order.placed", "charge", "success")
WRITER = """
import sys
from matador.observe.history.store import HistoryStore
store = HistoryStore(sys.argv[1])
for number in range(50):
    store.add_depths(1000 + number * 10, [(sys.argv[2], 1, 0, 0, 0)])
"""


def failure(number: int, at: float) -> FailedAttempt:
    return FailedAttempt(
        *(f"m{number}", "c", "order.placed", "charge", "shop.events", 1, "retry", at, 1.0, 2.0),
        *("ValueError", "no", None, "w"),
    )


def test_several_processes_may_open_a_new_file_at_once(tmp_path: Path) -> None:
    file = str(tmp_path / "history.db")
    line = [sys.executable, "-c", WRITER, file]
    writers = [subprocess.Popen([*line, f"q{number}"]) for number in range(4)]
    assert [one.wait(120) for one in writers] == [0, 0, 0, 0]
    store = HistoryStore(file)
    assert len(store.depths(0, 10)) == 200
    store.close()


def test_old_rows_are_deleted(tmp_path: Path) -> None:
    store, now = HistoryStore(tmp_path / "h.db"), time.time()
    totals = OutcomeTotals()
    totals.add(5.0, 1.0)
    old = now - KEPT - 100
    worker = WorkerState("w", "host", 1, old, old)
    store.record("worker", worker, "w", {(int(old), KEY): totals}, [failure(1, old)])
    store.record("worker", None, "w", {(int(now), KEY): totals}, [failure(2, now)])
    store.prune(now)
    assert len(store.outcomes(0, 10)) == 1
    assert store.workers(0) == []
    assert [one.id for one in store.failures("c")] == ["m2"]
    store.close()


def test_what_workers_record_is_preferred_to_the_journal(tmp_path: Path) -> None:
    store = HistoryStore(tmp_path / "h.db")
    one, many = OutcomeTotals(), OutcomeTotals()
    one.add(1, 0)
    for _ in range(5):
        many.add(1, 0)
    store.record("journal", None, "j", {(1000, KEY): many})
    assert [totals.count for _, _, totals in store.outcomes(0, 10)] == [5]
    store.record("worker", None, "w", {(1000, KEY): one})
    assert [totals.count for _, _, totals in store.outcomes(0, 10)] == [1]
    store.close()


def test_since_when_there_are_dead_letters(tmp_path: Path) -> None:
    store = HistoryStore(tmp_path / "h.db")
    for at, dead in ((1000, 3), (1010, 0), (1020, 1), (1030, 2)):
        store.add_depths(at, [("events", 0, 0, 0, dead)])
    assert store.dead_since("events") == 1020
    assert store.dead_since("other") is None
    store.close()


@pytest.mark.parametrize("text", ["this is a text file\n" * 100, ""])
def test_a_foreign_file_is_not_touched(tmp_path: Path, text: str) -> None:
    file = tmp_path / "notes.txt"
    file.write_text(text)
    if not text:  # an empty file is a new one
        HistoryStore(file).add_depths(0, [])
        return
    with pytest.raises(HistoryError, match=r"notes\.txt cannot be used"):
        HistoryStore(file).add_depths(0, [])
    assert file.read_text() == text


def test_another_database_is_not_touched(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "shop.db") as other:
        other.execute("CREATE TABLE orders (id)")
    other.close()
    before = (tmp_path / "shop.db").read_bytes()
    with pytest.raises(HistoryError, match="another database"):
        HistoryStore(tmp_path / "shop.db").workers(0)
    assert (tmp_path / "shop.db").read_bytes() == before


def test_a_library_without_strict_tables_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 36, 0))
    with pytest.raises(HistoryError, match=r"is too old: at least 3\.37\.0 is needed"):
        HistoryStore(tmp_path / "h.db").workers(0)


def test_percentiles_lie_within_their_bucket() -> None:
    totals = OutcomeTotals()
    assert percentile(totals.buckets, 0.5) is None
    for milliseconds in (1.5, 3.0, 100.0, 10**9):
        totals.add(milliseconds, 0)
    half = percentile(totals.buckets, 0.5)
    assert half is not None
    assert 2 < half <= 4
    worst = percentile(totals.buckets, 1.0)
    assert worst is not None
    assert worst >= BOUNDS[-1]


async def test_attempts_of_every_way_in_and_what_is_running(tmp_path: Path) -> None:
    history = History(tmp_path / "h.db", interval=60)
    history.on_start()
    event, of_job = received(), received(**job())
    error = ValueError("no")
    around = HookSet([history]).around
    assert around is not None
    states = around.enter(of_job)
    around.exit(event, around.enter(event), None)
    history.on_attempted(
        [
            attempt(event),
            attempt(of_job, outcome="retry", error=error),
            attempt(event, outcome="dead-letter", error=error, malformed=True, ran=False),
        ]
    )
    history._write(stopped=False)
    store = HistoryStore(history.file)
    found = {
        (key.queue, key.event_key, key.subscriber, key.outcome): totals
        for _, key, totals in store.outcomes(0, 10)
    }
    assert found.keys() == {
        ("shop.events", "order.placed", "handle", "success"),
        ("bull:emails", "welcome (job)", "emails", "retry"),
        ("shop.events", "", "", "dead-letter"),
    }
    success = found["shop.events", "order.placed", "handle", "success"]
    assert (success.count, success.total_ms, success.wait_ms) == (1, 2.0, 250.0)
    (worker,) = store.workers(0)
    assert [(one.id, one.event_key) for one in worker.running] == [("m-1", "welcome (job)")]
    assert worker.queues == ("bull:emails", "shop.events")
    around.exit(of_job, states, error)
    assert not history._running
    await history.on_stop()
    store.close()
