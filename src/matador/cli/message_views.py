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
from matador.codec.base import Codec, RawEnvelope
from matador.errors import InvalidEventError
from matador.model.envelope import Docket
from matador.model.event import EventType
from matador.model.message import StoredMessage
from matador.model.topology import DeadLetterKind

Noun: TypeAlias = Literal["dead letter", "message"]

_SHORT_ID = 8
_DUMPED = 4096
_LINE = 16
_ANY_EVENT = EventType("any", "Any event.", dict)


@dataclass(frozen=True, slots=True)
class MessageView:
    """A stored message. ``problem`` says why there is no envelope; only dead letters have a kind.

    ``queue`` is the short name of the work queue it is in, or was in.
    """

    stored: StoredMessage
    queue: str
    envelope: RawEnvelope | None
    problem: str | None
    codec: Codec
    kind: DeadLetterKind | None = None

    @property
    def id(self) -> str:
        """The envelope's id, or the transport's."""
        return self.stored.id if self.envelope is None else self.envelope.id

    @property
    def docket(self) -> Docket | None:
        """The docket, if it can be decoded."""
        return None if self.envelope is None else self.envelope.docket

    def plain(self, raw: msgspec.Raw | None) -> Any:
        """A payload as plain data, whatever the type of its event; None if it is no object."""
        try:
            return None if raw is None else self.codec.decode_payload(_ANY_EVENT, raw)
        except InvalidEventError:
            return None


def as_table(messages: Sequence[MessageView]) -> Table:
    """Dead letters or waiting messages, one per line."""
    dead = messages[0].kind is not None
    columns = ("died", "queue", "why") if dead else ("state", "due", "queue")
    made = table("id", "event", "subscriber", "attempts", *columns, right=("attempts",))
    for column in made.columns[:1] + made.columns[4:6]:
        column.no_wrap = True
    length = _id_length([message.id for message in messages])
    for message in messages:
        stored, docket = message.stored, message.docket
        if dead:
            usual = message.kind in (None, "undeliverable")
            queue = message.queue if usual else f"{message.queue} ({message.kind})"
            why = Text(one_line(_why(message)), overflow="ellipsis", no_wrap=True)
            cells = (when(stored.stored_at), queue, why)
        else:
            cells = (stored.state, when(stored.due_at or stored.stored_at), message.queue)
        id_ = Text(one_line(message.id[:length]), "bold")
        if docket is None:
            made.add_row(id_, Text("undecodable", "yellow"), "", "", *cells)
        else:
            event, subscriber = one_line(docket.event_key), one_line(docket.target_subscriber)
            made.add_row(id_, event, subscriber, str(docket.attempts), *cells)
    return made


def _why(letter: MessageView) -> str:
    """Why it died, in one line: the last error if there is one, otherwise the reason."""
    last = None if letter.docket is None else letter.docket.last_error
    text = last or letter.stored.reason or letter.problem or ""
    return text.strip().partition("\n")[0]


def as_json(message: MessageView, *, full: bool) -> dict[str, Any]:
    """A message as ``--json`` prints it. ``full`` adds docket and payload, or the body."""
    stored, docket = message.stored, message.docket
    made: dict[str, Any] = {
        "id": message.id,
        "queue": message.queue,
        "decodable": docket is not None,
        "event": docket and docket.event_key,
        "subscriber": docket and docket.target_subscriber,
        "attempts": docket and docket.attempts,
        "last_error": docket and docket.last_error,
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
            "state": stored.state,
            "sent_at": iso(stored.stored_at),
            "due_at": iso(stored.due_at),
            "deliveries": stored.delivery_count,
            "priority": stored.priority,
            "ordering_key": stored.ordering_key,
        }
    return made | _contents(message) if full else made


def _contents(message: MessageView) -> dict[str, Any]:
    stored, envelope = message.stored, message.envelope
    headers = {"headers": dict(stored.headers), "traceback": stored.traceback}
    if envelope is None:
        return {
            **headers,
            "problem": message.problem,
            "body": stored.body.decode("utf-8", "backslashreplace"),
            "body_hex": stored.body.hex(),
        }
    made = {**headers, "docket": msgspec.to_builtins(envelope.docket)}
    made["data"] = message.plain(envelope.data)
    before = message.plain(envelope.before)
    return made if before is None else {**made, "before": before}


def in_full(message: MessageView) -> RenderableType:
    """Everything about a message, for people."""
    stored, envelope = message.stored, message.envelope
    details = Details(message.id)
    fact, part = details.fact, details.part
    fact("queue", stored.queue)
    if stored.reason is None:
        fact("state", stored.state)
        fact("sent", iso(stored.stored_at))
        fact("due", iso(stored.due_at))
    else:
        fact("died", iso(stored.stored_at))
        fact("reason", stored.reason)
        fact("error type", stored.error_type)
    if stored.traceback is not None:
        part("traceback", stored.traceback.rstrip())
    if envelope is None:
        fact("problem", message.problem)
        fact("bytes", f"{len(stored.body):,}")
        part("body", _hexdump(stored.body))
        return details.rendered
    docket = envelope.docket
    fact("event", docket.event_key)
    fact("description", docket.event_description)
    fact("subscriber", docket.target_subscriber)
    fact("importance", docket.importance)
    fact("attempts", docket.attempts)
    fact("created", iso(docket.created_at))
    fact("scheduled for", iso(docket.scheduled_for))
    fact("original queue", docket.original_queue)
    fact("correlation id", docket.correlation_id)
    fact("first error", docket.first_error)
    if docket.last_error != docket.first_error:
        fact("last error", docket.last_error)
    before, data = message.plain(envelope.before), message.plain(envelope.data)
    for name, value in (("metadata", docket.metadata or None), ("before", before), ("data", data)):
        details.json(name, value)
    if data is None:
        part("data, not an object", _hexdump(bytes(envelope.data)))
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
