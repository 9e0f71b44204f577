"""How stored messages look: dead letters and waiting ones, in tables, in full and as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal, TypeAlias

import msgspec
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from matador.cli.output import table
from matador.cli.safe_text import one_line
from matador.events.way import EventReader
from matador.model.message import StoredMessage
from matador.model.topology import DeadLetterKind, WorkQueue
from matador.observe.sources import Source
from matador.runtime.dead_letters import Contents, delivery_of

Noun: TypeAlias = Literal["dead letter", "message"]

_SHORT_ID = 8
_DUMPED = 4096
_LINE = 16


@dataclass(frozen=True, slots=True)
class MessageView:
    """A stored message, as its way in reads it. Only dead letters have a kind.

    ``queue`` is the short name of the work queue it is in, or was in.
    """

    stored: StoredMessage
    queue: str
    contents: Contents
    way: str
    kind: DeadLetterKind | None = None
    before: Any = None

    @classmethod
    def of(
        cls,
        source: Source,
        stored: StoredMessage,
        queue: WorkQueue,
        kind: DeadLetterKind | None = None,
    ) -> MessageView:
        """A message that is stored in a queue of a source, or among its dead letters."""
        reader = source.reader
        contents = reader.read(delivery_of(stored), source.topology.full_name(queue.name))
        before = None
        if isinstance(reader, EventReader) and contents.envelope is not None:
            before = reader.plain(contents.envelope.before)
        return cls(stored, queue.name, contents, source.way, kind, before)

    @property
    def id(self) -> str:
        """The message's own id, or the transport's."""
        return self.contents.id

    @property
    def attempts(self) -> int:
        """How many attempts there were. An event that waits has the number of its next one."""
        made = self.contents.attempts
        next_one = self.kind is None and self.contents.envelope is not None
        return max(0, made - 1) if next_one else made


def as_table(messages: Sequence[MessageView]) -> Table:
    """Dead letters or waiting messages, one per line."""
    dead = messages[0].kind is not None
    columns = ("died", "queue", "why") if dead else ("state", "due", "queue")
    made = table("id", "message", "receiver", "attempts", *columns, right=("attempts",))
    for column in made.columns[:1] + made.columns[4:6]:
        column.no_wrap = True
    length = _id_length([message.id for message in messages])
    for message in messages:
        stored, contents = message.stored, message.contents
        if dead:
            usual = message.kind in (None, "undeliverable", "dlq")
            queue = message.queue if usual else f"{message.queue} ({message.kind})"
            why = Text(one_line(_why(message)), overflow="ellipsis", no_wrap=True)
            cells = (when(stored.stored_at), queue, why)
        else:
            cells = (state_of(stored.state), when(stored.due_at or stored.stored_at), message.queue)
        id_ = Text(one_line(message.id[:length]), "bold")
        if contents.problem is not None:
            made.add_row(id_, Text("undecodable", "yellow"), "", "", *cells)
        else:
            name, receiver = one_line(contents.name), one_line(contents.receiver)
            made.add_row(id_, name, receiver, str(message.attempts), *cells)
    return made


def state_of(state: str) -> str:
    """The word that all commands have for a state of the transport."""
    return "waiting" if state == "ready" else state


def _why(letter: MessageView) -> str:
    """Why it died, in one line: the last error with its type, otherwise the reason."""
    last, kind = letter.contents.last_error, letter.stored.error_type
    text = last or letter.stored.reason or letter.contents.problem or ""
    line = text.strip().partition("\n")[0]
    name = (kind or "").rpartition(".")[2]
    return f"{name}: {line}" if last and name and not line.startswith(name) else line


def as_json(message: MessageView, *, full: bool) -> dict[str, Any]:
    """A message as ``--json`` prints it. ``full`` adds docket and payload, or the body."""
    stored, contents = message.stored, message.contents
    decodable = contents.problem is None
    made: dict[str, Any] = {
        "id": message.id,
        "queue": message.queue,
        "way": message.way,
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


def in_full(message: MessageView) -> RenderableType:
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


def _id_length(ids: Sequence[str]) -> int:
    """How many characters tell the ids apart."""
    for length in range(_SHORT_ID, 64, 4):
        if len({one[:length] for one in ids}) == len(set(ids)):
            return length
    return 64


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


def _hexdump(body: bytes) -> str:
    lines: list[str] = []
    for start in range(0, min(len(body), _DUMPED), _LINE):
        line = body[start : start + _LINE]
        readable = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in line)
        lines.append(f"{start:06x}  {line.hex(' '):<{_LINE * 3}} {readable}")
    if len(body) > _DUMPED:
        lines.append(f"… {len(body) - _DUMPED:,} more bytes; --json prints all")
    return "\n".join(lines) or "(empty)"
