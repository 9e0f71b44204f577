"""A lake on S3 with Spark, which has no connector for it: executors read and write the files."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession
from tests.spark.frames import frame
from tests.spark.post import Post, open_post
from tests.support.s3 import SECRET, s3_folder, s3_options

from matador.cli.store_options import LakeOptions, open_lake
from matador.errors import ConfigurationError, StorageLockedError
from matador.observe.journal.segments import finished
from matador.observe.journal.ship import Shipper
from matador.spark.lake import Lake
from matador.spark.replay.ledger import Ledger
from matador.spark.runtime.connectors import connector_options
from matador.storage import ObjectStorage, Storage

pytestmark = pytest.mark.broker


@dataclass(frozen=True)
class Archive:
    """A post office, and its lake on S3, made of a journal that was shipped there."""

    post: Post
    lake: Lake
    journal: Storage

    def replayed(self) -> Counter[int]:
        return Counter(msgspec.json.decode(one.data)["number"] for one in self.post.envelopes())


@pytest.fixture(scope="module")
def archive(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Archive]:
    post = open_post(tmp_path_factory.mktemp("post"))
    post.send(range(30))
    with s3_folder() as folder, pytest.MonkeyPatch.context() as patched:
        patched.setenv("MATADOR_CACHE", str(tmp_path_factory.mktemp("cache")))
        journal = folder.child("journal")
        Shipper(post.journal, journal).run()
        options = s3_options()
        url = f"{folder.root}/lake"
        # The file of the application is no module of the executors, which would check payloads.
        result = Lake(url, spark=spark, storage_options=options).ingest(journal.root)
        assert (result.events, result.quarantined) == (60, 0)
        lake = Lake(url, schema=post.app.schema, spark=spark, storage_options=options)
        yield Archive(post, lake, journal)


@pytest.fixture
def logged_queries(monkeypatch: pytest.MonkeyPatch) -> list[logging.LogRecord]:
    """The invalid queries that PySpark logs, pages for each."""
    logger = PySparkLogger.getLogger("SQLQueryContextLogger")
    records: list[logging.LogRecord] = []
    monkeypatch.setattr(logger, "level", logging.INFO)
    monkeypatch.setattr(logger, "handle", records.append)
    return records


def test_spark_reads_what_it_has_no_connector_for(
    archive: Archive, logged_queries: list[logging.LogRecord]
) -> None:
    lake = archive.lake
    storage = lake.layout.storage
    assert isinstance(storage, ObjectStorage)
    assert connector_options(lake.spark, storage) is None
    assert logged_queries == []
    events = lake.events()
    assert events.count() == 60
    row = events.orderBy("created_at").first()
    assert row is not None
    assert (row.event_key, row.way, str(row.date)) == (
        "parcel.sent",
        "event",
        f"{row.recorded_at:%Y-%m-%d}",
    )
    typed = lake.events("parcel.sent")
    assert {one.number for one in typed.select("data.number").collect()} == set(range(30))
    assert lake.sql("SELECT count(*) AS n FROM parcel_sent WHERE data.number < 5").first() == (10,)
    assert lake.volume().count() > 0
    assert lake.deliveries().count() == lake.quarantine().count() == 0
    assert SECRET not in repr(lake)
    assert lake.location.startswith("s3://matador/")
    with pytest.raises(ConfigurationError, match="is not in a local folder"):
        _ = lake.path


def test_report_and_maintenance(archive: Archive) -> None:
    lake = archive.lake
    report = lake.report()
    assert report.findings.lake == "lake"
    assert lake.publish()["parcel_sent"] == 60
    assert lake.compact().files_after <= lake.compact().files_before
    assert lake.expire(timedelta(days=1)).events == 0
    assert lake.vacuum(timedelta(hours=1)).files >= 0
    assert lake.events().count() == 60


@pytest.mark.parametrize("sender", ["object", "reference"])
def test_replays(archive: Archive, sender: str) -> None:
    lake, post = archive.lake, archive.post
    post.purge("events", "slow")
    app = post.app if sender == "object" else post.reference
    name = f"by-{sender}"
    options: dict[str, Any] = {
        "event": "parcel.sent",
        "subscriber": "tell",
        "where": "data.number >= 20",
    }
    ledger = Ledger(lake.layout.ledger, name)
    with ledger.held(), pytest.raises(StorageLockedError, match="already running"):
        lake.replay(app, replay_id=name, **options)
    result = lake.replay(app, replay_id=name, **options)
    assert (result.sent, result.failed, result.resumed) == (10, 0, False)
    assert archive.replayed() == Counter(range(20, 30))
    again = lake.replay(app, replay_id=name, **options)
    assert (again.sent, again.resumed) == (10, True)
    assert archive.replayed() == Counter(range(20, 30))


def test_a_backfill(archive: Archive, spark: SparkSession) -> None:
    archive.post.purge("events", "slow")
    rows = frame(spark, [(number,) for number in range(2500)], "number int")
    result = archive.lake.backfill(archive.post.app, "parcel.sent", rows)
    assert result.sent == 5000
    assert archive.replayed() == Counter(range(2500))


def test_commands(archive: Archive) -> None:
    options = [f"{name}={value}" for name, value in s3_options().items()]
    given = [f"--storage-option={one}" for one in options]
    where = LakeOptions(lake=archive.lake.location, storage_option=options)
    assert open_lake(where).events().count() == 60  # as every command opens it
    shipping = ["--journal", str(archive.post.journal), "--to", archive.journal.root]
    shipped = run_command("journal", "ship", *shipping, *given, "--json")
    assert shipped.returncode == 0, shipped.stderr
    result = msgspec.json.decode(shipped.stdout)
    assert result["shipped"] + result["present"] == len([*finished(archive.post.journal)])
    assert result["present"] > 0


def test_what_a_command_refuses(archive: Archive) -> None:
    given = [f"--storage-option={name}={value}" for name, value in s3_options().items()]
    query = ["lake", "query", "SELECT 1 FROM events", "--lake"]
    nowhere = f"{archive.lake.location}-nowhere"
    wrong = [*given, "--storage-option=aws_secret_access_key=hunter22"]
    for arguments, said in (
        ([nowhere, *given], f"the lake {nowhere} has no tables"),
        ([archive.lake.location, *wrong, "--verbose"], "SignatureDoesNotMatch"),
        ([archive.lake.location, "--storage-option=hunter22"], "use NAME=VALUE"),
    ):
        failed = run_command(*query, *arguments)
        assert failed.returncode != 0
        assert said in " ".join(failed.stderr.split())
        assert "hunter22" not in failed.stderr
        assert SECRET not in failed.stderr


def run_command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "matador", *arguments], capture_output=True, text=True, timeout=200
    )
