"""One message: its payload, its docket, and every attempt, found by id or correlation id."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from matador.codec.base import RawEnvelope
from matador.dashboard.desk import Desk, desk_of
from matador.dashboard.guard import read_number
from matador.dashboard.pages.errors import not_found
from matador.errors import DecodeError, HistoryError, InvalidEventError, QueueNotFoundError
from matador.events.dead_letters import Letter
from matador.model.event import EventType
from matador.model.message import StoredMessage
from matador.observe.history.records import FailedAttempt
from matador.observe.journal.records import DeliveryRecord, SentRecord
from matador.observe.journal.search import find_records
from matador.transports.base import Browsing
from matador.transports.clock import SystemClock

_LOOK_SECONDS = 2.0
_MOST_SHOWN = 50
_ANY_EVENT = EventType("any", "Any object at all.", dict)
_LONGEST_RAW = 4096


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of a message: where it is, short facts, and longer parts."""

    id: str
    where: str
    facts: list[tuple[str, Any]]
    parts: list[tuple[str, Any]]
    number: int | None = None


@dataclass(frozen=True, slots=True)
class Attempt:
    """One line of a message's history."""

    at: float
    id: str
    what: str
    style: str
    subscriber: str
    attempt: int | None = None
    duration_ms: float | None = None
    wait_ms: float | None = None
    error: str | None = None
    traceback: str | None = None
    worker: str | None = None


@dataclass(slots=True)
class Found:
    """What a search has found, and what could not be searched."""

    messages: list[Facts] = field(default_factory=list[Facts])
    attempts: list[Attempt] = field(default_factory=list[Attempt])
    notes: list[str] = field(default_factory=list[str])


async def messages(request: Request) -> Response:
    """A form, and what it finds."""
    desk = desk_of(request)
    wanted = request.query_params.get("id", "").strip()
    found = await _find(desk, wanted) if wanted else None
    return desk.renderer.page(request, "messages.html", wanted=wanted, found=found)


async def letter(request: Request) -> Response:
    """One dead letter, by its number in the index."""
    desk = desk_of(request)
    number = read_number(request.path_params["number"])
    entries = [] if number is None else desk.index.entries([number])
    one = await desk.index.letter(entries[0]) if entries else None
    if one is None:
        return not_found(request, "This dead letter is gone: redriven, purged, or expired.")
    found = Found([_letter_facts(desk, one, entries[0].number)])
    await _add_attempts(desk, one.id, found)
    found.attempts = [_with_traceback(one, attempt) for attempt in found.attempts]
    return desk.renderer.page(request, "messages.html", HTTPStatus.OK, wanted=one.id, found=found)


async def _find(desk: Desk, wanted: str) -> Found:
    found = Found()
    monitor, name = desk.monitor, desk.app.transport.name
    for entry in (await asyncio.to_thread(desk.index.find, wanted))[:_MOST_SHOWN]:
        one = await desk.index.letter(entry)
        if one is not None:
            found.messages.append(_letter_facts(desk, one, entry.number))
    if not monitor.browses_letters:
        found.notes.append(f"{name} cannot show dead letters, so they were not searched.")
    elif not desk.index.complete:
        found.notes.append("The dead letters are still being read; some may be missing here.")
    if not monitor.browses:
        found.notes.append(f"{name} cannot show waiting messages, so they were not searched.")
    elif monitor.takes_to_browse:
        found.notes.append(
            f"{name} shows waiting messages only by taking them for a moment, so they were not "
            f"searched. `matador messages show` does."
        )
    else:
        await _look_in_queues(desk, wanted, found)
    ids = [one.id for one in found.messages] or [wanted]
    await _add_attempts(desk, wanted if wanted not in ids and len(ids) > 1 else ids[0], found)
    return found


