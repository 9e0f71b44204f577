"""Journals into a lake: each row once, whatever is repeated; only what is new is read."""

from __future__ import annotations

import shutil
import threading
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest
from pyspark.sql import SparkSession
from tests.spark.journal_files import NOW, delivery, files, lines, rows, segment, sent

from matador import Schema, event
from matador.errors import ConfigurationError
from matador.observe.journal.records import DroppedRecord, encode_record
from matador.spark import Lake
from matador.spark.tables.ingest import IngestProgress, IngestResult


@event("order.placed", description="A customer placed an order.")
@dataclass(frozen=True)
class OrderPlaced:
    order_id: str
    amount: int


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    return tmp_path / "journal"


@pytest.fixture
def lake(tmp_path: Path, spark: SparkSession) -> Lake:
    return Lake(tmp_path / "lake", spark=spark)


def test_a_run_reads_only_what_is_new(journal: Path, lake: Lake) -> None:
    segment(journal, "a", [sent(1), delivery(1), sent(2)])
    assert lake.ingest(journal) == IngestResult(segments=1, records=3, events=2, deliveries=1)

    assert lake.ingest(journal) == IngestResult()

    segment(journal, "b", [sent(3), delivery(2), delivery(2, attempt=2)])
    assert lake.ingest(journal) == IngestResult(segments=1, records=3, events=1, deliveries=2)
    assert lake.events().count() == len(rows(lake.path, "events")) == 3
    assert lake.deliveries().count() == len(rows(lake.path, "deliveries")) == 3


def test_what_is_repeated_is_added_once(journal: Path, lake: Lake) -> None:
    first = segment(journal, "a", [sent(1), sent(1), delivery(1), delivery(1), sent(2)])
    shutil.copy(first, journal / "b.jsonl")  # in the same batch
    segment(journal, "bad", b"not a record\n")
    result = lake.ingest(journal)
    assert (result.events, result.deliveries, result.quarantined) == (2, 1, 1)
    assert result.duplicates == 7

    shutil.copy(first, journal / "c.jsonl")  # in a later one, whole
    segment(journal, "d", [sent(2), sent(3), delivery(1)])  # and in part
    shutil.copy(journal / "bad.jsonl", journal / "e.jsonl")
    result = lake.ingest(journal)
    assert (result.events, result.deliveries, result.quarantined) == (1, 0, 0)
    assert result.duplicates == 8

    assert sorted(row["id"] for row in rows(lake.path, "events")) == [
        sent(number).id for number in (1, 2, 3)
    ]
    assert len(rows(lake.path, "deliveries")) == len(rows(lake.path, "quarantine")) == 1


def test_the_second_life_of_a_dead_letter_is_not_a_repeat(journal: Path, lake: Lake) -> None:
    dead = delivery(1, outcome="dead-letter", dead_letter_kind="undeliverable")
    redriven = delivery(1, started_at=NOW + 90_000_000)
    segment(journal, "a", [sent(1), dead, redriven])

    assert lake.ingest(journal).deliveries == 2


def test_nothing_in_a_journal_stops_it(journal: Path, lake: Lake) -> None:
    segment(journal, "a-truncated", lines([sent(1)]) + b'{"kind":"sent","id":')
    segment(journal, "b-binary", bytes(range(256)) * 20 + b"\n" + lines([sent(2)]))
    segment(journal, "c-empty", b"")
    segment(journal, "d-blank", b"\n\n  \n")
    segment(journal, "e-long", b'{"kind":"' + b"x" * 3_000_000 + b"\n" + lines([sent(3)]))
    segment(journal, "f-newer", b'{"kind":"forwarded","to":"mars"}\n' + lines([sent(4)]))
    (journal / "g-folder.jsonl").mkdir()
    (journal / "h-dangling.jsonl").symlink_to(journal / "nowhere")
    segment(journal, "i-lost", encode_record(DroppedRecord(5, "disk full", NOW, "w")) + b"\n")

    result = lake.ingest(journal)

    assert (result.events, result.dropped) == (4, 5)
    assert result.quarantined == len(rows(lake.path, "quarantine")) > 3
    assert lake.ingest(journal) == IngestResult()
    longest = max(len(row["raw"]) for row in rows(lake.path, "quarantine"))
    assert longest <= 1024 * 1024


