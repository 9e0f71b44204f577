"""Typed tables for every engine, and events that leave the quarantine."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import polars
import pytest
from deltalake import DeltaTable as AnyTable
from tests.spark.inline import InlineLake
from tests.spark.journal_files import NOW, rows, segment, sent

from matador import Schema, event
from matador.errors import ConfigurationError
from matador.spark.tables import typed
from matador.spark.tables.delta import DeltaTable
from matador.spark.tables.release import ReleaseResult

CUT = datetime.fromtimestamp(NOW / 1_000_000, UTC) + timedelta(seconds=10)
LATER = NOW + 20_000_000


@event("order.placed", description="A customer placed an order.", aliases=["order.created"])
@dataclass(frozen=True)
class OrderPlaced:
    order_id: str
    amount: int
    price: Decimal = Decimal("1.50")


@event("user.joined", description="A user joined.")
@dataclass(frozen=True)
class UserJoined:
    name: str
    tags: dict[str, list[int]]


ORDERS = Schema({OrderPlaced: []})
BOTH = Schema({OrderPlaced: [], UserJoined: []})
USER = '{"name":"ann","tags":{"a":[1,2]}}'


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    return tmp_path / "journal"


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> InlineLake:
    return InlineLake(tmp_path / "lake", monkeypatch)


def amounts(lake: InlineLake) -> list[int | None]:
    found = rows(lake.layout.root, "typed/order_placed")
    return sorted((row["data"]["amount"] for row in found), key=lambda one: one or 0)


def test_other_engines_see_the_fields_of_payloads(journal: Path, lake: InlineLake) -> None:
    segment(
        journal, "a", [sent(1), sent(2, event="order.created"), sent(3, USER, event="user.joined")]
    )
    lake.ingest(journal)

    assert lake.publish(BOTH) == {"order_placed": 2, "user_joined": 1}
    assert lake.publish(BOTH) == {"order_placed": 0, "user_joined": 0}

    folder = lake.layout.root / "typed"
    total = polars.scan_delta(folder / "order_placed").select(
        polars.col("data").struct.field("amount").sum()
    )
    assert total.collect().item() == 10
    users: Any = AnyTable(folder / "user_joined")
    joined = users.to_pyarrow_dataset()
    assert joined is not None
    assert duckdb.execute("SELECT data.name, data.tags['a'][2] FROM joined").fetchall() == [
        ("ann", 2)
    ]
    (row, _) = rows(lake.layout.root, "typed/order_placed")
    assert row["data"]["price"] == Decimal("1.50"), "the default of a field that is missing"
    assert (row["before"], row["unfit"]) == (None, [])


def test_only_what_is_new_is_added_also_after_a_compaction(journal: Path, lake: InlineLake) -> None:
    segment(journal, "a", [sent(1)])
    lake.ingest(journal)
    assert lake.publish(ORDERS) == {"order_placed": 1}
    segment(journal, "b", [sent(2)])
    segment(journal, "c", [sent(3)])
    lake.ingest(journal, batch_size=1)
    lake.compact()
    assert lake.publish(ORDERS) == {"order_placed": 2}
    assert amounts(lake) == [5, 5, 5]


def test_a_file_that_was_deleted_meanwhile_makes_it_start_again(
    journal: Path, lake: InlineLake
) -> None:
    segment(journal, "a", [sent(1)])
    segment(journal, "b", [sent(2)])
    lake.ingest(journal, batch_size=1)
    lake.compact()
    lake.layout.table("events").open().vacuum(0)
    assert lake.publish(ORDERS) == {"order_placed": 2}


def test_values_that_do_not_fit_are_named(journal: Path, lake: InlineLake) -> None:
    segment(
        journal,
        "a",
        [
            sent(1, f'{{"order_id":"1","amount":{2**64}}}'),
            sent(2, '{"order_id":"2","amount":"five","price":"2.5"}'),
            sent(3, '{"order_id":7,"amount":null}'),
            sent(4, '{"name":"ann","tags":{"a":[1,"x"],"b":3}}', event="user.joined"),
            sent(5, before=msgspec.Raw(b'{"order_id":"5","amount":%d}' % (2**64))),
        ],
    )
    lake.ingest(journal)
    lake.publish(BOTH)
    found = rows(lake.layout.root, "typed/order_placed")
    assert {row["id"]: row["unfit"] for row in found} == {
        sent(1).id: ["amount"],
        sent(2).id: ["amount"],
        sent(3).id: [],
        sent(5).id: ["before.amount"],
    }
    (user,) = rows(lake.layout.root, "typed/user_joined")
    assert user["unfit"] == ["tags[][]", "tags[]"]


def test_a_class_that_has_changed_writes_the_table_again(journal: Path, lake: InlineLake) -> None:
    segment(journal, "a", [sent(1)])
    lake.ingest(journal)
    lake.publish(ORDERS)

    @event("order.placed", description="A customer placed an order.")
    @dataclass(frozen=True)
    class Newer:
        order_id: str
        amount: float
        voucher: str | None = None

    assert lake.publish(Schema({Newer: []})) == {"order_placed": 1}
    (row,) = rows(lake.layout.root, "typed/order_placed")
    assert row["data"] == {"order_id": "1", "amount": 5.0, "voucher": None}
    segment(journal, "b", [sent(2)])
    lake.ingest(journal)
    assert lake.publish(Schema({Newer: []})) == {"order_placed": 1}
    assert len(rows(lake.layout.root, "typed/order_placed")) == 2


def test_what_has_expired_is_not_published(journal: Path, lake: InlineLake) -> None:
    segment(journal, "a", [sent(1), sent(2, recorded_at=LATER)])
    lake.ingest(journal)
    lake.expire(CUT)
    assert lake.publish(ORDERS) == {"order_placed": 1}


def test_two_at_the_same_time_add_rows_once(
    journal: Path, lake: InlineLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    segment(journal, "a", [sent(1)])
    lake.ingest(journal)
    commit = DeltaTable.commit
    others: list[dict[str, int]] = []

    def late(self: DeltaTable, *given: Any, **options: Any) -> int:
        if not others:
            others.append({})
            others[0] = lake.publish(ORDERS)
        return commit(self, *given, **options)

    monkeypatch.setattr(DeltaTable, "commit", late)
    assert lake.publish(ORDERS) == {"order_placed": 0}
    assert others == [{"order_placed": 1}]
    assert amounts(lake) == [5]


def test_two_events_with_one_table_name_are_refused() -> None:
    @event("order_placed", description="The same, with another dot.")
    @dataclass(frozen=True)
    class Other:
        order_id: str

    with pytest.raises(ConfigurationError, match=r"'order\.placed' and 'order_placed'"):
        typed.typed_events(Schema({OrderPlaced: [], Other: []}))


# -- out of quarantine ---------------------------------------------------------------------------


def test_events_that_the_schema_has_learned_leave_the_quarantine(
    journal: Path, lake: InlineLake
) -> None:
    bad = sent(2, '{"name":5}', event="user.joined")
    segment(journal, "a", [sent(1), sent(3, USER, event="user.joined"), bad])
    (journal / "b.jsonl").write_bytes(b"not a record\n")
    result = lake.ingest(journal, ORDERS)
    assert (result.events, result.quarantined) == (1, 3)

    assert lake.release(ORDERS) == ReleaseResult(0, 0, 3)
    assert lake.release(BOTH) == ReleaseResult(released=1, events=1, left=2)
    assert lake.release(BOTH) == ReleaseResult(0, 0, 2)

    assert sorted(row["id"] for row in rows(lake.layout.root, "events")) == [sent(1).id, sent(3).id]
    kinds = sorted(row["kind"] for row in rows(lake.layout.root, "quarantine"))
    assert kinds == ["malformed-record", "unknown-event"]


def test_a_release_that_was_killed_is_finished_by_the_next(
    journal: Path, lake: InlineLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    segment(journal, "a", [sent(3, USER, event="user.joined")])
    lake.ingest(journal, ORDERS)
    commit = DeltaTable.commit

    def ended(self: DeltaTable, *given: Any, **options: Any) -> int:
        if self.name == "quarantine":
            raise KeyboardInterrupt
        return commit(self, *given, **options)

    with monkeypatch.context() as patched:
        patched.setattr(DeltaTable, "commit", ended)
        with pytest.raises(KeyboardInterrupt):
            lake.release(BOTH)
    assert lake.release(BOTH) == ReleaseResult(released=1, events=0, left=0)
    assert len(rows(lake.layout.root, "events")) == 1