async def _look_in_queues(desk: Desk, wanted: str, found: Found) -> None:
    transport = desk.app.transport
    assert isinstance(transport, Browsing)
    until = time.monotonic() + _LOOK_SECONDS
    looked_at = 0
    for queue in desk.app.topology.queues:
        try:
            async for stored in transport.browse(desk.app.topology.full_name(queue.name)):
                looked_at += 1
                envelope = _decoded(desk, stored)
                correlated = None if envelope is None else envelope.docket.correlation_id
                id_ = stored.id if envelope is None else envelope.id
                if id_.startswith(wanted) or correlated == wanted:
                    found.messages.append(_waiting_facts(desk, stored, envelope))
                if len(found.messages) >= _MOST_SHOWN:
                    return
                if looked_at % 100 == 0 and time.monotonic() > until:
                    found.notes.append(
                        f"Only the first {looked_at:,} waiting messages were searched."
                    )
                    return
        except QueueNotFoundError:
            continue


async def _add_attempts(desk: Desk, wanted: str, found: Found) -> None:
    """Add what the journal and the history know."""
    seen: set[tuple[str, int | None, int]] = set()
    journal = desk.journal
    if journal is not None:
        try:
            records, everything = await asyncio.to_thread(
                find_records, journal.folder, wanted, _LOOK_SECONDS
            )
        except OSError as error:
            found.notes.append(f"The journal cannot be read: {error}")
            records, everything = [], True
        if not everything:
            found.notes.append("The journal is long: only its latest part was searched.")
        for record in records:
            if isinstance(record, SentRecord):
                found.attempts.append(
                    Attempt(record.recorded_at / 1e6, record.id, "sent", "sent", record.subscriber)
                )
                if not any(one.id == record.id for one in found.messages):
                    found.messages.append(_sent_facts(desk, record))
            elif isinstance(record, DeliveryRecord):
                attempt = _of_delivery(record)
                seen.add((record.id, record.attempt, round(attempt.at)))
                found.attempts.append(attempt)
    else:
        found.notes.append(
            "The application has no journal: only failed attempts are known, and only of workers "
            "that run with --history."
        )
    try:
        failures = await asyncio.to_thread(desk.store.failures, wanted)
    except HistoryError as error:
        found.notes.append(str(error))
        failures = []
    known = {(one.id, one.attempt, round(one.at)): at for at, one in enumerate(found.attempts)}
    for one in failures:
        key = (one.id, one.attempt, round(one.started_at))
        if key not in seen:
            found.attempts.append(_of_failure(one))
            seen.add(key)
        elif one.traceback and key in known:
            found.attempts[known[key]] = _of_failure(one)
    found.attempts.sort(key=lambda one: one.at)


def _with_traceback(one: Letter, attempt: Attempt) -> Attempt:
    docket = None if one.envelope is None else one.envelope.docket
    if attempt.traceback is None and docket is not None and attempt.attempt == docket.attempts:
        return replace(attempt, traceback=one.stored.traceback)
    return attempt


def _letter_facts(desk: Desk, one: Letter, number: int) -> Facts:
    stored = one.stored
    facts: list[tuple[str, Any]] = [
        ("died", stored.stored_at),
        ("reason", stored.reason),
        ("error type", stored.error_type),
        ("problem", one.problem),
        *_docket_facts(one.envelope),
    ]
    parts = _parts(desk, one.envelope, one.payload, one.before, stored)
    if stored.traceback:
        parts.append(("traceback", stored.traceback))
    return Facts(one.id, f"dead letter in {stored.queue}", _given(facts), parts, number)


def _waiting_facts(desk: Desk, stored: StoredMessage, envelope: RawEnvelope | None) -> Facts:
    facts: list[tuple[str, Any]] = [
        ("state", stored.state),
        ("sent", stored.stored_at),
        ("due", stored.due_at),
        ("deliveries", stored.delivery_count),
        *_docket_facts(envelope),
    ]
    data = before = None
    if envelope is not None:
        data, before = _plain(desk, envelope.data), _plain(desk, envelope.before)
    parts = _parts(desk, envelope, data, before, stored)
    id_ = stored.id if envelope is None else envelope.id
    return Facts(id_, f"{stored.state} in {stored.queue}", _given(facts), parts)


