"""Lines of the journal become rows, or go to quarantine; nothing in them is fatal."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.spark.journal_files import NOW, delivery, lines, sent

from matador.model.event import EventType, event, event_type_of
from matador.observe.journal.records import DroppedRecord, MalformedRecord, encode_record
from matador.spark.tables.decode import Decoded, LineDecoder


@event("order.placed", description="A customer placed an order.", aliases=["order.made"])
@dataclass(frozen=True)
class OrderPlaced:
    order_id: str
    amount: int
    note: str | None = None


SCHEMA: dict[str, EventType] = {
    key: event_type_of(OrderPlaced) for key in ("order.placed", "order.made")
}


def decode(content: bytes, schema: dict[str, EventType] | None = None) -> Decoded:
    return LineDecoder(schema).decode(content, "a.jsonl")


def rows(decoded: Decoded, table: str) -> list[dict[str, Any]]:
    batch, keys = decoded.tables[table]
    assert keys.shape == (2, batch.num_rows)
    return batch.to_pylist()


def test_every_field_of_a_record_has_its_column() -> None:
    record = sent(
        1,
        before=msgspec.Raw(b'{"order_id":"0"}'),
        scheduled_for=NOW + 5,
        correlation_id="c",
        metadata={"tenant": "t", "deep": {"a": [1]}, "matador.replay-of": "original"},
        replay_id="r",
        source="tap",
    )

    (row,) = rows(decode(lines([record])), "events")

    assert row["data_json"] == '{"order_id":"1","amount":5}'
    assert row["before_json"] == '{"order_id":"0"}'
    assert dict(row["metadata"]) == {
        "tenant": "t",
        "deep": '{"a":[1]}',
        "matador.replay-of": "original",
    }
    assert (row["replay_id"], row["replay_of"], row["source"]) == ("r", "original", "tap")
    assert row["created_at"].timestamp() * 1_000_000 == pytest.approx(NOW + 1)


def test_a_delivery_has_its_error() -> None:
    record = delivery(
        1, attempt=3, outcome="dead-letter", error_type="ValueError", error="no", ran=False
    )

    (row,) = rows(decode(lines([record])), "deliveries")

    assert (row["attempt"], row["outcome"], row["ran"]) == (3, "dead-letter", False)
    assert (row["error_type"], row["error"], row["deliveries"]) == ("ValueError", "no", 1)


def test_fields_of_newer_versions_are_ignored() -> None:
    line = encode_record(sent(1))[:-1] + b',"colour":{"of":"the sky"}}\n'

    assert len(rows(decode(line), "events")) == 1


def _with_duration(text: bytes) -> bytes:
    return encode_record(delivery(1)).replace(b'"duration_ms":1.5', b'"duration_ms":' + text)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (b'{"kind":"sent","id":"1"', "truncated"),
        (b"\xff\xfe\x00garbage", "utf-8"),
        (b'{"kind":"forgotten","id":"1"}', "forgotten"),
        (b"[1, 2]", "object"),
        (b'{"kind":"sent","id":7}', "Expected `str`"),
        (b"[" * 100_000, ""),
        (encode_record(sent(7)) + b" " + encode_record(sent(8)), "trailing"),
        (encode_record(delivery(1, attempt=2**40)), ""),
        (encode_record(sent(1, created_at=2**70)), "9999"),
        (encode_record(sent(1, created_at=-1)), "1970"),
        (encode_record(delivery(1, attempt=-1)), "attempt is not between 0 and"),
        (encode_record(delivery(1, deliveries=-5)), "deliveries is not between 0 and"),
        (encode_record(delivery(1, started_at=2**70)), "9999"),
        (
            encode_record(delivery(1, duration_ms=1e308)),
            "duration_ms is not between 0 and 2.53e+14",
        ),
        (encode_record(delivery(1, wait_ms=-0.5)), "wait_ms is not between 0 and"),
        (encode_record(delivery(1, since_created_ms=1e15)), "since_created_ms is not between"),
        (_with_duration(b'"slow"'), "Expected `float`"),
        (_with_duration(b"1e999"), "out of range"),
        (_with_duration(b"NaN"), "invalid character"),
        (_with_duration(b"-Infinity"), "invalid"),
        (encode_record(sent(1)).replace(b'"amount":5', b'"amount":"\xff"'), "utf-8"),
    ],
)
def test_a_bad_line_is_kept_with_its_reason_and_its_neighbours_are_unharmed(
    line: bytes, says: str
) -> None:
    content = encode_record(sent(1)) + b"\n" + line + b"\n\n" + encode_record(delivery(2)) + b"\n"

    decoded = decode(content)

    (refused,) = rows(decoded, "quarantine")
    assert refused["kind"] == "malformed-record"
    assert refused["source"] == "a.jsonl"
    assert says in refused["reason"]
    raw = refused["raw"]
    kept = base64.b64decode(raw.removeprefix("base64:")) if "base64:" in raw else raw.encode()
    assert kept == line
    assert len(rows(decoded, "events")) == len(rows(decoded, "deliveries")) == 1
    assert decoded.records == 3


def test_a_record_over_several_lines_is_none_and_blank_lines_are_nothing() -> None:
    spread = encode_record(sent(1)).replace(b",", b",\n")
    spaced = b"\r\n \n".join([encode_record(sent(2)), encode_record(sent(3)), b""])

    decoded = decode(spread + b"\n" + spaced)

    assert [row["id"] for row in rows(decoded, "events")] == [sent(2).id, sent(3).id]
    assert len(rows(decoded, "quarantine")) == decoded.records - 2


@given(st.lists(st.binary(max_size=60), max_size=10))
def test_no_bytes_are_fatal(content: list[bytes]) -> None:
    decoded = decode(b"\n".join([*content, encode_record(sent(1))]), SCHEMA)

    assert len(rows(decoded, "events")) == 1


def test_bytes_that_were_no_envelope_are_readable() -> None:
    raw = base64.b64encode(b"hello").decode()
    record = MalformedRecord("shop.events", "sqlite", "not JSON", raw, NOW, "worker-1")

    (refused,) = rows(decode(lines([record])), "quarantine")

    assert (refused["kind"], refused["raw"]) == ("undecodable", "hello")
    assert (refused["source"], refused["reason"]) == ("shop.events", "not JSON")


def test_what_the_journal_lost_is_counted() -> None:
    record = DroppedRecord(7, "disk full", NOW, "worker-1")

    assert decode(lines([record, record])).dropped == 14


def test_with_a_schema_unknown_events_and_invalid_payloads_are_refused() -> None:
    content = lines(
        [
            sent(1),
            sent(2, event="order.made"),
            sent(3, event="order.lost"),
            sent(4, '{"order_id":"1","amount":"many"}'),
            sent(5, before=msgspec.Raw(b'{"order_id":1}')),
            delivery(3, event_key="order.lost"),
        ]
    )

    decoded = decode(content, SCHEMA)

    assert [row["event_key"] for row in rows(decoded, "events")] == ["order.placed", "order.made"]
    refused = rows(decoded, "quarantine")
    assert [row["kind"] for row in refused] == [
        "unknown-event",
        "invalid-payload",
        "invalid-payload",
    ]
    assert "order.lost" in refused[0]["reason"]
    assert "$.amount" in refused[1]["reason"]
    assert refused[1]["id"] == sent(4).id
    assert refused[1]["raw"].encode() in content
    # How it ended is a fact, whatever the schema says.
    assert len(rows(decoded, "deliveries")) == 1
    assert sum(decoded.problems.values()) == 3


def test_changes_that_are_compatible_are_absorbed() -> None:
    content = lines(
        [
            sent(1, '{"order_id":"1","amount":5}'),  # before the optional field was added
            sent(2, '{"order_id":"1","amount":5,"note":"x"}'),
            sent(3, '{"order_id":"1","amount":5,"coupon":"gone by now"}'),  # a field removed
        ]
    )

    assert len(rows(decode(content, SCHEMA), "events")) == 3
