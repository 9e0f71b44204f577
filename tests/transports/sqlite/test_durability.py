"""What "confirmed" stands on: the settings of the real connections, and commit before answer."""

from __future__ import annotations

import asyncio
import stat
from pathlib import Path
from typing import Any

import pytest
from tests.transports.sqlite.conftest import Make, Open

from matador.model.message import Complete
from matador.model.topology import Topology
from matador.transports.sqlite import SqliteTransport, writer
from matador.transports.sqlite.database import Synchronous, open_for_reading
from matador.transports.sqlite.session import WriterSession


async def pragma(transport: SqliteTransport, name: str) -> Any:
    def work(session: WriterSession) -> Any:
        return session.connection.execute(f"PRAGMA {name}").fetchone()[0]

    return await transport._connected.write(work)


@pytest.mark.parametrize(("synchronous", "level"), [("FULL", 2), ("NORMAL", 1)])
async def test_the_writer_syncs_as_it_was_told(
    connect: Open, synchronous: Synchronous, level: int
) -> None:
    transport = await connect(synchronous=synchronous)
    assert await pragma(transport, "synchronous") == level
    assert await pragma(transport, "journal_mode") == "wal"


async def test_unless_told_otherwise_every_commit_is_synced(connect: Open) -> None:
    assert await pragma(await connect(), "synchronous") == 2


async def test_a_reader_cannot_change_anything(file: Path, connect: Open) -> None:
    transport = await connect()
    reading = open_for_reading(file, busy_timeout=1)
    for connection in (reading, transport._connected._reading):
        assert connection.execute("PRAGMA query_only").fetchone() == (1,)
    reading.close()


async def test_nobody_is_answered_before_the_commit(
    connect: Open, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For sends, claims and settlements: what the caller hears of is in the file already."""
    transport = await connect()
    subscription = await transport.subscribe("t.q", prefetch=1)
    happened: list[str] = []
    commit, resolve = WriterSession.commit, writer._resolve

    def committing(session: WriterSession) -> None:
        commit(session)
        happened.append("committed")

    def resolving(jobs: Any) -> None:
        happened.append("answered")
        resolve(jobs)

    monkeypatch.setattr(WriterSession, "commit", committing)
    monkeypatch.setattr(writer, "_resolve", resolving)
    await transport.send([make()])
    (delivery,) = await subscription.receive(1)
    await transport.settle([Complete(delivery.receipt)])
    assert happened == ["committed", "answered"] * 3


async def test_a_commit_that_fails_is_nobodys_success(
    connect: Open, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    transport = await connect()

    def failing(session: WriterSession) -> None:
        raise OSError("no more")

    with monkeypatch.context() as patch:
        patch.setattr(WriterSession, "commit", failing)
        outcomes = await transport.send([make(), make()])
    assert all(outcome is not None for outcome in outcomes)
    assert (await transport.depth("t.q")).total == 0
    assert await transport.send([make()]) == [None]


def modes(folder: Path) -> dict[str, int]:
    return {one.name: stat.S_IMODE(one.stat().st_mode) for one in folder.iterdir()}


def make_file(file: Path, mode: int) -> None:
    file.touch()
    file.chmod(mode)


async def test_the_files_are_for_their_owner_alone(file: Path, make: Make) -> None:
    transport = SqliteTransport(file)
    await transport.connect()
    await transport.apply_topology(Topology("t", queues=["q"]))
    await transport.send([make()])
    assert modes(file.parent) == dict.fromkeys(["queue.db", "queue.db-shm", "queue.db-wal"], 0o600)
    await transport.disconnect()


async def test_the_mode_of_a_file_that_is_there_is_left_alone(file: Path) -> None:
    make_file(file, 0o640)
    transport = SqliteTransport(file)
    await transport.connect()
    await transport.apply_topology(Topology("t", queues=["q"]))
    assert set(modes(file.parent).values()) == {0o640}
    await transport.disconnect()


async def test_a_link_to_a_file_that_is_not_there_yet_makes_a_private_one(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "link.db").symlink_to(tmp_path / "data" / "queue.db")
    transport = SqliteTransport(tmp_path / "link.db")
    await transport.connect()
    assert modes(tmp_path / "data")["queue.db"] == 0o600
    await transport.disconnect()


async def test_what_is_confirmed_to_many_is_there_for_others_at_once(
    connect: Open, make: Make
) -> None:
    """Another connection sees a message as soon as its sender was told that it is stored."""
    transport, other = await connect(), await connect()

    async def send() -> None:
        message = make()
        assert await transport.send([message]) == [None]
        assert message.id in [one.id async for one in other.browse("t.q")]

    await asyncio.gather(*[send() for _ in range(30)])