def _sent_facts(desk: Desk, record: SentRecord) -> Facts:
    facts: list[tuple[str, Any]] = [
        ("event", record.event_key),
        ("subscriber", record.subscriber),
        ("queue", record.queue),
        ("created", record.created_at / 1e6),
        ("correlation id", record.correlation_id),
    ]
    parts = [("payload", desk.masking.shown(_json(record.data)))]
    if record.metadata:
        parts.append(("metadata", desk.masking.shown(record.metadata)))
    return Facts(
        record.id, "not waiting and no dead letter now; from the journal", _given(facts), parts
    )


def _docket_facts(envelope: RawEnvelope | None) -> list[tuple[str, Any]]:
    if envelope is None:
        return []
    docket = envelope.docket
    return [
        ("event", docket.event_key),
        ("description", docket.event_description),
        ("subscriber", docket.target_subscriber),
        ("importance", docket.importance),
        ("attempts", docket.attempts),
        ("created", docket.created_at),
        ("scheduled for", docket.scheduled_for),
        ("original queue", docket.original_queue),
        ("correlation id", docket.correlation_id),
        ("first error", docket.first_error),
        ("last error", None if docket.last_error == docket.first_error else docket.last_error),
    ]


def _parts(
    desk: Desk, envelope: RawEnvelope | None, data: Any, before: Any, stored: StoredMessage
) -> list[tuple[str, Any]]:
    if envelope is None or data is None:
        if desk.masking:
            return [("body", "(not shown: it cannot be decoded, so its fields cannot be masked)")]
        return [("body", _raw(stored.body))]
    made: list[tuple[str, Any]] = [("payload", desk.masking.shown(data))]
    if before is not None:
        made.append(("before", desk.masking.shown(before)))
    if envelope.docket.metadata:
        made.append(("metadata", desk.masking.shown(envelope.docket.metadata)))
    return made


def _raw(body: bytes) -> str:
    text = body[:_LONGEST_RAW].decode("utf-8", "backslashreplace")
    more = len(body) - _LONGEST_RAW
    return text + (f"\n… {more:,} more bytes" if more > 0 else "")


def _decoded(desk: Desk, stored: StoredMessage) -> RawEnvelope | None:
    try:
        return desk.app.codec.decode(stored.body, stored.headers, SystemClock())
    except DecodeError:
        return None


def _plain(desk: Desk, raw: msgspec.Raw | None) -> Any:
    try:
        return None if raw is None else desk.app.codec.decode_payload(_ANY_EVENT, raw)
    except InvalidEventError:
        return None


def _json(raw: msgspec.Raw) -> Any:
    try:
        return msgspec.json.decode(raw)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return "(cannot be read)"


def _given(facts: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
    return [(name, value) for name, value in facts if value not in (None, "")]


_STYLES = {"success": "good", "retry": "retry", "dead-letter": "bad", "discard": "idle"}


def _of_delivery(record: DeliveryRecord) -> Attempt:
    error = ": ".join(one for one in (record.error_type, record.error or record.reason) if one)
    return Attempt(
        record.started_at / 1e6,
        record.id,
        record.outcome,
        _STYLES.get(record.outcome, "idle"),
        record.subscriber,
        record.attempt,
        record.duration_ms,
        record.wait_ms,
        error or None,
        None,
        record.worker,
    )


def _of_failure(one: FailedAttempt) -> Attempt:
    error = ": ".join(part for part in (one.error_type, one.error) if part)
    return Attempt(
        one.started_at,
        one.id,
        one.outcome,
        _STYLES.get(one.outcome, "idle"),
        one.subscriber,
        one.attempt,
        one.duration_ms,
        one.wait_ms,
        error or None,
        one.traceback,
        one.worker,
    )
