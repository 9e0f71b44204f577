"""Records of jobs, calls and messages, from the plain values that their ways in report."""

from __future__ import annotations

from typing import Any, cast

import msgspec

from matador.model.text import storable_text
from matador.observe.journal.records import DeliveryRecord, SentRecord, replay_id
from matador.policy.retry import Outcome
from matador.runtime.recorder import AttemptedMessage, SentMessage

_IMPORTANCE = "should-investigate"  # only events say how important they are
_UNREADABLE = (msgspec.MsgspecError, ValueError, RecursionError)
_DEAD: Outcome = "dead-letter"


def sent_message_record(message: SentMessage, now: int) -> SentRecord:
    """The record of a message that was stored."""
    metadata = _metadata(message.metadata)
    return SentRecord(
        message.id,
        message.name,
        message.receiver,
        message.queue,
        message.transport,
        _micros(message.created_at),
        _IMPORTANCE,
        _json(message.data),
        now,
        scheduled_for=None if message.due_at is None else _micros(message.due_at),
        correlation_id=message.correlation_id,
        metadata=metadata or None,
        replay_id=replay_id(metadata),
        way=message.way,
        options=dict(message.options) if message.options else None,
    )


def attempt_record(attempt: AttemptedMessage, now: int, worker: str) -> DeliveryRecord:
    """The record of an attempt that has ended."""
    started, created = attempt.started_at, attempt.created_at
    due = created if attempt.due_at is None else attempt.due_at
    return DeliveryRecord(
        attempt.id,
        attempt.name,
        attempt.receiver,
        attempt.queue,
        attempt.transport,
        attempt.attempt,
        attempt.outcome,
        _micros(started),
        _milliseconds(attempt.duration),
        _milliseconds(started - due),
        _milliseconds(started - created),
        _micros(created),
        _IMPORTANCE,
        now,
        worker,
        attempt.deliveries,
        attempt.ran,
        _text(attempt.error_type),
        _text(attempt.error),
        _text(attempt.reason),
        "undeliverable" if attempt.outcome == _DEAD else None,
        attempt.correlation_id,
        replay_id(_metadata(attempt.metadata)),
        attempt.way,
    )


def _micros(seconds: float) -> int:
    return round(seconds * 1_000_000)


def _milliseconds(seconds: float) -> float:
    return round(seconds * 1_000_000) / 1000 if seconds > 0 else 0.0


def _text(text: str | None) -> str | None:
    return None if text is None else storable_text(text)


def _metadata(given: bytes | None) -> dict[str, Any]:
    if given is None:
        return {}
    try:
        found = msgspec.json.decode(given)
    except _UNREADABLE:
        return {}
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}


def _json(data: bytes) -> msgspec.Raw:
    """A payload that fits in a line of JSON. What is not JSON becomes text."""
    try:
        msgspec.json.decode(data)
        data.decode()
    except _UNREADABLE:
        return msgspec.Raw(msgspec.json.encode(data.decode(errors="replace")))
    if b"\n" in data or b"\r" in data:
        return msgspec.Raw(msgspec.json.format(data, indent=-1))
    return msgspec.Raw(data)