def test_a_change_that_is_not_compatible_is_quarantined_and_said(
    journal: Path, tmp_path: Path, spark: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    lake = Lake(tmp_path / "lake", schema=Schema({OrderPlaced: []}), spark=spark)
    segment(
        journal,
        "a",
        [
            sent(1),
            sent(2, '{"order_id":"1","amount":5,"coupon":"x"}'),
            sent(3, '{"order_id":"1","amount":"five"}'),
            sent(4, '{"order_id":"1","amount":"six"}'),
            sent(5, event="order.lost"),
        ],
    )

    result = lake.ingest(journal)

    assert (result.events, result.quarantined) == (2, 3)
    assert [(one.kind, one.count) for one in result.problems] == [
        ("invalid-payload", 2),
        ("unknown-event", 1),
    ]
    assert "`$.amount`" in result.problems[0].reason
    assert "2 × invalid-payload in quarantine" in caplog.text
    assert lake.quarantine().where("event_key = 'order.lost'").count() == 1


def test_types_that_workers_cannot_have_are_refused_at_once(
    journal: Path, tmp_path: Path, spark: SparkSession
) -> None:
    segment(journal, "a", [sent(1)])

    @event("order.locked", description="Holds a lock, which no other process can have.")
    @dataclass(frozen=True)
    class OrderLocked:
        order_id: str
        lock = threading.Lock()

    lake = Lake(tmp_path / "lake", schema=Schema({OrderLocked: []}), spark=spark)
    with pytest.raises(ConfigurationError, match="top level of a module"):
        lake.ingest(journal)


def test_an_event_is_read_with_typed_columns(
    journal: Path, tmp_path: Path, spark: SparkSession
) -> None:
    lake = Lake(tmp_path / "lake", schema=Schema({OrderPlaced: []}), spark=spark)
    segment(journal, "a", [sent(1), sent(2, '{"order_id":"2","amount":500}')])
    lake.ingest(journal)

    for which in (OrderPlaced, "order.placed"):
        (row,) = lake.events(which).where("data.amount > 100").collect()
        assert (row.data.order_id, row.data.amount, row.before) == ("2", 500, None)
    (counted,) = lake.sql("SELECT count(*) AS n FROM events").collect()
    assert counted.n == 2


def test_a_query_names_the_values_that_do_not_fit(
    journal: Path, lake: Lake, spark: SparkSession
) -> None:
    huge = f'{{"order_id":"1","amount":{2**64}}}'
    segment(
        journal,
        "a",
        [
            sent(1, huge),
            sent(2, '{"order_id":"2","amount":"five"}'),  # of an older type
            sent(3, before=msgspec.Raw(huge.encode())),
            sent(4),
        ],
    )
    lake.ingest(journal)
    typed = Lake(lake.path, schema=Schema({OrderPlaced: []}), spark=spark)
    query = "SELECT data.amount AS amount, unfit FROM order_placed ORDER BY created_at"
    assert [(row.amount, row.unfit) for row in typed.sql(query).collect()] == [
        (None, ["amount"]),
        (None, ["amount"]),
        (5, ["before.amount"]),
        (5, []),
    ]


def test_following_locks_nobody_out(journal: Path, lake: Lake, spark: SparkSession) -> None:
    segment(journal, "a", [sent(1)])
    segment(journal, "b", [sent(2), delivery(2)])
    stop = threading.Event()
    others = Lake(lake.path, schema=Schema({OrderPlaced: []}), spark=spark)

    def progress(now: IngestProgress) -> None:
        if now.result.segments < 2:
            return
        segment(journal, "c", [sent(3)])
        assert others.ingest(journal).events == 1
        assert others.compact().files_before >= 2
        assert others.publish() == {"order_placed": 3}
        assert others.release().released == 0
        assert others.expire(timedelta(days=36_500)).events == 0
        assert others.vacuum().files == 0
        stop.set()

    result = lake.ingest(journal, follow=True, stop=stop, batch_size=1, progress=progress)
    assert result.events == 2
    assert lake.events().count() == 3


def test_a_lake_that_has_nothing_can_be_read(lake: Lake) -> None:
    assert lake.events().count() == lake.deliveries().count() == lake.quarantine().count() == 0


def test_batches_are_bounded_and_progress_is_told(journal: Path, lake: Lake) -> None:
    for number in range(5):
        segment(journal, f"s{number}", [sent(number)])
    size = (journal / "s0.jsonl").stat().st_size
    told: list[IngestProgress] = []

    result = lake.ingest(journal, batch_size=2 * size, progress=told.append)

    assert (result.segments, result.events) == (5, 5)
    assert [one.result.events for one in told] == [2, 4, 5]
    assert told[-1].done == told[-1].total
    assert len(files(lake.path, "events")) == 3


def test_segments_that_vanish_are_passed_over(
    journal: Path, lake: Lake, caplog: pytest.LogCaptureFixture
) -> None:
    paths = [segment(journal, name, [sent(number)]) for number, name in enumerate("ab")]
    size = paths[0].stat().st_size

    result = lake.ingest(journal, batch_size=size, progress=lambda _: paths[1].unlink(True))

    assert result.events == 1
    assert "was removed before it was ingested" in caplog.text
    segment(journal, "c", [sent(7)])
    assert lake.ingest(journal).events == 1


def test_following_goes_on_until_it_is_told_to_stop(journal: Path, lake: Lake) -> None:
    segment(journal, "a", [sent(1)])
    stop = threading.Event()
    seen: list[int] = []

    def progress(now: IngestProgress) -> None:
        seen.append(now.result.events)
        if len(seen) == 1:
            segment(journal, "b", [sent(2)])
        else:
            stop.set()

    result = lake.ingest(journal, follow=True, stop=stop, interval=0.01, progress=progress)

    assert (seen, result.events) == ([1, 2], 2)


def test_an_interruption_of_following_is_no_error(journal: Path, lake: Lake) -> None:
    segment(journal, "a", [sent(1)])

    def interrupt(now: IngestProgress) -> None:
        raise KeyboardInterrupt

    assert lake.ingest(journal, follow=True, progress=interrupt).events == 1
    segment(journal, "b", [sent(2)])
    with pytest.raises(KeyboardInterrupt):
        lake.ingest(journal, progress=interrupt)
    assert lake.events().count() == 2


def test_a_folder_that_is_not_there_and_options_that_cannot_be(
    tmp_path: Path, journal: Path, lake: Lake
) -> None:
    with pytest.raises(ConfigurationError, match=r"journal folder .* does not exist"):
        lake.ingest(tmp_path / "nowhere")
    with pytest.raises(ConfigurationError, match="batch_size"):
        lake.ingest(journal, batch_size=0)
    with pytest.raises(ConfigurationError, match="interval"):
        lake.ingest(journal, follow=True, interval=0)
