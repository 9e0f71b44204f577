"""The records of the journal: one JSON object per line, of one of four kinds.

The data pipeline that reads them may have another version than the application: fields may be
added, but never changed or removed. Times are microseconds since 1970, UTC.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeAlias

import msgspec

from matador.codec.base import Codec, Stamp
from matador.errors import DecodeError
from matador.model.envelope import Envelope
from matador.model.message import Delivery, Headers
from matador.model.text import error_text, storable_text
from matador.policy.retry import Outcome
from matador.runtime.facts import Attempt, Sent

REPLAY_ID = "matador.replay-id"
"""The metadata key for the id of the replay that sent an envelope."""

REPLAY_OF = "matador.replay-of"
"""The metadata key for the id of the original of a replayed envelope."""


class SentRecord(msgspec.Struct, frozen=True, tag="sent", tag_field="kind", omit_defaults=True):
    """A message was stored by the broker. ``data`` and ``before`` are JSON.

    ``event_key`` is ``Sent.name``, ``subscriber`` is ``Sent.receiver``, ``way`` the way in, and
    ``options`` are those of a job; see ``matador.runtime.facts``.
    """

    id: str
    event_key: str
    subscriber: str
    queue: str
    transport: str
    created_at: int
    importance: str
    data: msgspec.Raw
    recorded_at: int
    before: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET  # msgspec cannot decode Raw | None
    scheduled_for: int | None = None
    correlation_id: str | None = None
    metadata: dict[str, Any] | None = None
    replay_id: str | None = None
    source: str | None = None
    way: str = "event"
    options: dict[str, str | int] | None = None

    @property
    def earlier(self) -> msgspec.Raw | None:
        """``before``, or None."""
        return None if self.before is msgspec.UNSET else self.before


class DeliveryRecord(
    msgspec.Struct, frozen=True, tag="delivery", tag_field="kind", omit_defaults=True
):
    """An attempt to handle a message ended. ``wait_ms`` is the time since it was due.

    ``ran`` is false if the callback was not started: refused, invalid or unknown.
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
    way: str = "event"


class MalformedRecord(
    msgspec.Struct, frozen=True, tag="malformed", tag_field="kind", omit_defaults=True
):
    """A message could not be decoded; ``raw`` is its body in base64."""

    queue: str
    transport: str
    reason: str
    raw: str
    recorded_at: int
    worker: str


class DroppedRecord(msgspec.Struct, frozen=True, tag="dropped", tag_field="kind"):
    """``count`` records before this one were lost: the disk was full or did not respond, or they
    were deleted."""

    count: int
    reason: str
    recorded_at: int
    worker: str


