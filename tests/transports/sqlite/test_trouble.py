"""Files that cannot be used, disks that are full, locks that are held: clear errors, no damage."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest
from tests.support.taking import take_stored
from tests.transports.sqlite.conftest import Make, Open

from matador.errors import (
    ConfigurationError,
    ConnectionFailedError,
    MatadorError,
    NotConnectedError,
    StorageCorruptError,
    StorageFullError,
    StorageLockedError,
    UnstorableError,
    UnsupportedError,
)
from matador.model.message import Complete, ConnectionState
from matador.transports.sqlite import SqliteTransport, database
from matador.transports.sqlite.database import open_for_writing
from matador.transports.sqlite.errors import translate
from matador.transports.sqlite.session import WriterSession


async def pragma(transport: SqliteTransport, name: str) -> Any:
    """Set or ask something on the writer's own connection, between two transactions of its."""

    def work(session: WriterSession) -> Any:
        return session.connection.execute(f"PRAGMA {name}").fetchone()

    return await transport._connected.write(work)


async def refusal(file: Path) -> MatadorError:
    transport = SqliteTransport(file)
    with pytest.raises(MatadorError) as caught:
        await transport.connect()
    assert transport.state.status == "failed"
    assert transport.state.error is caught.value
    return caught.value


def fill(file: Path, content: bytes) -> None:
    file.write_bytes(content)


def move(file: Path, to: Path) -> None:
    file.rename(to)


def content_of(file: Path) -> bytes:
    return file.read_bytes()


def damage(file: Path) -> None:
    """Overwrite the pages of most messages, but not the first ones of each table."""
    content = bytearray(file.read_bytes())
    for page in range(4096 * 64, len(content), 4096):
        content[page : page + 4096] = b"\xa5" * 4096
    file.write_bytes(content)


class TestOpening:
    async def test_a_missing_folder_is_named(self, tmp_path: Path) -> None:
        error = await refusal(tmp_path / "missing" / "queue.db")
        assert isinstance(error, ConnectionFailedError)
        assert f"the folder {tmp_path / 'missing'} does not exist; create it" in str(error)

    async def test_a_folder_is_not_a_file(self, tmp_path: Path) -> None:
        error = await refusal(tmp_path)
        assert isinstance(error, ConnectionFailedError)
        assert "give the path of a file" in str(error)

    async def test_something_else_than_a_database(self, file: Path) -> None:
        before = b"certainly not a database, but long enough to be taken for one" * 50
        fill(file, before)
        error = await refusal(file)
        assert isinstance(error, StorageCorruptError)
        assert str(file) in str(error)
        assert content_of(file) == before

    async def test_the_database_of_another_application(self, file: Path) -> None:
        with sqlite3.connect(file) as connection:
            connection.execute("CREATE TABLE accounts (name)")
        connection.close()
        error = await refusal(file)
        assert isinstance(error, StorageCorruptError)
        assert "another application" in str(error)

    async def test_a_library_that_is_too_old(
        self, file: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 36, 0))
        error = await refusal(file)
        assert isinstance(error, UnsupportedError)
        assert "is too old: at least 3.38.0 is needed" in str(error)

    @pytest.mark.parametrize("version", [0, 2, 99])
    async def test_another_schema(self, file: Path, connect: Open, version: int) -> None:
        await (await connect()).disconnect()
        connection = sqlite3.connect(file)
        connection.execute(f"PRAGMA user_version = {version}")
        connection.close()
        error = await refusal(file)
        assert isinstance(error, ConnectionFailedError)
        assert f"has schema version {version}, and this release reads version 1 only" in str(error)

    async def test_it_works_once_the_cause_is_gone(self, tmp_path: Path) -> None:
        transport = SqliteTransport(tmp_path / "later" / "queue.db")
        with pytest.raises(ConnectionFailedError):
            await transport.connect()
        (tmp_path / "later").mkdir()
        await transport.connect()
        assert transport.state == ConnectionState("connected")
        await transport.disconnect()


