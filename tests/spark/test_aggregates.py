"""Volume, health and triage: the numbers against plain Python, and the batches once each."""

from __future__ import annotations

import math
import shutil
from collections import Counter, defaultdict
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.spark.inline import InlineLake
from tests.spark.rows import START, delivered, ingest, journal, micros, random_day, sent

from matador.errors import ConfigurationError
from matador.observe.journal.records import DeliveryRecord, SentRecord
from matador.observe.signatures import signature_id, signature_text
from matador.spark.aggregates.store import Aggregates
from matador.spark.lake import Lake
from matador.spark.tables.delta import DeltaTable

OUTCOMES = ("success", "retry", "dead-letter", "discard")


@pytest.fixture
def lake(tmp_path: Path, spark: SparkSession) -> Lake:
    return Lake(tmp_path / "lake", spark=spark)


def start_of(at: int, length: int) -> int:
    return at // (length * 1_000_000) * length


def rank_of(value: float, values: list[float]) -> float:
    """Which part of the values is not above it."""
    return sum(one <= value for one in values) / len(values)


# -- the numbers -------------------------------------------------------------------------------


def test_numbers_are_those_of_plain_python(lake: Lake) -> None:
    records = random_day(1000)
    third = len(records) // 3
    ingest(lake, records[:third])
    lake.refresh()
    ingest(lake, records[third : 2 * third], records[2 * third :])
    for length in (60, 3600):
        compare(lake, records, length)


def compare(lake: Lake, records: Sequence[SentRecord | DeliveryRecord], length: int) -> None:
    expected: dict[tuple[str, str, int], Counter[str]] = defaultdict(Counter)
    waits: dict[tuple[str, str, int], list[float]] = defaultdict(list)
    durations: dict[tuple[str, str, int], list[float]] = defaultdict(list)
    for record in records:
        at = record.recorded_at if isinstance(record, SentRecord) else record.started_at
        key = (record.event_key, record.subscriber, start_of(at, length))
        if isinstance(record, SentRecord):
            expected[key]["sent"] += 1
        else:
            expected[key][record.outcome] += 1
            waits[key].append(record.wait_ms)
            if record.ran:
                durations[key].append(record.duration_ms)

    volume = {
        (row.event_key, row.subscriber, micros_of(row.window_start)): row
        for row in lake.volume(length).collect()
    }
    assert volume.keys() == expected.keys()
    for key, row in volume.items():
        found = (row.sent, row.handled, row.retried, row.dead_lettered, row.discarded)
        assert found == tuple(expected[key][name] for name in ("sent", *OUTCOMES))

    health = {
        (row.event_key, row.subscriber, micros_of(row.window_start)): row
        for row in lake.health(length).collect()
    }
    assert health.keys() == waits.keys()
    for key, row in health.items():
        count = len(waits[key])
        assert row["count"] == count
        assert row.success_rate == pytest.approx(expected[key]["success"] / count)
        assert row.retry_rate == pytest.approx(expected[key]["retry"] / count)
        assert row.dead_letter_rate == pytest.approx(expected[key]["dead-letter"] / count)
        assert row.wait_max == max(waits[key])
        for name, rank in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99)):
            for values, what in ((waits[key], "wait"), (durations[key], "duration")):
                found = row[f"{what}_{name}"]
                if not values:
                    assert found is None
                    continue
                exact = sorted(values)[math.ceil(rank * len(values)) - 1]
                assert found == pytest.approx(exact, rel=0.0101), (key, what, name)


def micros_of(moment: datetime) -> int:
    return int(moment.timestamp())


def test_triage_groups_what_is_one_bug(lake: Lake) -> None:
    records = random_day(1000)
    dead = [one for one in records if isinstance(one, DeliveryRecord) and one.dead_letter_kind]
    expected: dict[str, list[DeliveryRecord]] = defaultdict(list)
    for one in dead:
        expected[signature_id(one.error_type, one.error or "")].append(one)
    ingest(lake, records[:500], records[500:])
    rows = {row.signature: row for row in lake.triage().collect()}
    assert rows.keys() == expected.keys()
    assert len(rows) == 3
    for signature, ones in expected.items():
        row = rows[signature]
        assert row["count"] == len(ones)
        assert row.error_type == ones[0].error_type
        assert row.text == signature_text(ones[0].error or "")
        assert micros(row.first_seen.astimezone(START.tzinfo)) == min(o.started_at for o in ones)
        assert micros(row.last_seen.astimezone(START.tzinfo)) == max(o.started_at for o in ones)
        assert (row.example_id, row.example) in {(o.id, o.error) for o in ones}
        assert row.events == sorted({o.event_key for o in ones})
        assert row.subscribers == sorted({o.subscriber for o in ones})
        assert row.queues == ["events"]


def test_a_dead_letter_without_an_error_is_grouped_by_its_reason(lake: Lake) -> None:
    ingest(lake, [delivered("a", "dead-letter", reason="no such subscriber", ran=False)])
    (row,) = lake.triage().collect()
    assert (row.text, row.error_type, row.example) == (
        "no such subscriber",
        None,
        "no such subscriber",
    )


