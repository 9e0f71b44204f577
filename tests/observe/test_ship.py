"""Journals that are shipped: whole, once, again after a kill, and never deleted too soon."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.support.own_time import OwnTime
from tests.support.s3 import s3_folder, s3_options

from matador.errors import ConfigurationError, StorageLockedError
from matador.observe.journal import Journal, ship_process
from matador.observe.journal.segments import Segment, finished
from matador.observe.journal.ship import LOCK, Shipper, ShipResult
from matador.observe.journal.ship_process import ShippingProcess
from matador.storage import FolderStorage, Storage
from matador.storage.files import locked
from matador.testing import wait_for

LOCAL = {"aws_access_key_id": "x", "aws_secret_access_key": "secret", "aws_region": "us-east-1"}


@pytest.fixture(params=["folder", pytest.param("s3", marks=pytest.mark.broker)])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Storage]:
    if request.param == "folder":
        yield FolderStorage(str(tmp_path / "there"))
        return
    with s3_folder() as made:
        yield made


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    folder = tmp_path / "journal"
    folder.mkdir()
    for number in range(3):
        (folder / f"{number}.jsonl").write_bytes(f"line of {number}\n".encode() * 1000)
    return folder


def contents(storage: Storage) -> dict[str, bytes]:
    return {one.name: storage.read(one.name) or b"" for one in storage.files()}


def here(journal: Path) -> dict[str, bytes]:
    return {one.name: one.read_bytes() for one in finished(journal)}


def test_finished_segments_are_shipped_once(journal: Path, target: Storage) -> None:
    writing = Segment(journal, "other-1", 1)
    writing.append(b"not finished\n")
    (journal / "link.jsonl").symlink_to(journal / "0.jsonl")
    shipper = Shipper(journal, target)
    assert shipper.run() == ShipResult(shipped=3, bytes=30_000)
    assert sorted(contents(target)) == ["0.jsonl", "1.jsonl", "2.jsonl"]
    assert shipper.run() == ShipResult(present=3)
    assert Shipper(journal, target).run() == ShipResult(present=3)
    path = writing.finish()
    assert path is not None
    assert shipper.run() == ShipResult(1, 13, 3, 0)
    assert contents(target)[path.name] == b"not finished\n"


def test_local_segments_are_deleted_once_their_copies_are_the_same(
    journal: Path, target: Storage, caplog: pytest.LogCaptureFixture
) -> None:
    before = here(journal)
    target.make()
    target.write("1.jsonl", b"X" * len(before["1.jsonl"]))  # somebody has damaged the copy
    shipper = Shipper(journal, target, delete=True)
    assert shipper.run() == ShipResult(2, 20_000, 1, 2)
    assert "the copy of 1.jsonl" in caplog.text
    assert list(here(journal)) == ["1.jsonl"]
    assert shipper.run() == ShipResult(1, 10_000, 0, 1)
    assert here(journal) == {}
    assert contents(target) == before


def test_a_copy_of_another_size_is_replaced(journal: Path, target: Storage) -> None:
    target.make()
    target.write("1.jsonl", b"half")
    assert Shipper(journal, target).run().shipped == 3
    assert contents(target) == here(journal)


def test_a_segment_that_cannot_be_read_does_not_stop_the_others(
    journal: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from matador.observe.journal import ship

    opened = ship.open_segment

    def refusing(path: Path) -> int:
        if path.name == "0.jsonl":
            raise PermissionError("no")
        return opened(path)

    monkeypatch.setattr(ship, "open_segment", refusing)
    assert Shipper(journal, FolderStorage(str(tmp_path / "there"))).run().shipped == 2
    assert "0.jsonl cannot be read" in caplog.text


def test_one_process_ships_at_a_time(journal: Path, tmp_path: Path) -> None:
    shipper = Shipper(journal, FolderStorage(str(tmp_path / "there")))
    with locked(journal / LOCK), pytest.raises(StorageLockedError, match="is shipping"):
        shipper.run()
    assert shipper.run().shipped == 3


_PROGRAM = """
import sys
import time
from pathlib import Path
from matador.observe.journal.ship import Shipper
from matador.storage import ObjectStorage, open_storage
import os, signal

