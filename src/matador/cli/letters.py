"""How dead letters look: a line each, in full, and as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from matador.cli.output import table
from matador.cli.safe_text import one_line
from matador.events.dead_letters import Letter

_SHORT_ID = 8
_DUMPED = 4096
_LINE = 16


def letters_as_table(letters: Sequence[Letter]) -> Table:
    """One line each."""
    made = table(
        "id", "event", "subscriber", "attempts", "died", "queue", "why", right=("attempts",)
    )
    for column in made.columns[:1] + made.columns[4:6]:
        column.no_wrap = True
    length = _id_length([letter.id for letter in letters])
    for letter in letters:
        envelope = letter.envelope
        why = Text(one_line(_first_line(why_of(letter))), overflow="ellipsis", no_wrap=True)
        queue = letter.queue.name + (" (unhandled)" if letter.kind == "unhandled" else "")
        id_, died = Text(one_line(letter.id[:length]), "bold"), _when(letter.stored.stored_at)
        if envelope is None:
            made.add_row(id_, Text("undecodable", "yellow"), "", "", died, queue, why)
        else:
            docket = envelope.docket
            made.add_row(
                id_,
                one_line(docket.event_key),
                one_line(docket.target_subscriber),
                str(docket.attempts),
                died,
                queue,
                why,
            )
    return made


def why_of(letter: Letter) -> str:
    """Why it died, in short: the last error if it has one, else the reason."""
    docket = None if letter.envelope is None else letter.envelope.docket
    last = None if docket is None else docket.last_error
    return last or letter.stored.reason or letter.problem or ""


def letter_as_json(letter: Letter, *, full: bool = False) -> dict[str, Any]:
    """As ``--json`` prints it. ``full`` adds the payload and the docket, or the raw body."""
    stored, envelope = letter.stored, letter.envelope
    docket = None if envelope is None else envelope.docket
    made: dict[str, Any] = {
        "id": letter.id,
        "queue": letter.queue.name,
        "kind": letter.kind,
        "dead_letter_queue": stored.queue,
        "decodable": envelope is not None,
        "event": docket and docket.event_key,
        "subscriber": docket and docket.target_subscriber,
        "attempts": docket and docket.attempts,
        "died_at": _iso(stored.stored_at),
        "reason": stored.reason,
        "last_error": docket and docket.last_error,
        "held": letter.held,
    }
    if not full:
        return made
    made["headers"] = dict(stored.headers)
    if docket is None:
        made["problem"] = letter.problem
        made["body"] = stored.body.decode("utf-8", "backslashreplace")
        made["body_hex"] = stored.body.hex()
    else:
        made["docket"] = msgspec.to_builtins(docket)
        made["data"] = letter.payload
        if letter.before is not None:
            made["before"] = letter.before
    return made


def letter_in_full(letter: Letter) -> RenderableType:
    """Everything about it, for people."""
    stored, envelope = letter.stored, letter.envelope
    facts = Table(box=None, show_header=False, pad_edge=False)
    facts.add_column(style="dim")
    facts.add_column(overflow="fold")

    def fact(name: str, value: object) -> None:
        if value not in (None, "", {}):
            facts.add_row(name, Text(str(value)))

    fact("in", stored.queue)
    fact("died", _iso(stored.stored_at))
    fact("reason", stored.reason)
    parts: list[RenderableType] = [Text(one_line(letter.id), "bold"), facts]
    if envelope is None:
        fact("problem", letter.problem)
        fact("bytes", f"{len(stored.body):,}")
        parts += [Text("body", "dim"), Padding(Text(_hexdump(stored.body)), (0, 2))]
    else:
        docket = envelope.docket
        fact("event", docket.event_key)
        fact("description", docket.event_description)
        fact("subscriber", docket.target_subscriber)
        fact("importance", docket.importance)
        fact("attempts", docket.attempts)
        fact("created", _iso(docket.created_at))
        fact("scheduled for", _iso(docket.scheduled_for))
        fact("original queue", docket.original_queue)
        fact("correlation id", docket.correlation_id)
        fact("first error", docket.first_error)
        if docket.last_error != docket.first_error:
            fact("last error", docket.last_error)
        for name, value in (
            ("metadata", docket.metadata or None),
            ("before", letter.before),
            ("data", letter.payload),
        ):
            if value is not None:
                text = json.dumps(value, indent=2, default=str, ensure_ascii=False)
                parts += [Text(name, "dim"), Padding(Text(text), (0, 2))]
        if letter.payload is None:
            dump = Text(_hexdump(bytes(envelope.data)))
            parts += [Text("data, not an object", "dim"), Padding(dump, (0, 2))]
    return Padding(Group(*parts), (0, 0, 1, 0))


def _id_length(ids: Sequence[str]) -> int:
    """How much of the ids tells them apart."""
    for length in range(_SHORT_ID, 64, 4):
        if len({one[:length] for one in ids}) == len(set(ids)):
            return length
    return 64


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0]


def _iso(moment: datetime | None) -> str | None:
    return None if moment is None else moment.astimezone(UTC).isoformat(timespec="seconds")


def _when(moment: datetime | None) -> str:
    """The time alone if it was today, and the day otherwise."""
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
        lines.append(f"… {len(body) - _DUMPED:,} more bytes; --json has all")
    return "\n".join(lines) or "(empty)"