def recovering(monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    """Another process is at work on the log: SQLite says so at once instead of waiting."""
    check, left = database._has_tables, [0] * times

    def busy(connection: sqlite3.Connection, path: Path) -> bool:
        if left:
            left.pop()
            error = sqlite3.OperationalError("database is locked")
            error.sqlite_errorcode = sqlite3.SQLITE_BUSY_RECOVERY
            raise error
        return check(connection, path)

    monkeypatch.setattr(database, "_has_tables", busy)


def test_a_file_that_others_are_opening_is_waited_for(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recovering(monkeypatch, times=3)
    connection = open_for_writing(file, synchronous="FULL", busy_timeout=30)
    assert connection.execute("SELECT count(*) FROM queues").fetchone() == (0,)
    connection.close()


def test_but_not_for_ever(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recovering(monkeypatch, times=1_000_000)
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        open_for_writing(file, synchronous="FULL", busy_timeout=0.05)


async def test_a_damaged_file_is_reported_and_the_writer_lives_on(
    file: Path, connect: Open, make: Make
) -> None:
    transport = await connect()
    await transport.send([make("x" * 2000) for _ in range(500)])
    await transport.disconnect()
    damage(file)
    transport = SqliteTransport(file)
    await transport.connect()
    for _ in range(2):
        (outcome,) = await transport.send([make()])
        assert isinstance(outcome, StorageCorruptError)
    await transport.disconnect()


async def test_a_file_that_was_deleted_takes_nothing_more(
    file: Path, connect: Open, make: Make
) -> None:
    transport = await connect()
    aside = file.with_name("aside.db")
    move(file, aside)
    (outcome,) = await transport.send([make()])
    assert isinstance(outcome, StorageCorruptError)
    assert "deleted or replaced" in str(outcome)
    move(aside, file)
    assert await transport.send([make()]) == [None]


async def test_a_file_that_was_deleted_is_not_read_on(
    file: Path, connect: Open, make: Make
) -> None:
    transport = await connect()
    await transport.send([make()])
    aside = file.with_name("aside.db")
    move(file, aside)
    with pytest.raises(StorageCorruptError, match="deleted or replaced"):
        await transport.depth("t.q")
    with pytest.raises(StorageCorruptError, match="deleted or replaced"):
        _ = [one async for one in transport.browse("t.q")]
    move(aside, file)
    assert (await transport.depth("t.q")).ready == 1


async def test_a_full_disk_refuses_sends_and_recovers(connect: Open, make: Make) -> None:
    transport = await connect()
    (pages,) = await pragma(transport, "page_count")
    await pragma(transport, f"max_page_count = {pages + 20}")
    outcomes: list[MatadorError | None] = []
    sent: list[str] = []
    while not any(outcomes):
        message = make("x" * 3000)
        outcomes = list(await transport.send([message]))
        sent.extend([] if any(outcomes) else [message.id])
    (outcome,) = outcomes
    assert isinstance(outcome, StorageFullError)
    # What still fits is stored, although it came in one batch with what does not.
    large, small = make("x" * 300_000), make("small")
    outcomes = list(await transport.send([large, small]))
    assert isinstance(outcomes[0], StorageFullError)
    assert outcomes[1] is None
    # Whoever consumes makes room.
    subscription = await transport.subscribe("t.q", prefetch=100)
    deliveries = await subscription.receive(100)
    assert [
        error
        for error in await transport.settle([Complete(d.receipt) for d in deliveries])
        if error
    ] == []
    assert len(deliveries) == len(sent) + 1
    await pragma(transport, "max_page_count = 1000000")
    assert await transport.send([large]) == [None]
    assert await pragma(transport, "integrity_check") == ("ok",)


async def test_a_lock_held_for_too_long_is_reported(file: Path, connect: Open, make: Make) -> None:
    transport = await connect(busy_timeout=0.1)
    other = sqlite3.connect(file, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    outcomes = await transport.send([make(), make()])
    assert [type(outcome) for outcome in outcomes] == [StorageLockedError] * 2
    other.execute("ROLLBACK")
    other.close()
    assert await transport.send([make()]) == [None]


async def test_a_file_can_be_opened_while_another_process_writes(file: Path, connect: Open) -> None:
    await (await connect()).disconnect()
    other = sqlite3.connect(file, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    transport = SqliteTransport(file, busy_timeout=0.1)
    await transport.connect()
    subscription = await transport.subscribe("t.q", prefetch=1)
    assert (await transport.depth("t.q")).total == 0
    await subscription.close()
    other.close()
    await transport.disconnect()


async def test_what_cannot_be_stored_does_not_take_others_down(connect: Open, make: Make) -> None:
    transport = await connect()
    outcomes = await transport.send(
        [
            make("1"),
            make("2", priority=2**70),
            make("3", headers={"n": object()}),
            make("4", ordering_key="\ud800"),
            make("5", delay=float("inf")),
            make("6"),
        ]
    )
    assert [outcome and type(outcome) for outcome in outcomes] == [
        None,
        *[UnstorableError] * 4,
        None,
    ]
    assert [message.body async for message in transport.browse("t.q")] == [b"1", b"6"]


async def test_odd_headers_do_not_block_their_queue(connect: Open, make: Make) -> None:
    transport = await connect()
    odd = {"flag": True, "nothing": None, "half": 0.5, "large": 2**80}
    assert await transport.send([make(headers=odd)]) == [None]
    subscription = await transport.subscribe("t.q", prefetch=1)
    (delivery,) = await subscription.receive(1)
    assert delivery.headers == odd


async def test_a_position_of_somebody_else(connect: Open, make: Make) -> None:
    transport = await connect()
    await transport.send([make()])
    for position in ("0-1", "9" * 30):
        assert await take_stored(transport, "t.q", [position]) == []
        with pytest.raises(ConfigurationError, match="not a position"):
            await transport.read("t.q", after=position)


async def test_nothing_works_while_disconnected(connect: Open, make: Make) -> None:
    transport = await connect()
    subscription = await transport.subscribe("t.q", prefetch=1)
    await transport.disconnect()
    assert await subscription.receive(1) == []
    for call in (
        transport.send([make()]),
        transport.settle([]),
        transport.subscribe("t.q", prefetch=1),
        transport.depth("t.q"),
        transport.read("t.q"),
        transport.renew([]),
        transport.purge("t.q"),
        transport.take("t.q", []),
    ):
        with pytest.raises(NotConnectedError):
            await call
    await transport.connect()
    assert await transport.send([make()]) == [None]


def test_every_result_code_has_a_translation(file: Path) -> None:
    codes = [getattr(sqlite3, name) for name in dir(sqlite3) if name.startswith("SQLITE_")]
    for code in {code & 0xFF for code in codes if isinstance(code, int)}:
        error = sqlite3.OperationalError("what SQLite says")
        error.sqlite_errorcode = code
        translated = translate(error, file)
        assert isinstance(translated, MatadorError)
        assert translated.__cause__ is error
        assert str(file) in str(translated)
