"""The SQLite checkpoint store: on the disk before it answers, for its owner alone, for many."""

from __future__ import annotations

import asyncio
import sqlite3
import stat
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from matador import SqliteCheckpointStore
from matador.errors import CheckpointStoreError
from matador.testing import ManualClock, wait_for


async def pragma(store: SqliteCheckpointStore, name: str) -> Any:
    return (await store._execute((f"PRAGMA {name}",)))[0][0]


def modes(folder: Path) -> set[int]:
    return {stat.S_IMODE(one.stat().st_mode) for one in folder.iterdir()}


def make_file(file: Path, mode: int) -> None:
    file.touch()
    file.chmod(mode)


async def test_every_step_is_synced(tmp_path: Path) -> None:
    store = SqliteCheckpointStore(tmp_path / "steps.db")
    await store.open()
    assert await pragma(store, "synchronous") == 2
    assert await pragma(store, "journal_mode") == "wal"
    await store.close()


async def test_a_step_is_committed_before_save_returns(tmp_path: Path) -> None:
    """Another connection sees it: so does a process that starts after a crash."""
    store = SqliteCheckpointStore(tmp_path / "steps.db")
    await store.open()
    await store.save("e-1", "charge", b"1")
    with closing(sqlite3.connect(tmp_path / "steps.db")) as other:
        assert other.execute("SELECT step, value FROM matador_steps").fetchall() == [
            ("charge", b"1")
        ]
    await store.close()


async def test_the_files_are_for_their_owner_alone(tmp_path: Path) -> None:
    store = SqliteCheckpointStore(tmp_path / "steps.db")
    await store.open()
    await store.save("e-1", "charge", b"1")
    assert modes(tmp_path) == {0o600}
    await store.close()


async def test_the_mode_of_a_file_that_is_there_is_left_alone(tmp_path: Path) -> None:
    make_file(tmp_path / "steps.db", 0o644)
    store = SqliteCheckpointStore(tmp_path / "steps.db")
    await store.open()
    assert modes(tmp_path) == {0o644}
    await store.close()


async def test_many_may_open_a_new_file_at_once(tmp_path: Path) -> None:
    for number in range(10):
        stores = [SqliteCheckpointStore(tmp_path / f"{number}.db") for _ in range(8)]
        await asyncio.gather(*(store.open() for store in stores))
        await asyncio.gather(*(store.save("e", str(i), b"") for i, store in enumerate(stores)))
        assert len(await stores[0].load("e")) == 8
        await asyncio.gather(*(store.close() for store in stores))


async def test_a_text_that_cannot_be_stored_is_a_named_error(tmp_path: Path) -> None:
    store = SqliteCheckpointStore(tmp_path / "steps.db")
    await store.open()
    with pytest.raises(CheckpointStoreError):
        await store.load("\udcff")
    with pytest.raises(CheckpointStoreError):
        await store.save("e-1", "\udcff", b"1")
    await store.save("e-1", "good", b"1")
    assert await store.load("e-1") == {"good": b"1"}
    await store.close()


async def test_a_failed_save_leaves_what_was_there(tmp_path: Path) -> None:
    """What is kept for a redrive keeps its time if the step that follows could not be saved."""
    clock = ManualClock()
    store = SqliteCheckpointStore(tmp_path / "steps.db", clock=clock)
    await store.open()
    await store.save("e-1", "charge", b"1")
    await store.keep("e-1", 60)
    with pytest.raises(CheckpointStoreError):
        await store.save("e-1", "\udcff", b"1")
    clock.advance(61)
    assert await store.load("e-1") == {}
    await store.close()


async def test_what_is_past_its_time_does_not_fill_the_file(tmp_path: Path) -> None:
    clock = ManualClock()
    store = SqliteCheckpointStore(tmp_path / "steps.db", clock=clock)
    await store.open()
    for number in range(3):
        await store.save(f"e-{number}", "charge", b"1")
        await store.keep(f"e-{number}", 60)
        clock.advance(40)
    with closing(sqlite3.connect(tmp_path / "steps.db")) as other:
        kept = other.execute("SELECT envelope_id FROM matador_steps ORDER BY 1").fetchall()
    assert kept == [("e-1",), ("e-2",)]
    await store.close()


async def test_a_locked_file_is_waited_for(tmp_path: Path) -> None:
    store = SqliteCheckpointStore(tmp_path / "steps.db", busy_timeout=0.05)
    await store.open()
    with closing(sqlite3.connect(tmp_path / "steps.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(CheckpointStoreError, match="locked"):
            await store.save("e-1", "charge", b"1")
    await store.save("e-1", "charge", b"1")
    await store.close()


def threads() -> list[str]:
    return [one.name for one in threading.enumerate() if one.name.startswith("matador-checkpoints")]


async def test_a_store_that_is_closed_or_cannot_be_opened_leaves_no_thread(tmp_path: Path) -> None:
    store = SqliteCheckpointStore(tmp_path / "steps.db")
    for _ in range(2):
        await store.open()
        await store.open()
        assert len(threads()) == 1
        await store.close()
        assert threads() == []
    await store.close()
    missing = SqliteCheckpointStore(tmp_path / "no" / "such" / "folder.db", busy_timeout=0.01)
    with pytest.raises(CheckpointStoreError, match="folder"):
        await missing.open()
    await wait_for(lambda: threads() == [])