def test_callbacks_that_did_not_run_have_no_duration(lake: Lake) -> None:
    ingest(lake, [delivered("a", "discard", ran=False, duration=0.0, wait=7.0)])
    (row,) = lake.health().collect()
    assert (row["count"], row.wait_p50, row.duration_p50, row.duration_max) == (1, 7.0, None, None)


def test_new_are_the_groups_of_the_last_update(lake: Lake) -> None:
    def dead(id: str, error: str) -> DeliveryRecord:
        return delivered(id, "dead-letter", error_type="E", error=error)

    def new() -> dict[str, bool]:
        return {row.text: row.new for row in lake.triage().collect()}

    ingest(lake, [dead("1", "first")])
    assert new() == {"first": True}
    ingest(lake, [dead("2", "first"), dead("3", "second")])
    assert new() == {"first": False, "second": True}
    assert lake.refresh() == 0  # nothing came: the last update is still the last
    assert new() == {"first": False, "second": True}


# -- batches, once each ------------------------------------------------------------------------


def totals(lake: Lake) -> tuple[int, int, int]:
    sums = [
        frame.agg({column: "sum"}).collect()[0][0]
        for frame, column in (
            (lake.volume(), "sent"),
            (lake.health(), "count"),
            (lake.triage(), "count"),
        )
    ]
    return sums[0], sums[1], sums[2]


def update(lake: Lake) -> int:
    return Aggregates(lake.layout, lambda: lake.spark).update()


def test_each_batch_counts_once_however_many_updates(lake: Lake) -> None:
    for number in range(4):
        id = str(number)
        ingest(lake, [sent(id), delivered(id, "dead-letter", error="gone")])
        assert update(lake) == 0, "the ingest has done it"
    assert totals(lake) == (4, 4, 4)


def test_an_update_that_was_killed_is_done_again(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    ingest(lake, [sent("1"), delivered("1")])
    commit = DeltaTable.commit

    def ended(self: DeltaTable, *given: Any, **options: Any) -> int:
        if self.name == "health":  # volume has counted, triage has not
            raise KeyboardInterrupt
        return commit(self, *given, **options)

    with monkeypatch.context() as patched:
        patched.setattr(DeltaTable, "commit", ended)
        with pytest.raises(KeyboardInterrupt):
            ingest(lake, [sent("2"), delivered("2", "dead-letter", error="gone")])
    assert update(lake) == 1
    assert totals(lake) == (2, 2, 1)


def test_two_updates_at_the_same_time_count_once(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    ingest(lake, [sent("1"), delivered("1")])
    segments = journal(lake.path.parent / "more", "a", [sent("2"), delivered("2")])
    InlineLake(lake.path, monkeypatch).ingest(segments)
    commit = DeltaTable.commit
    others: list[int] = []

    def late(self: DeltaTable, *given: Any, **options: Any) -> int:
        if not others:
            others.append(0)
            others[0] = update(lake)  # another process is faster, with everything
        return commit(self, *given, **options)

    monkeypatch.setattr(DeltaTable, "commit", late)
    update(lake)
    assert others == [2]
    assert totals(lake) == (2, 2, None)


def test_tables_that_were_deleted_are_counted_again(lake: Lake) -> None:
    ingest(lake, [sent("1"), delivered("1")], [sent("2")])
    shutil.rmtree(lake.path / "volume")
    assert update(lake) == 3
    assert totals(lake)[:2] == (2, 1)


def test_a_batch_with_only_one_of_the_tables_counts(lake: Lake) -> None:
    ingest(lake, [sent("1")], [delivered("1", "dead-letter", error="gone")])
    assert lake.refresh() == 0
    assert totals(lake) == (1, 1, 1)


def test_an_empty_lake_has_empty_aggregates(lake: Lake) -> None:
    assert lake.refresh() == 0
    for frame in (lake.volume(), lake.health(), lake.triage()):
        assert frame.collect() == []


def test_windows_are_whole_minutes(lake: Lake) -> None:
    for wrong in (30, 90, timedelta(seconds=61)):
        with pytest.raises(ConfigurationError, match="window"):
            lake.health(wrong)


def test_histograms_keep_within_two_percent_of_rank_over_many_merges(lake: Lake) -> None:
    batches = [
        [
            delivered(f"{b}-{n}", after=n % 7200, wait=float((n * 7919 + b) % 10_000))
            for n in range(500)
        ]
        for b in range(4)
    ]
    for batch in batches:
        ingest(lake, batch)
        lake.refresh()
    waits = [one.wait_ms for batch in batches for one in batch]
    (row,) = lake.health(timedelta(days=1)).collect()
    for name, rank in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99)):
        assert abs(rank_of(row[f"wait_{name}"], waits) - rank) < 0.02


def test_compaction_and_retention_change_no_count(lake: Lake) -> None:
    ingest(lake, [sent("1"), delivered("1")], [sent("2"), delivered("2")])
    lake.refresh()
    ingest(lake, [sent("3"), delivered("3", "dead-letter", error="gone")])
    lake.compact()
    assert totals(lake) == (3, 3, 1)
    ingest(lake, [sent("4"), delivered("4")])
    assert lake.expire(START + timedelta(days=1)).events == 4
    assert totals(lake) == (4, 4, 1)
