"""Journals made by hand, and lakes read without Spark."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
from deltalake import DeltaTable

from matador.observe.journal.records import DeliveryRecord, Record, SentRecord, encode_record

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
    """All rows of a table, as delta-rs and pyarrow find them."""
    if not (lake / table).exists():
        return []
    found: Any = DeltaTable(lake / table)  # the types of pyarrow are not known
    return found.to_pyarrow_dataset().to_table().to_pylist()


def files(lake: Path, table: str) -> list[Path]:
    """The files of the current version of a table."""
    return sorted(map(Path, DeltaTable(lake / table).file_uris()))
