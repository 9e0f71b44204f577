"""Envelopes as records, those that were not sent by us too: decoded, whatever the codec."""

from __future__ import annotations

import base64
from datetime import UTC, datetime
from typing import Any

import msgspec

from matador.codec.base import Codec, Stamp
from matador.errors import DecodeError
from matador.model.envelope import Envelope
from matador.model.message import Delivery
from matador.model.text import storable_text
from matador.observe.journal.records import (
    REPLAY_ID,
    MalformedRecord,
    SentRecord,
    encode_record,
)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def micros(moment: datetime) -> int:
    """A time as the journal has it: whole microseconds since 1970."""
    delta = moment - _EPOCH
    return (delta.days * 86_400 + delta.seconds) * 1_000_000 + delta.microseconds


def replay_id(metadata: dict[str, Any]) -> str | None:
    """The replay an envelope belongs to, by its metadata."""
    found = metadata.get(REPLAY_ID)
    return found if isinstance(found, str) else None


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
    """What a delivery is in the journal, and whether it could be read. Never raises because of it:
    what is no envelope, or none that can be written as JSON, is kept as its bytes."""
    now = micros(stamp.now())
    problem = delivery.problem
    if problem is None:
        try:
            envelope = codec.decode(delivery.body, delivery.headers, stamp)
            data = _json(codec, envelope.data)
            before = msgspec.UNSET if envelope.before is None else _json(codec, envelope.before)
            sent = sent_record(envelope, data, before, queue, transport, now, source)
            return encode_record(sent), True
        except Exception as error:  # noqa: BLE001 - a sender decides what is in it
            problem = str(error) or type(error).__name__
    bad = malformed_record(delivery.body, queue, transport, problem, now, writer)
    return encode_record(bad), False


def malformed_record(
    body: bytes, queue: str, transport: str, reason: str, now: int, writer: str
) -> MalformedRecord:
    """Bytes that are not an envelope, in the journal."""
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
    """An envelope in the journal; ``data`` and ``before`` are its payloads as JSON."""
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
    """A payload that is not looked into, as JSON."""
    try:
        if codec.content_type == "application/json":
            msgspec.json.decode(raw)  # a line that is not JSON would be lost to every reader
            return (
                raw if b"\n" not in bytes(raw) else msgspec.Raw(msgspec.json.format(raw, indent=-1))
            )
        return msgspec.Raw(msgspec.json.encode(msgspec.msgpack.decode(raw)))
    except (ValueError, TypeError, RecursionError) as error:
        raise DecodeError(f"the payload cannot be written as JSON: {error}") from error
