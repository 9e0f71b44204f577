"""What the journal records: one JSON object a line, of one of four kinds.

The format is a contract with the data pipeline, which may run another version than the application:
fields are added, never changed or removed. Times are microseconds since 1970, UTC.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

from matador.policy.retry import Outcome

REPLAY_ID = "matador.replay-id"
"""The metadata key under which a replayed envelope has the id of its replay."""

REPLAY_OF = "matador.replay-of"
"""The metadata key under which a replayed envelope has the id of its original."""


class SentRecord(msgspec.Struct, frozen=True, tag="sent", tag_field="kind", omit_defaults=True):
    """An envelope was stored by the broker. ``data`` and ``before`` are the payload's JSON."""

    id: str
    event_key: str
    subscriber: str
    queue: str
    transport: str
    created_at: int
    importance: str
    data: msgspec.Raw
    recorded_at: int
    before: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET  # "raw or none" cannot be read
    scheduled_for: int | None = None
    correlation_id: str | None = None
    metadata: dict[str, Any] | None = None
    replay_id: str | None = None
    source: str | None = None

    @property
    def earlier(self) -> msgspec.Raw | None:
        """``before``, or None."""
        return None if self.before is msgspec.UNSET else self.before


class DeliveryRecord(
    msgspec.Struct, frozen=True, tag="delivery", tag_field="kind", omit_defaults=True
):
    """An attempt to handle an envelope ended. ``wait_ms`` counts from when it was due.

    ``ran`` is false if the callback was not started: refused, invalid, or unknown.
    """

    id: str
    event_key: str
    subscriber: str
    queue: str
    transport: str
    attempt: int
    outcome: Outcome
    started_at: int
    duration_ms: float
    wait_ms: float
    since_created_ms: float
    created_at: int
    importance: str
    recorded_at: int
    worker: str
    deliveries: int = 1
    ran: bool = True
    error_type: str | None = None
    error: str | None = None
    reason: str | None = None
    dead_letter_kind: str | None = None
    correlation_id: str | None = None
    replay_id: str | None = None


class MalformedRecord(
    msgspec.Struct, frozen=True, tag="malformed", tag_field="kind", omit_defaults=True
):
    """Bytes that are not an envelope arrived; ``raw`` is their base64."""

    queue: str
    transport: str
    reason: str
    raw: str
    recorded_at: int
    worker: str


class DroppedRecord(msgspec.Struct, frozen=True, tag="dropped", tag_field="kind"):
    """So many records could not be written before this one: the disk was full, or too slow."""

    count: int
    reason: str
    recorded_at: int
    worker: str


LAST_MOMENT = 253_402_300_799_999_999
"""The end of the year 9999, in microseconds: neither Python nor Spark can read a later time."""

Record: TypeAlias = SentRecord | DeliveryRecord | MalformedRecord | DroppedRecord

encode_record = msgspec.json.Encoder().encode
decode_record = msgspec.json.Decoder(Record).decode
