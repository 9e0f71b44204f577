"""Messages: the latest attempts, and one with its payload and attempts, by id or correlation id."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from matador.dashboard.desk import Desk, desk_of, within
from matador.dashboard.guard import read_number
from matador.dashboard.letter_index import IndexedLetter
from matador.dashboard.pages.errors import not_found
from matador.dashboard.pages.queues import browsed, taken
from matador.dashboard.render import query
from matador.errors import HistoryError, QueueNotFoundError
from matador.jobs import Job
from matador.model.message import StoredMessage
from matador.model.text import storable_text
from matador.observe.history.records import FailedAttempt
from matador.observe.journal.records import DeliveryRecord, SentRecord
from matador.observe.journal.search import find_records, latest_records
from matador.runtime.dead_letters import Contents, Letter

_LOOK_SECONDS = 2.0
_MOST_SHOWN = 50
_LONGEST_RAW = 4096
_NO_JOURNAL = (
    "There is no journal: only failed attempts are known, and only of workers that run with "
    "--history."
)


@dataclass(frozen=True, slots=True)
class Facts:
    """The data about a message: its location, short facts, and longer parts."""

    id: str
    where: str
    facts: list[tuple[str, Any]]
    parts: list[tuple[str, Any]]
    number: int | None = None
    editable: bool = False
    link: str = ""


@dataclass(frozen=True, slots=True)
class AttemptRow:
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
    name: str = ""


@dataclass(slots=True)
class MessageSearch:
    """The results of a search, and notes about what could not be searched."""

    messages: list[Facts] = field(default_factory=list[Facts])
    attempts: list[AttemptRow] = field(default_factory=list[AttemptRow])
    notes: list[str] = field(default_factory=list[str])


async def messages(request: Request) -> Response:
    """A search form with its results, or the latest attempts."""
    desk = desk_of(request)
    wanted = request.query_params.get("id", "").strip()
    found = await _find(desk, wanted) if wanted else await _latest(desk)
    return desk.renderer.page(
        request,
        "messages.html",
        wanted=wanted,
        found=found,
        queues=[one.name for one in desk.sources.queues],
    )


async def letter(request: Request) -> Response:
    """One dead letter, by its number in the index."""
    desk = desk_of(request)
    number = read_number(request.path_params["number"])
    entries = [] if number is None else desk.index.entries([number])
    one = await desk.index.letter(entries[0]) if entries else None
    if one is None:
        return not_found(request, "This dead letter is gone: redriven, purged, or expired.")
    found = MessageSearch([_letter_facts(desk, one, entries[0])])
    await _add_attempts(desk, one.id, found)
    found.attempts = [_with_traceback(one, attempt) for attempt in found.attempts]
    values: dict[str, Any] = {"wanted": one.id, "found": found, "queues": []}
    return desk.renderer.page(request, "messages.html", HTTPStatus.OK, **values)


async def _find(desk: Desk, wanted: str) -> MessageSearch:
    found = MessageSearch()
    for entry in (await asyncio.to_thread(desk.index.find, wanted))[:_MOST_SHOWN]:
        one = await desk.index.letter(entry)
        if one is not None:
            found.messages.append(_letter_facts(desk, one, entry))
    if not desk.monitor.is_everything_read:
        found.notes.append("The dead letters are still being read; some may be missing here.")
    for source in desk.sources.all:
        name = source.transport.name
        if not source.browses_letters:
            found.notes.append(f"{name} cannot show dead letters, so they were not searched.")
        if not source.browses:
            found.notes.append(f"{name} cannot show waiting messages, so they were not searched.")
        elif source.takes_to_browse:
            found.notes.append(taken(name))
        if (jobs := source.jobs) is not None and jobs.capabilities.find:
            job = await within(jobs.get(wanted))
            if job is not None and not any(one.id == job.id for one in found.messages):
                found.messages.append(_job_facts(desk, job))
    found.notes = list(dict.fromkeys(found.notes))
    await _look_in_queues(desk, wanted, found)
    ids = [one.id for one in found.messages] or [wanted]
    await _add_attempts(desk, wanted if wanted not in ids and len(ids) > 1 else ids[0], found)
    return found


async def _look_in_queues(desk: Desk, wanted: str, found: MessageSearch) -> None:
    until = time.monotonic() + _LOOK_SECONDS
    looked_at = 0
    for queue in desk.sources.queues:
        source = queue.source
        if not source.browses or source.takes_to_browse:
            continue
        if source in desk.monitor.snapshot.problems:
            continue
        try:
            async for stored, contents in browsed(queue):
                looked_at += 1
                fits = contents.id.startswith(wanted) or contents.correlation_id == wanted
                if fits and not any(one.id == contents.id for one in found.messages):
                    found.messages.append(_waiting_facts(desk, stored, contents))
                if len(found.messages) >= _MOST_SHOWN:
                    return
                if looked_at % 100 == 0 and time.monotonic() > until:
                    found.notes.append(
                        f"Only the first {looked_at:,} waiting messages were searched."
                    )
                    return
        except QueueNotFoundError:
            continue


async def _latest(desk: Desk) -> MessageSearch:
    """The latest known attempts, the latest first."""
    found, journal = MessageSearch(), desk.sources.journal
    try:
        if journal is not None:
            records = await asyncio.to_thread(latest_records, journal.folder, _MOST_SHOWN)
            found.attempts = [_of_delivery(one) for one in records]
            found.notes.append("From the journal, which workers write about once a minute.")
        else:
            failures = await asyncio.to_thread(desk.store.latest_failures, _MOST_SHOWN)
            found.attempts = [_of_failure(one) for one in failures]
            found.notes.append(_NO_JOURNAL)
    except (HistoryError, OSError) as error:
        found.notes.append(f"The latest attempts cannot be read: {error}")
    return found


async def attempts_of(desk: Desk, wanted: str) -> MessageSearch:
    """The known attempts of a message."""
    found = MessageSearch()
    await _add_attempts(desk, wanted, found)
    return found


async def _add_attempts(desk: Desk, wanted: str, found: MessageSearch) -> None:
    """Add the attempts in the journal and the history."""
    wanted = storable_text(wanted)  # as they have recorded it
    seen: set[tuple[str, int | None, int]] = set()
    journal = desk.sources.journal
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
                    AttemptRow(
                        record.recorded_at / 1e6, record.id, "sent", "sent", record.subscriber
                    )
                )
                if not any(one.id == record.id for one in found.messages):
                    found.messages.append(_sent_facts(desk, record))
            elif isinstance(record, DeliveryRecord):
                attempt = _of_delivery(record)
                seen.add((record.id, record.attempt, round(attempt.at)))
                found.attempts.append(attempt)
    else:
        found.notes.append(_NO_JOURNAL)
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


def _with_traceback(one: Letter, attempt: AttemptRow) -> AttemptRow:
    if attempt.traceback is None and attempt.attempt == one.attempts:
        return replace(attempt, traceback=one.traceback)
    return attempt


def _letter_facts(desk: Desk, one: Letter, entry: IndexedLetter) -> Facts:
    facts: list[tuple[str, Any]] = [
        ("died", one.stored.stored_at),
        ("reason", one.reason),
        ("error type", one.error_type),
        ("problem", one.problem),
        *_facts_of(one.contents),
    ]
    parts = _parts(desk, one.contents, one.stored)
    if one.traceback:
        parts.append(("traceback", one.traceback))
    where = f"dead letter in {one.stored.queue}"
    return Facts(one.id, where, _given(facts), parts, entry.number, one.problem is None)


def _waiting_facts(desk: Desk, stored: StoredMessage, contents: Contents) -> Facts:
    facts: list[tuple[str, Any]] = [
        ("state", stored.state),
        ("sent", stored.stored_at),
        ("due", stored.due_at),
        ("deliveries", stored.delivery_count),
        *_facts_of(contents),
    ]
    where = f"{stored.state} in {stored.queue}"
    return Facts(contents.id, where, _given(facts), _parts(desk, contents, stored))


def _job_facts(desk: Desk, job: Job[Any]) -> Facts:
    facts = [("name", job.name), ("attempts", job.attempts), ("created", job.created_at)]
    link = f"/jobs/job?{query({'queue': job.queue, 'id': job.id})}"
    parts = [("data", desk.masking.shown(job.data))]
    return Facts(job.id, f"{job.status} job of {job.queue}", facts, parts, link=link)


def _sent_facts(desk: Desk, record: SentRecord) -> Facts:
    facts: list[tuple[str, Any]] = [
        ("name", record.event_key),
        ("receiver", record.subscriber),
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


def _facts_of(contents: Contents) -> list[tuple[str, Any]]:
    docket = None if contents.envelope is None else contents.envelope.docket
    last = contents.last_error
    return [
        ("name", contents.name),
        ("description", docket and docket.event_description),
        ("receiver", contents.receiver),
        ("importance", docket and docket.importance),
        ("attempts", contents.attempts),
        ("created", contents.created_at),
        ("scheduled for", docket and docket.scheduled_for),
        ("original queue", contents.original_queue),
        ("correlation id", contents.correlation_id),
        ("first error", contents.first_error),
        ("last error", None if last == contents.first_error else last),
    ]


def _parts(desk: Desk, contents: Contents, stored: StoredMessage) -> list[tuple[str, Any]]:
    mask, data = desk.masking.shown, contents.plain()
    if contents.problem is not None:
        if desk.masking:
            return [("body", "(not shown: it cannot be decoded, so its fields cannot be masked)")]
        return [("body", _raw(stored.body))]
    made: list[tuple[str, Any]] = [("payload", mask(data))]
    before = None if contents.envelope is None else contents.envelope.before
    if before is not None:
        made.append(("before", mask(_json(before))))
    if contents.metadata:
        made.append(("metadata", mask(dict(contents.metadata))))
    return made


def _raw(body: bytes) -> str:
    text = body[:_LONGEST_RAW].decode("utf-8", "backslashreplace")
    more = len(body) - _LONGEST_RAW
    return text + (f"\n… {more:,} more bytes" if more > 0 else "")


def _json(raw: msgspec.Raw) -> Any:
    try:
        return msgspec.json.decode(raw)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return "(cannot be read)"


def _given(facts: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
    return [(name, value) for name, value in facts if value not in (None, "")]


_STYLES = {"success": "good", "retry": "retry", "dead-letter": "bad", "discard": "idle"}


def _of_delivery(record: DeliveryRecord) -> AttemptRow:
    error = ": ".join(one for one in (record.error_type, record.error or record.reason) if one)
    return AttemptRow(
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
        record.event_key,
    )


def _of_failure(one: FailedAttempt) -> AttemptRow:
    error = ": ".join(part for part in (one.error_type, one.error) if part)
    return AttemptRow(
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
        one.event_key,
    )