LAST_MOMENT = 253_402_300_799_999_999
"""The end of the year 9999 in microseconds, the latest time that Python and Spark can read."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Record: TypeAlias = SentRecord | DeliveryRecord | MalformedRecord | DroppedRecord

encode_record = msgspec.json.Encoder().encode
decode_record = msgspec.json.Decoder(Record).decode


def micros(moment: datetime) -> int:
    """A time in whole microseconds since 1970."""
    delta = moment - _EPOCH
    return (delta.days * 86_400 + delta.seconds) * 1_000_000 + delta.microseconds


def replay_id(metadata: Mapping[str, Any] | None) -> str | None:
    """The id of the replay in the metadata of a message, if any."""
    found = metadata.get(REPLAY_ID) if metadata else None
    return found if isinstance(found, str) else None


# -- records of facts -----------------------------------------------------------------------------


def record_of_sent(
    sent: Sent, data: bytes | msgspec.Raw, before: bytes | None, now: int
) -> SentRecord:
    """The record of a message that was stored. ``before`` is JSON, ``data`` that of an event, too.

    Data of other messages that is not JSON is recorded as text.
    """
    kind, due, metadata, options = sent.kind, sent.due_at, sent.metadata, sent.options
    way = kind.way
    return SentRecord(
        sent.id,
        kind.name,
        kind.receiver,
        kind.queue,
        kind.transport,
        round(sent.created_at * 1_000_000),
        kind.importance,
        msgspec.Raw(data) if way == "event" else _json_or_text(bytes(data)),
        now,
        msgspec.UNSET if before is None else msgspec.Raw(before),
        None if due is None else round(due * 1_000_000),
        sent.correlation_id,
        dict(metadata) if metadata else None,
        replay_id(metadata),
        None,
        way,
        dict(options) if options else None,
    )


def record_of_attempt(attempt: Attempt, now: int, worker: str) -> DeliveryRecord | MalformedRecord:
    """The record of an attempt that has ended."""
    message, decision, error = attempt.message, attempt.decision, attempt.error
    receipt = message.delivery.receipt
    way = message.way
    if attempt.malformed and way == "event":  # other messages have a name and an id nevertheless
        reason = "" if error is None else error_text(error)
        body = message.delivery.body
        return malformed_record(body, receipt.queue, message.transport, reason, now, worker)
    started, created = round(attempt.started_at * 1_000_000), round(message.created_at * 1_000_000)
    due = message.due_at
    since_created = started - created
    waited = since_created if due is None else started - round(due * 1_000_000)
    reason = kind = None
    if decision is not None and (way == "event" or attempt.outcome == "dead-letter"):
        reason = storable_text(decision.reason)
        kind = attempt.dead_letter_kind if way == "event" else "undeliverable"
    return DeliveryRecord(
        message.id,
        message.name,
        message.receiver,
        receipt.queue,
        message.transport,
        message.attempt,
        attempt.outcome,
        started,
        round(attempt.duration * 1_000_000) / 1000,
        waited / 1000 if waited > 0 else 0.0,
        since_created / 1000 if since_created > 0 else 0.0,
        created,
        message.importance,
        now,
        worker,
        receipt.delivery_count,
        attempt.ran,
        None if error is None else storable_text(type(error).__name__),
        None if error is None else error_text(error),
        reason,
        kind,
        message.correlation_id,
        replay_id(message.metadata),
        way,
    )


def _json_or_text(data: bytes) -> msgspec.Raw:
    """A payload that fits in a line of JSON."""
    try:
        msgspec.json.decode(data)
        data.decode()
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return msgspec.Raw(msgspec.json.encode(data.decode(errors="replace")))
    if b"\n" in data or b"\r" in data:
        return msgspec.Raw(msgspec.json.format(data, indent=-1))
    return msgspec.Raw(data)


# -- lines of stored messages ---------------------------------------------------------------------


def line_of(
    delivery: Delivery,
    *,
    queue: str,
    transport: str,
    codec: Codec,
    stamp: Stamp,
    writer: str,
    source: str,
) -> tuple[bytes, bool]:
    """The line for a delivery, and whether it could be decoded.

    Never raises an error: a delivery that cannot be decoded or written as JSON is kept as raw
    bytes.
    """
    lines = LineWriter(queue, transport, codec, writer, source)
    line, attempts = lines.line(delivery.body, delivery.headers, delivery.problem, stamp)
    return line, attempts > 0


@dataclass(frozen=True, slots=True)
class LineWriter:
    """Writes the lines for messages of one queue, as they are stored there."""

    queue: str
    transport: str
    codec: Codec
    writer: str
    source: str

    def line(
        self, body: bytes, headers: Headers, problem: str | None, stamp: Stamp
    ) -> tuple[bytes, int]:
        """The line for a message, and the number of its attempt; 0 if it could not be decoded.

        Never raises an error: a message that cannot be decoded or written as JSON is kept as raw
        bytes.
        """
        now = micros(stamp.now())
        if problem is None:
            try:
                envelope = self.codec.decode(body, headers, stamp)
                data = _json(self.codec, envelope.data)
                before = envelope.before
                sent = sent_record(
                    envelope,
                    data,
                    msgspec.UNSET if before is None else _json(self.codec, before),
                    self.queue,
                    self.transport,
                    now,
                    self.source,
                )
                return encode_record(sent), max(1, envelope.docket.attempts)
            except Exception as error:  # noqa: BLE001 - the body may contain anything
                problem = str(error) or type(error).__name__
        bad = malformed_record(body, self.queue, self.transport, problem, now, self.writer)
        return encode_record(bad), 0


def malformed_record(
    body: bytes, queue: str, transport: str, reason: str, now: int, writer: str
) -> MalformedRecord:
    """The record of a message that could not be decoded."""
    raw = base64.b64encode(body).decode()
    return MalformedRecord(queue, transport, storable_text(reason), raw, now, writer)


def sent_record(
    envelope: Envelope[Any],
    data: msgspec.Raw,
    before: msgspec.Raw | msgspec.UnsetType,
    queue: str,
    transport: str,
    now: int,
    source: str | None = None,
) -> SentRecord:
    """The record of an envelope; ``data`` and ``before`` are JSON."""
    docket = envelope.docket
    scheduled = docket.scheduled_for
    return SentRecord(
        envelope.id,
        docket.event_key,
        docket.target_subscriber,
        queue,
        transport,
        micros(docket.created_at),
        docket.importance,
        data,
        now,
        before,
        None if scheduled is None else micros(scheduled),
        docket.correlation_id,
        docket.metadata or None,
        replay_id(docket.metadata),
        source,
    )


def _json(codec: Codec, raw: msgspec.Raw) -> msgspec.Raw:
    """A raw payload as JSON."""
    try:
        if codec.content_type == "application/json":
            msgspec.json.decode(raw)  # readers would skip a line that is not JSON
            return (
                raw if b"\n" not in bytes(raw) else msgspec.Raw(msgspec.json.format(raw, indent=-1))
            )
        return msgspec.Raw(msgspec.json.encode(msgspec.msgpack.decode(raw)))
    except (ValueError, TypeError, RecursionError) as error:
        raise DecodeError(f"the payload cannot be written as JSON: {error}") from error
