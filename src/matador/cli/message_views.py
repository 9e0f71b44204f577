"""How stored messages look: dead letters and waiting ones, in tables, in full and as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, Literal, TypeAlias

import msgspec
import typer
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from matador.cli.output import (
    FAILED,
    CommandError,
    UsageError,
    complain,
    note,
    plural,
    say,
    say_json,
    table,
    warn,
)
from matador.cli.safe_text import one_line
from matador.events.dead_letters import Letter, Moved

Noun: TypeAlias = Literal["dead letter", "message"]

LISTED = 100
"""How many are listed for people by default."""

_SHORT_ID = 8
_DUMPED = 4096
_LINE = 16


def print_list(
    found: Sequence[Letter], limit: int | None, noun: Noun, *, filtered: bool, as_json: bool
) -> None:
    """Print at most ``limit`` of the messages found, one per line; they may be one more."""
    more = limit is not None and len(found) > limit
    found = found[:limit]
    if as_json:
        listed = [_as_json(one, noun, full=False) for one in found]
        say_json({_key(noun): listed, "more": more})
    elif found:
        say(_letters_as_table(found) if noun == "dead letter" else _messages_as_table(found))
        note(f"the first {limit:,}; --limit shows more" if more else plural(len(found), noun))
    else:
        note(f"no {noun}s match" if filtered else f"no {noun}s")


def print_in_full(found: Sequence[Letter], noun: Noun, *, as_json: bool) -> None:
    """Print everything about the messages."""
    if as_json:
        say_json({_key(noun): [_as_json(one, noun, full=True) for one in found]})
        return
    for one in found:
        say(_in_full(one))


def print_moved(moved: Moved, chosen: int, done: str, noun: Noun, *, as_json: bool) -> None:
    """Print how many messages were redriven, purged or cancelled.

    Raises:
        typer.Exit: some were not.
    """
    if as_json:
        failed = [{"id": id_, "error": error} for id_, error in moved.failed]
        counts = {"chosen": chosen, done: moved.done, "gone": moved.gone, "held": moved.held}
        say_json({**counts, "failed": failed})
    elif not chosen:
        note(f"no {noun}s match")
    else:
        say(f"{plural(moved.done, noun)} {done}")
    if moved.gone:
        note(f"{plural(moved.gone, noun)} taken by another process in the meantime")
    if moved.held:
        warn(f"{plural(moved.held, noun)} held by another process; run this again later")
    for id_, error in moved.failed[:20]:
        complain(f"{id_}: {error}")
    if len(moved.failed) > 20:
        complain(f"and {len(moved.failed) - 20:,} more could not be {done}")
    if moved.failed or moved.held:
        raise typer.Exit(FAILED)


def _key(noun: str) -> str:
    return noun.replace(" ", "_") + "s"


def _letters_as_table(letters: Sequence[Letter]) -> Table:
    """Dead letters, one per line."""

    def cells(letter: Letter) -> tuple[str, str, Text]:
        why = Text(one_line(_first_line(_why(letter))), overflow="ellipsis", no_wrap=True)
        queue = letter.queue.name + (" (unhandled)" if letter.kind == "unhandled" else "")
        return _when(letter.stored.stored_at), queue, why

    return _as_table(letters, ("died", "queue", "why"), cells)


def _messages_as_table(messages: Sequence[Letter]) -> Table:
    """Messages that wait, one per line."""

    def cells(message: Letter) -> tuple[str, str, str]:
        stored = message.stored
        return stored.state, _when(stored.due_at or stored.stored_at), message.queue.name

    return _as_table(messages, ("state", "due", "queue"), cells)


def _as_table(
    messages: Sequence[Letter],
    columns: tuple[str, str, str],
    cells: Callable[[Letter], tuple[str, str, str | Text]],
) -> Table:
    made = table("id", "event", "subscriber", "attempts", *columns, right=("attempts",))
    for column in made.columns[:1] + made.columns[4:6]:
        column.no_wrap = True
    length = _id_length([message.id for message in messages])
    for message in messages:
        id_ = Text(one_line(message.id[:length]), "bold")
        docket = None if message.envelope is None else message.envelope.docket
        if docket is None:
            made.add_row(id_, Text("undecodable", "yellow"), "", "", *cells(message))
        else:
            event, subscriber = one_line(docket.event_key), one_line(docket.target_subscriber)
            made.add_row(id_, event, subscriber, str(docket.attempts), *cells(message))
    return made


def matching_ids(wanted: Sequence[str], found: Iterable[str], noun: str) -> set[str]:
    """The ids, among those found, that equal or begin with those wanted.

    Raises:
        CommandError: one matches nothing.
        UsageError: one is the start of several.
    """
    known = set(found)
    matching: set[str] = set()
    for one in wanted:
        begin = [one] if one in known else sorted(id_ for id_ in known if id_.startswith(one))
        if not begin:
            raise CommandError(f"there is no {noun} with the id {one!r}")
        if len(begin) > 1:
            listed = ", ".join(begin[:5]) + (", …" if len(begin) > 5 else "")
            raise UsageError(f"--id {one!r} is ambiguous: {listed}")
        matching.update(begin)
    return matching


def _why(letter: Letter) -> str:
    """Why it died, in short: the last error if there is one, otherwise the reason."""
    docket = None if letter.envelope is None else letter.envelope.docket
    last = None if docket is None else docket.last_error
    return last or letter.stored.reason or letter.problem or ""


def _as_json(message: Letter, noun: str, full: bool) -> dict[str, Any]:
    """A message as ``--json`` prints it. ``full`` adds docket and payload, or the body."""
    stored = message.stored
    docket = None if message.envelope is None else message.envelope.docket
    made: dict[str, Any] = {
        "id": message.id,
        "queue": message.queue.name,
        "decodable": docket is not None,
        "event": docket and docket.event_key,
        "subscriber": docket and docket.target_subscriber,
        "attempts": docket and docket.attempts,
        "last_error": docket and docket.last_error,
    }
    if noun == "dead letter":
        made |= {
            "kind": message.kind,
            "dead_letter_queue": stored.queue,
            "died_at": _iso(stored.stored_at),
            "reason": stored.reason,
            "error_type": stored.error_type,
            "held": message.held,
        }
    else:
        made |= {
            "state": stored.state,
            "sent_at": _iso(stored.stored_at),
            "due_at": _iso(stored.due_at),
            "deliveries": stored.delivery_count,
            "priority": stored.priority,
            "ordering_key": stored.ordering_key,
        }
    return made | _contents(message) if full else made


def _contents(message: Letter) -> dict[str, Any]:
    stored, envelope = message.stored, message.envelope
    headers = {"headers": dict(stored.headers), "traceback": stored.traceback}
    if envelope is None:
        return {
            **headers,
            "problem": message.problem,
            "body": stored.body.decode("utf-8", "backslashreplace"),
            "body_hex": stored.body.hex(),
        }
    made = {**headers, "docket": msgspec.to_builtins(envelope.docket), "data": message.payload}
    return made if message.before is None else {**made, "before": message.before}


def _in_full(message: Letter) -> RenderableType:
    """Everything about a message, for people."""
    stored, envelope = message.stored, message.envelope
    facts = Table(box=None, show_header=False, pad_edge=False)
    facts.add_column(style="dim")
    facts.add_column(overflow="fold")
    parts: list[RenderableType] = [Text(one_line(message.id), "bold"), facts]

    def fact(name: str, value: object) -> None:
        if value not in (None, "", {}):
            facts.add_row(name, Text(str(value)))

    def part(name: str, text: str) -> None:
        parts.extend([Text(name, "dim"), Padding(Text(text), (0, 2))])

    fact("queue", stored.queue)
    if stored.reason is None:
        fact("state", stored.state)
        fact("sent", _iso(stored.stored_at))
        fact("due", _iso(stored.due_at))
    else:
        fact("died", _iso(stored.stored_at))
        fact("reason", stored.reason)
        fact("error type", stored.error_type)
    if stored.traceback is not None:
        part("traceback", stored.traceback.rstrip())
    if envelope is None:
        fact("problem", message.problem)
        fact("bytes", f"{len(stored.body):,}")
        part("body", _hexdump(stored.body))
        return Padding(Group(*parts), (0, 0, 1, 0))
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
    contents = {
        "metadata": docket.metadata or None,
        "before": message.before,
        "data": message.payload,
    }
    for name, value in contents.items():
        if value is not None:
            part(name, json.dumps(value, indent=2, default=str, ensure_ascii=False))
    if message.payload is None:
        part("data, not an object", _hexdump(bytes(envelope.data)))
    return Padding(Group(*parts), (0, 0, 1, 0))


def _id_length(ids: Sequence[str]) -> int:
    """How many characters tell the ids apart."""
    for length in range(_SHORT_ID, 64, 4):
        if len({one[:length] for one in ids}) == len(set(ids)):
            return length
    return 64


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0]


def _iso(moment: datetime | None) -> str | None:
    return None if moment is None else moment.astimezone(UTC).isoformat(timespec="seconds")


def _when(moment: datetime | None) -> str:
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
