"""Other programs change the tables by the rules of Delta: everything made of them stays right."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, cast

import msgspec
import pytest
from deltalake import DeltaTable as Foreign
from deltalake import write_deltalake
from tests.spark.inline import SESSION, InlineLake
from tests.spark.journal_files import NOW, delivery, rows, segment, sent

from matador import Envelope, Schema, event, subscriber
from matador.observe.journal.records import DeliveryRecord, SentRecord
from matador.spark.aggregates.reconcile import reconcile, states_in
from matador.spark.aggregates.store import Aggregates
from matador.spark.tables.reader import LakeTables


@event("order.placed", description="An order was placed.")
@dataclass
class OrderPlaced:
    order_id: str
    amount: int


@subscriber(description="Charges.", idempotent="yes")
async def charge(envelope: Envelope[OrderPlaced]) -> None: ...


Either: TypeAlias = SentRecord | DeliveryRecord
SCHEMA = Schema({OrderPlaced: [charge]})
DAY = 86_400_000_000
MIDNIGHT = NOW // DAY * DAY + DAY


def records_of(numbers: Sequence[int]) -> list[Either]:
    """Messages of four days and their attempts; every third attempt is recorded a day later."""
    found: list[Either] = []
    for n in numbers:
        at = NOW + n % 4 * DAY + n * 60_000_000
        found.append(sent(n, recorded_at=at, created_at=at))
        outcome = ("success", "retry", "dead-letter")[n % 3]
        later = at + (DAY if n % 3 == 1 else 1000)
        more: dict[str, Any] = {"outcome": outcome, "error": f"no {'abc'[n % 2]}"}
        more |= {"duration_ms": float(n), "wait_ms": float(100 - n)}
        found.append(delivery(n, started_at=at, recorded_at=later, created_at=at, **more))
    return found


def id_of(number: int) -> str:
    return sent(number).id


class Pipeline:
    """A lake and everything that is made of its tables."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.path = path
        self.lake = InlineLake(path / "lake", monkeypatch)
        self._batches = 0

    def run(self, records: Sequence[Either] = ()) -> None:
        if records:
            self._batches += 1
            segment(self.path / "journal", f"s{self._batches}", records)
            self.lake.ingest(self.path / "journal")
        Aggregates(self.lake.layout, lambda: SESSION).update()
        self.lake.publish(SCHEMA)

    def foreign(self, table: str) -> Any:  # the types of pyarrow are not known
        return Foreign(self.path / "lake" / table)

    def everything(self) -> dict[str, Any]:
        root = self.path / "lake"
        found: dict[str, Any] = {
            name: sorted(str(row) for row in rows(root, name))
            for name in ("events", "deliveries", "volume", "health", "typed/order_placed")
        }
        # Which of them are new depends on when they were counted.
        found["triage"] = sorted(str({**row, "new": None}) for row in rows(root, "triage"))
        return found

    def lines(self) -> tuple[Any, ...]:
        tables = cast("LakeTables", _Tables(self.lake))
        return reconcile(states_in(tables)).lines


class _Tables:
    def __init__(self, lake: InlineLake) -> None:
        self.layout = lake.layout


@pytest.fixture
def pipeline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pipeline:
    return Pipeline(tmp_path / "tested", monkeypatch)


@pytest.fixture
def as_if(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Sequence[Either]], Any]:
    """What is made of some records by a lake that never had others."""

    def made(records: Sequence[Either]) -> Pipeline:
        other = Pipeline(tmp_path / "other", monkeypatch)
        other.run(records)
        return other

    return made


def without(records: Sequence[Either], number: int, *kinds: type[Any]) -> list[Either]:
    gone = id_of(number)
    return [one for one in records if not (isinstance(one, kinds) and one.id == gone)]


@pytest.mark.parametrize("number", range(3), ids=["success", "recorded a day later", "dead letter"])
@pytest.mark.parametrize("more", [False, True], ids=["before an update", "before an ingest"])
def test_deleted_rows_are_in_nothing_that_is_made_of_the_tables(
    pipeline: Pipeline, as_if: Callable[[Sequence[Either]], Pipeline], number: int, more: bool
) -> None:
    records, others = records_of(range(24)), records_of(range(24, 36))
    pipeline.run(records)
    for table in ("events", "deliveries"):
        deleted = pipeline.foreign(table).delete(f"id = '{id_of(number)}'")
        assert deleted["num_deleted_rows"] == 1
    pipeline.run(others if more else ())
    expected = as_if([*without(records, number, object), *(others if more else ())])
    assert pipeline.everything() == expected.everything()
    assert pipeline.lines() == expected.lines()
    pipeline.run(records_of(range(36, 40)))
    expected.run(records_of(range(36, 40)))
    assert pipeline.everything() == expected.everything()


def test_a_delete_in_one_of_the_tables_leaves_the_counts_of_the_other(
    pipeline: Pipeline, as_if: Callable[[Sequence[Either]], Pipeline]
) -> None:
    records = records_of(range(24))
    pipeline.run(records)
    pipeline.foreign("deliveries").delete(f"id = '{id_of(5)}'")
    pipeline.run()
    assert pipeline.everything() == as_if(without(records, 5, DeliveryRecord)).everything()


def test_all_rows_of_a_day_may_be_deleted(
    pipeline: Pipeline, as_if: Callable[[Sequence[Either]], Pipeline]
) -> None:
    records = records_of(range(24))
    pipeline.run(records)
    gone = {one.id for one in records if one.recorded_at < MIDNIGHT}
    for table in ("events", "deliveries"):
        ids = ", ".join(f"'{id}'" for id in gone)
        pipeline.foreign(table).delete(f"id in ({ids})")
    pipeline.run()
    kept = [one for one in records if one.id not in gone]
    assert pipeline.everything() == as_if(kept).everything()


def test_changed_rows_are_counted_as_they_are_now(
    pipeline: Pipeline, as_if: Callable[[Sequence[Either]], Pipeline]
) -> None:
    pipeline.run(records_of(range(24)))
    pipeline.foreign("deliveries").update({"outcome": "'success'"}, predicate="outcome = 'retry'")
    pipeline.run(records_of(range(24, 30)))
    found = [
        msgspec.structs.replace(one, outcome="success")
        if isinstance(one, DeliveryRecord) and one.outcome == "retry" and one.wait_ms > 100 - 24
        else one
        for one in records_of(range(30))
    ]
    assert pipeline.everything() == as_if(found).everything()


def test_rows_that_another_program_appends_are_counted_once(
    pipeline: Pipeline, as_if: Callable[[Sequence[Either]], Pipeline]
) -> None:
    expected = as_if(records_of(range(12)))
    pipeline.run(records_of(range(8)))
    ids = [id_of(n) for n in range(8, 12)]
    for table in ("events", "deliveries"):
        stored = expected.foreign(table).to_pyarrow_table()
        picked = stored.filter([one in ids for one in stored.column("id").to_pylist()])
        write_deltalake(pipeline.foreign(table), picked, mode="append")
    pipeline.run()
    assert pipeline.everything() == expected.everything()


def test_a_table_that_another_program_has_changed_is_compacted_and_expires(
    pipeline: Pipeline, as_if: Callable[[Sequence[Either]], Pipeline]
) -> None:
    records = records_of(range(24))
    pipeline.run(records[:24])
    pipeline.run(records[24:])
    for table in ("events", "deliveries"):
        pipeline.foreign(table).delete(f"id = '{id_of(3)}'")
    pipeline.foreign("events").optimize.compact()
    pipeline.lake.compact()
    pipeline.run()
    expected = as_if(without(records, 3, object))
    assert pipeline.everything() == expected.everything()
