"""How messages, dead letters, jobs and schedules look: in tables, in full and as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from matador.cli.output import number_cell, table
from matador.cli.terminal import one_line
from matador.events.way import EventReader
from matador.jobs import Job, QueueStats, Schedule
from matador.model.job import JOB_STATUSES, JobStatus
from matador.model.message import StoredMessage
from matador.model.topology import DeadLetterKind, WorkQueue
from matador.observe.sources import Source
from matador.runtime.dead_letters import Contents, delivery_of

_SHORT_ID = 8
_DUMPED = 4096
_LINE = 16
_LONGEST = 500  # characters of a value in a table, which cuts it to the width of the terminal
_JOB_COLUMNS: dict[JobStatus, tuple[str, str, str]] = {
    "waiting": ("added", "created_at", "data"),
    "delayed": ("due", "scheduled_for", "data"),
    "active": ("started", "processed_at", "progress"),
    "completed": ("completed", "completed_at", "result"),
    "failed": ("failed", "failed_at", "error"),
}
"""For each status: the column with a time, the field it shows, and the field in the last column."""


# -- messages and dead letters ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MessageView:
    """A message that is stored in a queue of a source, as its way in reads it.

    ``queue`` is the work queue that it is in, or was in. Only dead letters have a ``kind``.
    """

    source: Source
    stored: StoredMessage
    queue: WorkQueue
    contents: Contents
    kind: DeadLetterKind | None = None

    @classmethod
    def of(
        cls,
        source: Source,
        stored: StoredMessage,
        queue: WorkQueue,
        kind: DeadLetterKind | None = None,
    ) -> MessageView:
        """Read a stored message."""
        full_name = source.topology.full_name(queue.name)
        contents = source.reader.read(delivery_of(stored), full_name)
        return cls(source, stored, queue, contents, kind)

    @property
    def id(self) -> str:
        """The message's own id, or the transport's."""
        return self.contents.id

    @property
    def attempts(self) -> int:
        """The number of attempts so far. An event that waits has the number of its next one."""
        made = self.contents.attempts
        next_one = self.kind is None and self.contents.envelope is not None
        return max(0, made - 1) if next_one else made

    @property
    def before(self) -> Any:
        """The previous state, of change events."""
        reader, envelope = self.source.reader, self.contents.envelope
        if not isinstance(reader, EventReader) or envelope is None:
            return None
        return reader.plain(envelope.before)


def messages_table(messages: Sequence[MessageView]) -> Table:
    """Messages that wait, one per line."""
    columns = ("id", "message", "receiver", "attempts", "state", "due", "queue")
    made = table(*columns, right=("attempts",), whole=("id", "state", "due"))
    length = _id_length(messages)
    for one in messages:
        due = when(one.stored.due_at or one.stored.stored_at)
        made.add_row(*_what(one, length), state_of(one.stored.state), due, one.queue.name)
    return made


def dead_letters_table(letters: Sequence[MessageView]) -> Table:
    """Dead letters, one per line."""
    columns = ("id", "message", "receiver", "attempts", "died", "queue", "why")
    made = table(*columns, right=("attempts",), whole=("id", "died", "queue"))
    length = _id_length(letters)
    for one in letters:
        usual = one.kind in ("undeliverable", "dlq")
        queue = one.queue.name if usual else f"{one.queue.name} ({one.kind})"
        made.add_row(*_what(one, length), when(one.stored.stored_at), queue, cut(_why(one)))
    return made


def _what(message: MessageView, length: int) -> tuple[Text, Text | str, str, str]:
    """The cells that tables of messages and of dead letters begin with."""
    contents, id_ = message.contents, Text(one_line(message.id[:length]), "bold")
    if contents.problem is not None:
        return id_, Text("undecodable", "yellow"), "", ""
    return id_, one_line(contents.name), one_line(contents.receiver), str(message.attempts)


def state_of(state: str) -> str:
    """The word that all commands use for a state of the transport."""
    return "waiting" if state == "ready" else state


def _why(letter: MessageView) -> str:
    """Why it is a dead letter, in one line: the last error with its type, or the reason."""
    last, kind = letter.contents.last_error, letter.stored.error_type
    text = last or letter.stored.reason or letter.contents.problem or ""
    line = text.strip().partition("\n")[0]
    name = (kind or "").rpartition(".")[2]
    return f"{name}: {line}" if last and name and not line.startswith(name) else line


def message_json(message: MessageView, full: bool) -> dict[str, Any]:
    """A message as ``--json`` prints it. ``full`` adds docket and payload, or the body."""
    stored, contents = message.stored, message.contents
    decodable = contents.problem is None
    made: dict[str, Any] = {
        "id": message.id,
        "queue": message.queue.name,
        "way": message.source.way,
        "decodable": decodable,
        "event": contents.name if decodable else None,
        "subscriber": contents.receiver if decodable else None,
        "attempts": message.attempts if decodable else None,
        "last_error": contents.last_error,
    }
    if message.kind is not None:
        made |= {
            "kind": message.kind,
            "dead_letter_queue": stored.queue,
            "died_at": iso(stored.stored_at),
            "reason": stored.reason,
            "error_type": stored.error_type,
            "held": stored.state == "in-flight",
        }
    else:
        made |= {
            "state": state_of(stored.state),
            "sent_at": iso(stored.stored_at),
            "due_at": iso(stored.due_at),
            "deliveries": stored.delivery_count,
            "priority": stored.priority,
            "ordering_key": stored.ordering_key,
        }
    return made | _contents(message) if full else made


def _contents(message: MessageView) -> dict[str, Any]:
    stored, contents = message.stored, message.contents
    made = {"headers": dict(stored.headers), "traceback": stored.traceback}
    if contents.problem is not None:
        return {
            **made,
            "problem": contents.problem,
            "body": stored.body.decode("utf-8", "backslashreplace"),
            "body_hex": stored.body.hex(),
        }
    if contents.envelope is not None:
        made["docket"] = msgspec.to_builtins(contents.envelope.docket)
    else:
        made |= {"correlation_id": contents.correlation_id, "metadata": dict(contents.metadata)}
    made["data"] = contents.plain()
    before = message.before
    return made if before is None else {**made, "before": before}


def message_in_full(message: MessageView) -> RenderableType:
    """Everything about a message, for people."""
    stored, contents = message.stored, message.contents
    details = Details(message.id)
    fact, part = details.fact, details.part
    fact("queue", stored.queue)
    if stored.reason is None:
        fact("state", state_of(stored.state))
        fact("sent", iso(stored.stored_at))
        fact("due", iso(stored.due_at))
    else:
        fact("died", iso(stored.stored_at))
        fact("reason", stored.reason)
        fact("error type", stored.error_type)
    if stored.traceback is not None:
        part("traceback", stored.traceback.rstrip())
    if contents.problem is not None:
        fact("problem", contents.problem)
        fact("bytes", f"{len(stored.body):,}")
        part("body", _hexdump(stored.body))
        return details.rendered
    fact("message", contents.name)
    docket = None if contents.envelope is None else contents.envelope.docket
    if docket is not None:
        fact("description", docket.event_description)
    fact("receiver", contents.receiver)
    if docket is not None:
        fact("importance", docket.importance)
    fact("attempts", message.attempts)
    fact("created", iso(contents.created_at))
    if docket is not None:
        fact("scheduled for", iso(docket.scheduled_for))
    fact("original queue", contents.original_queue)
    fact("correlation id", contents.correlation_id)
    fact("first error", contents.first_error)
    if contents.last_error != contents.first_error:
        fact("last error", contents.last_error)
    before, data = message.before, contents.plain()
    metadata = dict(contents.metadata) or None
    for name, value in (("metadata", metadata), ("before", before), ("data", data)):
        details.json(name, value)
    if data is None and contents.envelope is not None:
        part("data, not an object", _hexdump(bytes(contents.envelope.data)))
    return details.rendered


def _id_length(messages: Sequence[MessageView]) -> int:
    """The number of characters that tell the ids apart."""
    ids = [one.id for one in messages]
    for length in range(_SHORT_ID, 64, 4):
        if len({one[:length] for one in ids}) == len(set(ids)):
            return length
    return 64


def _hexdump(body: bytes) -> str:
    lines: list[str] = []
    for start in range(0, min(len(body), _DUMPED), _LINE):
        line = body[start : start + _LINE]
        readable = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in line)
        lines.append(f"{start:06x}  {line.hex(' '):<{_LINE * 3}} {readable}")
    if len(body) > _DUMPED:
        lines.append(f"… {len(body) - _DUMPED:,} more bytes; --json prints all")
    return "\n".join(lines) or "(empty)"


# -- jobs and schedules ----------------------------------------------------------------------------


def jobs_table(jobs: Sequence[Job[Any]]) -> Table:
    """Jobs, all in the same state, one per line."""
    time, field, last = _JOB_COLUMNS[jobs[0].status]
    made = table("id", "name", "attempts", time, last, right=("attempts",), whole=("id", time))
    for job in jobs:
        made.add_row(
            Text(one_line(job.id), "bold"),
            one_line(job.name),
            f"{job.attempts}/{job.max_attempts}",
            when(getattr(job, field)),
            _value(getattr(job, last)),
        )
    return made


def _value(value: Any) -> Text:
    if value is None:
        return Text()
    return cut(
        value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)
    )


def job_in_full(job: Job[Any]) -> RenderableType:
    """Everything about a job."""
    details = Details(job.id)
    details.fact("name", job.name)
    details.fact("queue", job.queue)
    details.fact("status", job.status)
    details.fact("attempts", f"{job.attempts} of {job.max_attempts}")
    details.fact("priority", job.priority)
    details.fact("added", iso(job.created_at))
    details.fact("due", iso(job.scheduled_for))
    details.fact("last attempt", iso(job.processed_at))
    details.fact("completed", iso(job.completed_at))
    details.fact("failed", iso(job.failed_at))
    if job.error:
        details.part("error", job.error.rstrip())
    details.json("progress", job.progress)
    details.json("metadata", dict(job.metadata) or None)
    details.json("data", job.data)
    details.json("result", job.result)
    return details.rendered


def stats_table(queue: str, stats: QueueStats) -> Table:
    """The number of jobs in each state; – if the provider does not report it."""
    made = table("queue", *JOB_STATUSES, right=JOB_STATUSES)
    numbers = _numbers(stats).items()
    cells = [number_cell(one, "bold red" if name == "failed" else "") for name, one in numbers]
    made.add_row(Text(queue + (" (paused)" if stats.paused else ""), "bold"), *cells)
    return made


def stats_json(queue: str, stats: QueueStats) -> dict[str, Any]:
    """The numbers as ``--json`` prints them; null if the provider does not report them."""
    return {"queue": queue, **_numbers(stats), "paused": stats.paused}


def _numbers(stats: QueueStats) -> dict[str, int | None]:
    return {
        status: None if status in stats.unknown else getattr(stats, status)
        for status in JOB_STATUSES
    }


def schedules_table(schedules: Sequence[Schedule]) -> Table:
    """Recurring jobs, one per line."""
    made = table("key", "name", "when", "next", "data", whole=("key", "next"))
    for one in schedules:
        made.add_row(
            Text(one_line(one.key), "bold"),
            one_line(one.name),
            one_line(_recurrence(one)),
            when(one.next_at),
            _value(one.data),
        )
    return made


def _recurrence(schedule: Schedule) -> str:
    if schedule.cron is not None:
        return f"{schedule.cron} ({schedule.timezone})"
    return "" if schedule.every is None else f"every {schedule.every:g} s"


# -- shared ----------------------------------------------------------------------------------------


class Details:
    """Everything about one message or job, for people: short facts, then longer parts."""

    def __init__(self, title: str) -> None:
        self._facts = Table(box=None, show_header=False, pad_edge=False)
        self._facts.add_column(style="dim")
        self._facts.add_column(overflow="fold")
        self._parts: list[RenderableType] = [Text(one_line(title), "bold"), self._facts]

    def fact(self, name: str, value: object) -> None:
        """Add a line, unless the value is missing."""
        if value not in (None, "", {}):
            self._facts.add_row(name, Text(str(value)))

    def part(self, name: str, text: str) -> None:
        """Add an indented text."""
        self._parts.extend([Text(name, "dim"), Padding(Text(text), (0, 2))])

    def json(self, name: str, value: Any) -> None:
        """Add a value as JSON, unless it is None."""
        if value is not None:
            self.part(name, json.dumps(value, indent=2, default=str, ensure_ascii=False))

    @property
    def rendered(self) -> RenderableType:
        """All of it."""
        return Padding(Group(*self._parts), (0, 0, 1, 0))


def iso(moment: datetime | None) -> str | None:
    """A time for machines and for details."""
    return None if moment is None else moment.astimezone(UTC).isoformat(timespec="seconds")


def when(moment: datetime | None) -> str:
    """The time of day if it is today, otherwise with the date."""
    if moment is None:
        return ""
    local = moment.astimezone()
    today = local.date() == datetime.now(local.tzinfo).date()
    return local.strftime("%H:%M:%S" if today else "%Y-%m-%d %H:%M")


def cut(text: str) -> Text:
    """A table cell with the first line of a text, as far as the terminal has room for it."""
    line = one_line(text.strip().partition("\n")[0][:_LONGEST])
    return Text(line, overflow="ellipsis", no_wrap=True)