name, at, *options = sys.argv[3:]
complete = ObjectStorage.finish


def killed(self, file_name, file):
    if at == "before" and file_name == name:
        os.kill(os.getpid(), signal.SIGKILL)
    size = complete(self, file_name, file)
    if at == "after" and file_name == name:
        os.kill(os.getpid(), signal.SIGKILL)
    return size


ObjectStorage.finish = killed
target = open_storage(sys.argv[2], "to", dict(one.split("=", 1) for one in options))
Shipper(Path(sys.argv[1]), target, delete=True).run()
"""


@pytest.mark.broker
@pytest.mark.parametrize("at", ["before", "after"])
def test_a_shipper_that_is_killed_loses_nothing(journal: Path, at: str) -> None:
    before = here(journal)
    with s3_folder() as target:
        options = [f"{name}={value}" for name, value in s3_options().items()]
        command = [sys.executable, "-c", _PROGRAM, str(journal), target.root, "1.jsonl", at]
        ended = subprocess.run([*command, *options], capture_output=True, env=dict(os.environ))
        assert ended.returncode == -signal.SIGKILL, ended.stderr
        assert list(here(journal)) == ["1.jsonl", "2.jsonl"]
        there = ["0.jsonl"] if at == "before" else ["0.jsonl", "1.jsonl"]
        assert sorted(contents(target)) == there
        again = Shipper(journal, target, delete=True).run()
        assert again.deleted == 2
        assert contents(target) == before
        assert here(journal) == {}


@pytest.mark.broker
async def test_a_journal_ships_while_the_application_runs(tmp_path: Path) -> None:
    with s3_folder() as target:
        folder = tmp_path / "journal"
        options: dict[str, Any] = {"storage_options": s3_options(), "delete_shipped": True}
        journal = Journal(folder, ship_to=target.root, **options)
        assert "secret" not in repr(journal)
        journal.on_start()
        (folder / "earlier.jsonl").write_bytes(b"left by an earlier run\n")
        await wait_for(lambda: "earlier.jsonl" in contents(target))
        (folder / "last.jsonl").write_bytes(b"just before the end\n")
        await journal.on_stop()
        assert sorted(contents(target)) == ["earlier.jsonl", "last.jsonl"]
        assert here(folder) == {}


async def test_an_application_never_waits_for_a_store_that_cannot_be_reached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(ship_process, "_LAST_TRY", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:  # it accepts, and never answers
        options = {**LOCAL, "aws_endpoint_url": f"http://127.0.0.1:{silent.getsockname()[1]}"}
        journal = Journal(tmp_path, ship_to="s3://shop/journal", storage_options=options)
        journal.on_start()
        (tmp_path / "a.jsonl").write_bytes(b"a line\n")
        silent.settimeout(20)
        connection, _ = await asyncio.to_thread(silent.accept)  # the process is asking
        async with OwnTime() as own:
            await journal.on_stop()
        assert own.seconds < 5
        assert "the last segments are not shipped to s3://shop/journal yet" in caplog.text
        assert (tmp_path / "a.jsonl").exists()
        shipping = journal._shipping
        assert shipping is not None
        assert shipping._process is not None
        shipping._process.kill()
        shipping._process.wait()
        connection.close()


async def test_a_process_that_ends_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(ship_process, "_START_AGAIN", 0.05)
    there = tmp_path / "there"
    shipping = ShippingProcess(tmp_path / "journal", str(there), None, delete=False)
    shipping.start()
    first = shipping._process
    assert first is not None
    first.kill()
    await wait_for(lambda: shipping._process is not first)
    (tmp_path / "journal").mkdir(exist_ok=True)
    (tmp_path / "journal" / "a.jsonl").write_bytes(b"a line\n")
    await asyncio.to_thread(shipping.stop)
    assert (there / "a.jsonl").read_bytes() == b"a line\n"
    assert "it is started again" in caplog.text
    assert "secret" not in repr(shipping._order)


def test_options_without_a_place_to_ship_to(tmp_path: Path) -> None:
    for options in ({"storage_options": {"aws_region": "x"}}, {"delete_shipped": True}):
        with pytest.raises(ConfigurationError, match="need ship_to"):
            Journal(tmp_path, **options)  # pyright: ignore[reportArgumentType]


# -- the process -----------------------------------------------------------------------------------


async def test_a_journal_ships_what_is_left_at_its_end(tmp_path: Path) -> None:
    folder, there = tmp_path / "journal", tmp_path / "there"
    journal = Journal(folder, ship_to=str(there), delete_shipped=True)
    journal.on_start()
    shipping = journal._shipping
    assert shipping is not None
    process = shipping._process
    assert process is not None
    (watching,) = [one for one in threading.enumerate() if one.name == "matador-ship"]
    assert watching.daemon, "it must not keep the program from ending"
    assert os.getsid(process.pid) == process.pid, "Ctrl-C is for the application"
    assert os.readlink(f"/proc/{process.pid}/fd/1") == os.devnull  # noqa: PTH115 - of the kernel
    (folder / "last.jsonl").write_bytes(b"just before the end\n")
    await journal.on_stop()
    assert process.returncode == 0
    assert not watching.is_alive()
    assert (there / "last.jsonl").read_bytes() == b"just before the end\n"
    assert here(folder) == {}
    shipping.stop()
    assert shipping._process is process, "it is stopped once"


class Input:
    """The standard input of a process: a first line, and whether it has ended."""

    def __init__(self, line: bytes) -> None:
        self.buffer = self
        self.line = line

    def readline(self) -> bytes:
        return self.line


def shipped(
    monkeypatch: pytest.MonkeyPatch, order: ship_process.ShipOrder, rounds: int, run: Any = None
) -> int:
    """Run the process here, until its input ends after so many rounds; how often it shipped."""
    runs: list[int] = []
    ship = Shipper.run

    def counted(shipper: Shipper) -> ShipResult:
        runs.append(1)
        if run is not None:
            run(len(runs))
        return ship(shipper)

    def ignored(*given: Any) -> None: ...

    def select(*given: Any) -> tuple[list[Any], list[Any], list[Any]]:
        assert given[3] == 2.0
        return ([given[0][0]] if len(runs) >= rounds - 1 else []), [], []

    with monkeypatch.context() as patched:
        patched.setattr(sys, "stdin", Input(msgspec.json.encode(order) + b"\n"))
        patched.setattr(Shipper, "run", counted)
        patched.setattr(ship_process.select, "select", select)
        patched.setattr(ship_process.signal, "signal", ignored)
        ship_process.main()
    return len(runs)


@pytest.mark.parametrize("delete", [True, False])
def test_the_process_ships_until_its_input_ends(
    delete: bool, journal: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = tmp_path / "there"
    order = ship_process.ShipOrder(str(journal), str(there), {}, delete)
    before = here(journal)
    assert shipped(monkeypatch, order, rounds=3) == 3
    assert contents(FolderStorage(str(there))) == before
    assert here(journal) == ({} if delete else before)


def test_the_process_goes_on_whatever_fails_and_says_so_now_and_then(
    journal: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    now = [1000.0]
    monkeypatch.setattr(ship_process.time, "monotonic", lambda: now[0])

    def fail(run: int) -> None:
        if run == 1:
            raise StorageLockedError("another process")
        if run < 6:
            now[0] += 16.0
            raise OSError(f"run {run}")

    there = tmp_path / "there"
    order = ship_process.ShipOrder(str(journal), str(there), {}, False)
    assert shipped(monkeypatch, order, rounds=6, run=fail) == 6
    said = [one for one in caplog.messages if "segments wait to be shipped" in one]
    assert [one.rpartition(": ")[2] for one in said] == ["run 2", "run 4"]
    assert len(contents(FolderStorage(str(there)))) == 3
    caplog.clear()

    def fails_last(run: int) -> None:
        raise OSError(f"the last of {run}")

    assert shipped(monkeypatch, order, rounds=1, run=fails_last) == 1
    assert "the last of 1" in caplog.text, "the last failure is always said"
