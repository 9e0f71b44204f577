"""What happens to messages, as ``matador tail`` shows it: one line each, for people or as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec
from rich.text import Text

from matador.cli.message_views import MessageView
from matador.cli.safe_text import one_line
from matador.events.queue_counts import QueueCounts
from matador.model.message import StoredMessage
from matador.model.topology import DeadLetterKind, WorkQueue
from matador.observe.journal.records import DeliveryRecord, DroppedRecord, Record, SentRecord
from matador.observe.sources import Source

_STYLES = {
    "sent": "cyan",
    "waiting": "cyan",
    "success": "green",
    "retry": "yellow",
    "discard": "yellow",
    "dead-letter": "bold red",
    "malformed": "bold red",
    "dropped": "bold red",
}
_FAILURES = frozenset(("retry", "dead-letter", "discard", "malformed", "dropped"))
_LONGEST_REMARK = 300


@dataclass(frozen=True, slots=True)
class Happening:
    """Something that happened to a message, or to a queue.

    ``what`` is ``sent``, the outcome of an attempt, ``waiting`` (it is in a queue), ``malformed``,
    ``dropped`` (records of the journal were lost) or ``depth``.
    """

    what: str
    at: datetime
    queue: str
    event: str | None = None
    subscriber: str | None = None
    id: str = ""
    attempt: int | None = None
    duration_ms: float | None = None
    error: str | None = None
    correlation_id: str | None = None
    way: str = "event"
    data: Any = None
    numbers: Mapping[str, int | None] | None = None

    @property
    def failed(self) -> bool:
        """Did something fail?"""
        return self.what in _FAILURES


def of_record(record: Record) -> Happening:
    """What a record of the journal tells."""
    at = datetime.fromtimestamp(_in_range(record.recorded_at), UTC)
    if isinstance(record, SentRecord):
        return Happening(
            "sent",
            at,
            record.queue,
            record.event_key,
            record.subscriber,
            record.id,
            correlation_id=record.correlation_id,
            way=record.way,
            data=record.data,
        )
    if isinstance(record, DeliveryRecord):
        texts = (record.error_type, record.error or record.reason)
        return Happening(
            record.outcome,
            at,
            record.queue,
            record.event_key,
            record.subscriber,
            record.id,
            record.attempt,
            record.duration_ms,
            ": ".join(one for one in texts if one) or None,
            record.correlation_id,
            record.way,
        )
    if isinstance(record, DroppedRecord):
        text = f"{record.count:,} records of the journal were lost: {record.reason}"
        return Happening("dropped", at, "", error=text)
    return Happening("malformed", at, record.queue, error=record.reason)


def of_stored(
    source: Source, stored: StoredMessage, queue: WorkQueue, kind: DeadLetterKind | None
) -> Happening:
    """A message that has appeared in a queue, or among the dead letters of that kind."""
    view = MessageView.of(source, stored, queue, kind)
    contents = view.contents
    error = contents.last_error or stored.reason or contents.problem
    return Happening(
        "waiting" if kind is None else "dead-letter",
        stored.stored_at or datetime.now(UTC),
        stored.queue,
        contents.name or None,
        contents.receiver or None,
        view.id,
        contents.attempts or None,
        error=error if kind or contents.problem else None,
        correlation_id=contents.correlation_id,
        way=source.way,
        data=contents.plain(),
    )


def of_depth(counts: QueueCounts) -> Iterator[Happening]:
    """The numbers of a queue and of its dead letters."""
    now = datetime.now(UTC)
    depth = counts.depth
    if depth is not None:
        numbers = {
            name: None if name in depth.unknown else value
            for name, value in (
                ("waiting", depth.ready),
                ("delayed", depth.delayed),
                ("in_flight", depth.in_flight),
            )
        }
        yield Happening("depth", now, counts.queue, id=counts.queue, numbers=numbers)
    for kind, number in counts.dead_letters.items():
        queue = f"{counts.queue}.{kind}"
        yield Happening("depth", now, counts.queue, id=queue, numbers={kind: number})


def as_text(one: Happening) -> Text:
    """One line for people."""
    line = Text(no_wrap=True, overflow="ignore")
    line.append(f"{one.at.astimezone():%H:%M:%S.%f}"[:-3], "dim")
    line.append(f"  {one.what:<11} ", _STYLES.get(one.what, ""))
    if one.event is not None:
        line.append(one_line(one.event), "bold")
        line.append(f" → {one_line(one.subscriber or '')}")
    remarks: list[str] = [one_line(one.queue)] if one.queue else []
    if one.attempt is not None and one.attempt > 1:
        remarks.append(f"attempt {one.attempt}")
    if one.duration_ms is not None:
        remarks.append(f"{one.duration_ms:,.1f} ms")
    if one.numbers is not None:
        known = {name: value for name, value in one.numbers.items() if value is not None}
        remarks += [f"{value:,} {name.replace('_', ' ')}" for name, value in known.items()]
    elif one.id:
        remarks.append(one_line(one.id[:8]))
    line.append(f"  {'  '.join(remarks)}", "dim")
    if one.error:
        line.append(f"  {one_line(one.error)[:_LONGEST_REMARK]}", "red")
    return line


def as_json(one: Happening) -> dict[str, Any]:
    """One line for machines."""
    if one.numbers is not None:
        return {"type": one.what, "at": _iso(one.at), "queue": one.queue, **one.numbers}
    return {
        "type": one.what,
        "at": _iso(one.at),
        "way": one.way,
        "event": one.event,
        "subscriber": one.subscriber,
        "queue": one.queue,
        "id": one.id,
        "attempt": one.attempt,
        "duration_ms": one.duration_ms,
        "error": one.error,
        "correlation_id": one.correlation_id,
        "data": _plain(one.data),
    }


def _iso(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="milliseconds")


def _plain(data: Any) -> Any:
    if not isinstance(data, msgspec.Raw):
        return data
    try:
        return msgspec.json.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None  # MessagePack, or no JSON


def _in_range(micros: int) -> float:
    return min(max(micros, 0), 253_402_300_799_000_000) / 1_000_000
