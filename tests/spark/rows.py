"""Rows of the tables of a lake, made by hand or by dice, and a lake with them in it."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec

from matador.observe.journal.records import DeliveryRecord, Outcome, SentRecord, encode_record
from matador.spark.lake import Lake

START = datetime(2026, 11, 15, 12, 0, tzinfo=UTC)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def micros(moment: datetime) -> int:
    """A moment as journals write it."""
    return (moment - _EPOCH) // timedelta(microseconds=1)


def sent(
    id: str,
    event_key: str = "order.placed",
    subscriber: str = "ship",
    *,
    after: float = 0.0,
    replay_of: str | None = None,
    replay_id: str | None = None,
) -> SentRecord:
    """An envelope sent so many seconds after the start."""
    at = micros(START + timedelta(seconds=after))
    metadata: dict[str, Any] | None = None
    if replay_of is not None:
        metadata = {"matador.replay-of": replay_of, "matador.replay-id": replay_id}
    return SentRecord(
        id=id,
        event_key=event_key,
        subscriber=subscriber,
        queue="events",
        transport="memory",
        created_at=at,
        importance="should-investigate",
        data=msgspec.Raw(b'{"order_id":"1"}'),
        recorded_at=at,
        metadata=metadata,
        replay_id=replay_id,
    )


def delivered(
    id: str,
    outcome: Outcome = "success",
    event_key: str = "order.placed",
    subscriber: str = "ship",
    *,
    after: float = 1.0,
    attempt: int = 1,
    wait: float = 5.0,
    duration: float = 10.0,
    ran: bool = True,
    error_type: str | None = None,
    error: str | None = None,
    reason: str | None = None,
    queue: str = "events",
) -> DeliveryRecord:
    """An attempt that began so many seconds after the start."""
    at = micros(START + timedelta(seconds=after))
    return DeliveryRecord(
        id=id,
        event_key=event_key,
        subscriber=subscriber,
        queue=queue,
        transport="memory",
        attempt=attempt,
        outcome=outcome,
        started_at=at,
        duration_ms=duration,
        wait_ms=wait,
        since_created_ms=wait,
        created_at=at,
        importance="should-investigate",
        recorded_at=at,
        worker="w",
        ran=ran,
        error_type=error_type,
        error=error,
        reason=reason,
        dead_letter_kind="undeliverable" if outcome == "dead-letter" else None,
    )


def journal(folder: Path, name: str, records: Iterable[SentRecord | DeliveryRecord]) -> Path:
    """A segment of a journal with some records."""
    folder.mkdir(exist_ok=True)
    text = b"".join(encode_record(record) + b"\n" for record in records)
    (folder / f"{name}.jsonl").write_bytes(text)
    return folder


def ingest(lake: Lake, *batches: Sequence[SentRecord | DeliveryRecord]) -> None:
    """Ingest records into a lake, each group as a batch of its own."""
    folder = lake.path.with_name(f"{lake.path.name}-journal")
    for records in batches:
        count = len(list(folder.glob("*.jsonl"))) if folder.exists() else 0
        journal(folder, f"segment-{count:04d}", records)
        lake.ingest(folder)


ERRORS = [
    ("TimeoutError", "no answer from 10.0.0.{n}:443 within {n} s"),
    ("KeyError", "'customer-{n}'"),
    ("ValueError", "order {n} has no lines"),
]
LAST: list[Outcome] = ["success", "dead-letter", "discard"]
EVENTS = [("order.placed", "ship"), ("order.placed", "bill"), ("user.joined", "greet")]


def random_day(count: int, seed: int = 1) -> list[SentRecord | DeliveryRecord]:
    """Messages over some hours: most are handled, some retried, dead-lettered, or still waiting."""
    dice = random.Random(seed)
    records: list[SentRecord | DeliveryRecord] = []
    for number in range(count):
        id = f"{seed}-{number}"
        key, subscriber = dice.choice(EVENTS)
        at = dice.uniform(0, 3 * 3600)
        records.append(sent(id, key, subscriber, after=at))
        if dice.random() < 0.05:
            continue
        attempts = dice.choices([1, 2, 3], [0.8, 0.15, 0.05])[0]
        kind, text = dice.choice(ERRORS)
        for attempt in range(1, attempts + 1):
            last = attempt == attempts
            outcome: Outcome = dice.choices(LAST, [0.85, 0.1, 0.05])[0] if last else "retry"
            at += dice.expovariate(1 / 3)
            failed = outcome != "success"
            records.append(
                delivered(
                    id,
                    outcome,
                    key,
                    subscriber,
                    after=at,
                    attempt=attempt,
                    wait=dice.lognormvariate(3, 1),
                    duration=dice.lognormvariate(4, 0.7),
                    ran=outcome != "discard",
                    error_type=kind if failed else None,
                    error=text.format(n=dice.randrange(1, 255)) if failed else None,
                )
            )
    return records
