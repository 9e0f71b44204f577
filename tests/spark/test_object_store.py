"""A lake on a real S3 server, written in this process: whole batches, whoever is killed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars
import pytest
from tests.spark.inline import InlineLake
from tests.spark.journal_files import NOW, delivery, segment, sent
from tests.spark.test_typed_tables import BOTH, ORDERS
from tests.support.forgetful_s3 import forgetful_s3
from tests.support.s3 import s3_folder, s3_options

from matador.errors import ConfigurationError, StorageLockedError
from matador.spark.tables import ingest
from matador.spark.tables.delta import CommitConflictError, DeltaTable
from matador.spark.tables.ingest import IngestResult
from matador.spark.tables.layout import TABLES, Layout
from matador.spark.tables.lease import HELD_UNTIL, Lease
from matador.testing import wait_for

pytestmark = pytest.mark.broker

LATER = NOW + 20_000_000
CUT = datetime.fromtimestamp(NOW / 1_000_000, UTC) + timedelta(seconds=10)
SEGMENTS = 4
PROGRAM = [sys.executable, "-m", "tests.spark.s3_program"]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MATADOR_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def lake(monkeypatch: pytest.MonkeyPatch) -> Iterator[InlineLake]:
    with s3_folder() as folder:
        yield InlineLake(folder.root, monkeypatch, s3_options())


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    """Segments that overlap: each repeats a row of the one before."""
    folder = tmp_path / "journal"
    for number in range(SEGMENTS):
        records = [sent(one, recorded_at=LATER) for one in range(number * 9, number * 9 + 10)]
        segment(folder, f"s{number}", [*records, delivery(number)])
    (folder / "z.jsonl").write_bytes(b"not a record\n")
    return folder


def ids(lake: InlineLake, table: str = "events") -> list[str]:
    found = lake.layout.table(table).open(create=False).read(["id"])
    return sorted(found.column("id").to_pylist())


WANTED = sorted(sent(one).id for one in range(SEGMENTS * 9 + 1))


def program(lake: InlineLake, journal: Path, *kills: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*PROGRAM, lake.layout.storage.root, str(journal), *kills],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[2],
        text=True,
    )


def test_ingest_once_and_read_with_another_engine(lake: InlineLake, journal: Path) -> None:
    first = lake.ingest(journal)
    assert (first.events, first.deliveries, first.quarantined) == (len(WANTED), SEGMENTS, 1)
    assert first.duplicates == SEGMENTS - 1
    assert lake.ingest(journal) == IngestResult()
    assert ids(lake) == WANTED
    url = f"{lake.layout.storage.root}/events"
    options: dict[str, Any] = {**s3_options(), "aws_allow_http": "true"}
    assert sorted(polars.read_delta(url, storage_options=options)["id"].to_list()) == WANTED


def test_the_index_is_a_cache_on_this_machine(lake: InlineLake, journal: Path, cache: Path) -> None:
    lake.ingest(journal)
    assert len(list(cache.rglob("*.npy"))) >= len(TABLES)
    assert "_index" not in lake.layout.storage.folders()
    shutil.rmtree(cache)
    (journal / "again.jsonl").write_bytes((journal / "s0.jsonl").read_bytes())
    again = lake.ingest(journal)
    assert (again.events, again.deliveries, again.duplicates) == (0, 0, 11)
    assert ids(lake) == WANTED


def test_maintenance(lake: InlineLake, journal: Path) -> None:
    segment(journal, "old", [sent(900)])
    lake.ingest(journal, batch_size=1)
    events = lake.layout.table("events").open()
    before = len(events.files())
    assert before > 1
    lake.compact()
    assert len(events.refresh().files()) < before
    assert ids(lake) == sorted([*WANTED, sent(900).id])
    assert lake.expire(CUT).events == 1
    assert ids(lake) == WANTED
    assert lake.layout.table("events").open().vacuum(0) >= before
    assert ids(lake) == WANTED
    (journal / "again.jsonl").write_bytes((journal / "old.jsonl").read_bytes())
    assert lake.ingest(journal).events == 0, "what has expired does not return"


def test_publish_and_release(lake: InlineLake, journal: Path) -> None:
    unknown = sent(901, event="user.joined", data='{"name":"ann"}', recorded_at=LATER)
    segment(journal, "unknown", [unknown])
    lake.ingest(journal)
    added = lake.publish(ORDERS)
    assert added["order_placed"] == len(WANTED)
    assert lake.publish(ORDERS)["order_placed"] == 0
    table = DeltaTable.existing(lake.layout.storage, "typed/order_placed").open()
    assert table.read(["id"]).num_rows == len(WANTED)
    assert lake.release(BOTH).left == 1


def test_a_journal_that_was_shipped(
    lake: InlineLake, journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ingest, "_SMALLEST_SPLIT", 1000)
    monkeypatch.setattr(ingest, "_LARGEST_SPLIT", 1000)
    there = lake.layout.storage.child("journal")
    for path in journal.glob("*.jsonl"):
        there.write(path.name, path.read_bytes())
    assert lake.ingest_from(there).events == len(WANTED)
    assert ids(lake) == WANTED
    assert lake.ingest_from(there) == IngestResult()


# -- killed, and together ------------------------------------------------------------------------


def test_an_ingest_that_is_killed_inside_its_commits_ends_exact(
    lake: InlineLake, journal: Path
) -> None:
    """A commit takes about ten milliseconds: the kills fall before, in and after its request."""
    after: list[int] = []
    # Commit 1 is of events, 2 of deliveries or _segments, and so on.
    kills = [f"{1 + number % 3}:{0.002 * number}" for number in range(10)]
    with program(lake, journal, *kills) as running:
        assert running.stdin is not None
        assert running.stdout is not None
        for _ in kills:
            ended = running.stdout.readline().strip()
            if ended != str(-signal.SIGKILL):
                assert ended == "0", "it was done before its kill"
                break
            after.append(len(ids(lake)))
            assert after[-1] == len(set(ids(lake))), "a row is there once"
            assert after == sorted(after), "what was committed stays"
            running.stdin.write("\n")
            running.stdin.flush()
        running.kill()
    assert len(after) > 5
    lake.ingest(journal)
    assert ids(lake) == WANTED
    assert len(ids(lake, "deliveries")) == SEGMENTS
    assert lake.layout.table("quarantine").open().read(["kind"]).num_rows == 1
    assert lake.ingest(journal) == IngestResult()


def test_two_ingests_at_once_end_exact(lake: InlineLake, journal: Path) -> None:
    running = [program(lake, journal, "0:0") for _ in range(2)]
    for one in running:
        assert one.communicate("\n", timeout=120)[0] == "0\n"
    assert ids(lake) == WANTED
    assert len(ids(lake, "deliveries")) == SEGMENTS
    assert lake.ingest(journal) == IngestResult()


def test_a_store_without_conditional_requests_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with forgetful_s3() as endpoint:
        options = {**s3_options(), "aws_endpoint_url": endpoint}
        layout = Layout("s3://shop/lake", options)
        with pytest.raises(ConfigurationError, match="two writers could overwrite each other"):
            layout.table("events").open()


# -- leases --------------------------------------------------------------------------------------


async def test_a_lease_is_held_by_one_and_ends_when_its_holder_dies() -> None:
    with s3_folder() as folder:
        with Lease(folder, length=60):
            second = Lease(folder)
            with pytest.raises(StorageLockedError, match="another process is writing to s3://"):
                second.__enter__()
        with Lease(folder):  # given back
            pass
        dead = Lease(folder, length=1.0)
        dead._thread.run = lambda: None  # it has died: nobody renews
        dead.__enter__()

        def taken() -> bool:
            try:
                with Lease(folder):
                    return True
            except StorageLockedError:
                return False

        await wait_for(taken)


async def test_a_lease_is_renewed_and_its_loss_noticed() -> None:
    with s3_folder() as folder, Lease(folder, length=0.8) as lease:
        first = lease._until
        await wait_for(lambda: lease._until > first + 1000)
        lease.check()
        thief = DeltaTable(folder, "lease", lease._table.columns, partitioned=False).open()
        while not lease.is_lost:
            try:
                thief.refresh().commit((), (), {HELD_UNTIL: lease._until + 3_600_000})
                break
            except CommitConflictError:
                continue
        await wait_for(lambda: lease.is_lost)
        with pytest.raises(StorageLockedError, match="stopped for too long"):
            lease.check()


def test_environment_is_enough(
    tmp_path: Path, journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in s3_options().items():
        monkeypatch.setenv(name.upper(), value)
    with s3_folder() as folder:
        made = InlineLake(folder.root, monkeypatch)
        assert made.ingest(journal).events == len(WANTED)
        assert os.environ["AWS_SECRET_ACCESS_KEY"] not in repr(made.layout.storage)
