"""Journals made by hand, and lakes read without Spark."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from matador.observe.journal.records import DeliveryRecord, Record, SentRecord, encode_record
from matador.spark.runtime.arrow import parquet

NOW = 1_763_200_000_000_000


def sent(
    number: int,
    data: str = '{"order_id":"1","amount":5}',
    *,
    event: str = "order.placed",
    **more: Any,
) -> SentRecord:
    """An envelope; the same number is the same envelope."""
    fields: dict[str, Any] = {
        "id": str(uuid.UUID(int=number + 1, version=4)),
        "event_key": event,
        "subscriber": "charge",
        "queue": "shop.events",
        "transport": "sqlite",
        "created_at": NOW + number,
        "importance": "should-investigate",
        "data": msgspec.Raw(data.encode()),
        "recorded_at": NOW + number,
    }
    return SentRecord(**{**fields, **more})


def delivery(number: int, *, attempt: int = 1, **more: Any) -> DeliveryRecord:
    """An attempt to handle the envelope of that number."""
    fields: dict[str, Any] = {
        "id": str(uuid.UUID(int=number + 1, version=4)),
        "event_key": "order.placed",
        "subscriber": "charge",
        "queue": "shop.events",
        "transport": "sqlite",
        "attempt": attempt,
        "outcome": "success",
        "started_at": NOW + number + 1000 * attempt,
        "duration_ms": 1.5,
        "wait_ms": 2.0,
        "since_created_ms": 2.0,
        "created_at": NOW + number,
        "importance": "should-investigate",
        "recorded_at": NOW + number,
        "worker": "worker-1",
    }
    return DeliveryRecord(**{**fields, **more})


def lines(records: Iterable[Record]) -> bytes:
    """Records as the journal writes them."""
    return b"".join(encode_record(record) + b"\n" for record in records)


def segment(folder: Path, name: str, content: bytes | Iterable[Record]) -> Path:
    """A finished segment."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.jsonl"
    path.write_bytes(content if isinstance(content, bytes) else lines(content))
    return path


def rows(lake: Path, table: str) -> list[dict[str, Any]]:
    """All rows of a table, as pyarrow finds them."""
    if not any((lake / table).glob("*/*.parquet")):
        return []
    return parquet.read_table(lake / table).to_pylist()
