"""Envelopes as records, those that were not sent by us too: decoded, whatever the codec."""

from __future__ import annotations

import base64
from datetime import UTC, datetime
from typing import Any

import msgspec

from matador.codec.base import Codec, Stamp
from matador.errors import DecodeError
from matador.model.envelope import Envelope
from matador.model.message import Headers
from matador.observe.journal.records import REPLAY_ID, MalformedRecord, SentRecord

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def micros(moment: datetime) -> int:
    """A time as the journal has it: whole microseconds since 1970."""
    delta = moment - _EPOCH
    return (delta.days * 86_400 + delta.seconds) * 1_000_000 + delta.microseconds


def replay_id(metadata: dict[str, Any]) -> str | None:
    """The replay an envelope belongs to, by its metadata."""
    found = metadata.get(REPLAY_ID)
    return found if isinstance(found, str) else None


def record_of(
    body: bytes,
    headers: Headers,
    *,
    queue: str,
    transport: str,
    codec: Codec,
    stamp: Stamp,
    writer: str,
    source: str,
) -> SentRecord | MalformedRecord:
    """What a stored message is in the journal."""
    now = micros(stamp.now())
    try:
        envelope = codec.decode(body, headers, stamp)
        data = _json(codec, envelope.data)
        before = msgspec.UNSET if envelope.before is None else _json(codec, envelope.before)
    except DecodeError as error:
        raw = base64.b64encode(body).decode()
        return MalformedRecord(queue, transport, str(error), raw, now, writer)
    return sent_record(envelope, data, before, queue, transport, now, source)


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
