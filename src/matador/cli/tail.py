"""``matador tail``: shows messages as they are sent and handled."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, cast

import msgspec
from rich.text import Text

from matador.cli.commands import (
    Common,
    Connecting,
    Event,
    File,
    Queue,
    Subscriber,
    a_path,
    flag,
    option,
)
from matador.cli.output import CommandError, note, out, say_json_line
from matador.cli.queues import QueueRow, counted
from matador.cli.receivers import chosen_queues, warn_of_unknown
from matador.cli.terminal import one_line
from matador.cli.views import MessageView
from matador.errors import MatadorError, QueueNotFoundError
from matador.model.message import StoredMessage
from matador.model.topology import DeadLetterKind, WorkQueue
from matador.observe.journal.follow import JournalFollower
from matador.observe.journal.records import DeliveryRecord, DroppedRecord, Record, SentRecord
from matador.observe.oldest import can_look
from matador.observe.sources import Source, journals_of
from matador.transports.base import Browsing

_MOST_LOOKED_AT = 10_000  # messages of a queue, at each look
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


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficFilters:
    """The options that choose what is shown; all that are given must match."""

    event: Event = None
    subscriber: Subscriber = None
    queue: Queue = None
    failed: Annotated[bool, flag("Only what failed.", "--failed")] = False

    def match(self, one: Entry) -> bool:
        """Whether to show an entry."""
        return (
            self.event in (None, one.event)
            and self.subscriber in (None, one.subscriber)
            and self.queue in (None, one.queue)
            and (one.failed or not self.failed)
        )


def tail(
    file: File,
    *,
    filters: TrafficFilters,
    journal: Annotated[
        Path | None,
        option("FOLDER", "The journal. Default: those in FILE.", "--journal", parser=a_path),
    ] = None,
    from_start: Annotated[
        bool, flag("Begin with what the journal has already.", "--from-start")
    ] = False,
    interval: Annotated[float, option("SECONDS", "How often to look.", min=0.05)] = 0.25,
    common: Connecting,
) -> None:
    """Show messages as they are sent and handled, until Ctrl-C.

    Everything is shown if there is a journal: sends, and every attempt with its outcome.
    Otherwise the queues are looked at again and again: what was handled between two looks is not
    seen. Where looking would disturb the queue, only numbers are shown. --json prints one line for
    each.
    """
    seen = common.sources(file)
    if filters.queue is not None:
        source, queue = chosen_queues(seen, filters.queue)[0]
        filters = replace(filters, queue=source.topology.full_name(queue.name))
    warn_of_unknown(seen, filters.event, filters.subscriber)
    folders = list(dict.fromkeys(one.folder for one in journals_of(seen)))
    folders = folders if journal is None else [journal]
    with contextlib.suppress(KeyboardInterrupt):
        if folders:
            if journal is not None and not journal.is_dir():
                note(f"{journal} does not exist yet")
            _show(_from_journals(folders, from_start, interval), filters, common)
        else:
            asyncio.run(_look(seen, interval, filters, common))


def _from_journals(folders: Iterable[Path], from_start: bool, interval: float) -> Iterator[Entry]:
    followers = [JournalFollower(folder, from_start=from_start) for folder in folders]
    note(f"following {', '.join(str(folder) for folder in folders)}; Ctrl-C ends it")
    unreadable = 0
    while True:
        found = [record for follower in followers for record in follower.read()]
        yield from map(of_record, sorted(found, key=lambda record: record.recorded_at))
        if (lost := sum(one.unreadable for one in followers)) > unreadable:
            note(f"{lost - unreadable:,} lines of the journal are no records", style="yellow")
            unreadable = lost
        time.sleep(interval)


def _show(entries: Iterable[Entry], filters: TrafficFilters, common: Common) -> None:
    console = out()
    for one in entries:
        if filters.match(one):
            if common.as_json:
                say_json_line(as_json(one))
            else:
                console.print(as_text(one), soft_wrap=True)


# -- without a journal ----------------------------------------------------------------------------


async def _look(
    seen: Sequence[Source], interval: float, filters: TrafficFilters, common: Connecting
) -> None:
    async with common.connected(seen):
        async for entries in _looks(seen, interval):
            _show(entries, filters, common)


async def _looks(seen: Sequence[Source], interval: float) -> AsyncIterator[list[Entry]]:
    shown = [one for one in seen if can_look(one.transport)]
    numbered = [one for one in seen if one not in shown and one.transport.capabilities.depth]
    blind = [one for one in seen if one not in shown and one not in numbered]
    add = "Add hooks=[Journal(…)] to see everything. Ctrl-C ends it"
    if blind:
        names = ", ".join(dict.fromkeys(one.transport.name for one in blind))
        text = f"{names} shows neither messages nor numbers: add hooks=[Journal(…)]"
        if len(blind) == len(seen):
            raise CommandError(text)
        note(text)
    if shown:
        note(
            f"there is no journal: this shows what is in the queues at each look, and no attempts. "
            f"{add}"
        )
    if numbered:
        names = ", ".join(dict.fromkeys(one.transport.name for one in numbered))
        note(
            f"there is no journal, and {names} does not show messages without taking them: this "
            f"shows how the numbers change. {add}"
        )
    stored, depths = _StoredMessages(shown), _Depths(numbered)
    failing = False
    while True:
        try:
            yield [*await stored.look(), *await depths.look()]
            failing = False
        except MatadorError as error:
            if not failing:
                note(f"cannot look at the queues for now: {error}", style="yellow")
            failing = True
        await asyncio.sleep(interval)


class _StoredMessages:
    """The messages that have appeared in the queues since the last look."""

    def __init__(self, seen: Sequence[Source]) -> None:
        self._sources = seen
        self._seen: dict[tuple[int, str], set[tuple[str, str]]] = {}
        self._complained: set[str] = set()

    async def look(self) -> list[Entry]:
        found: list[Entry] = []
        for source in self._sources:
            topology = source.topology
            for queue in topology.queues:
                found += await self._new(source, topology.full_name(queue.name), queue, None)
            for queue, kind, name in topology.dead_letter_names():
                found += await self._new(source, name, queue, kind)
        return sorted(found, key=lambda one: one.at)

    async def _new(
        self, source: Source, name: str, queue: WorkQueue, kind: DeadLetterKind | None
    ) -> list[Entry]:
        before, now = self._seen.get((id(source), name)), set[tuple[str, str]]()
        found: list[Entry] = []
        try:
            async for stored in cast("Browsing", source.transport).browse(
                name, limit=_MOST_LOOKED_AT
            ):
                key = stored.id, stored.position
                now.add(key)
                if before is not None and key not in before:
                    found.append(of_stored(source, stored, queue, kind))
        except QueueNotFoundError:
            pass  # it has not been used yet
        self._seen[id(source), name] = now
        if len(now) >= _MOST_LOOKED_AT and name not in self._complained:
            self._complained.add(name)
            note(f"{name}: only the first {_MOST_LOOKED_AT:,} messages are looked at")
        return found


class _Depths:
    """The counts that have changed since the last look."""

    def __init__(self, seen: Sequence[Source]) -> None:
        self._sources = seen
        self._before: dict[str, Any] = {}

    async def look(self) -> list[Entry]:
        rows = await counted(self._sources)
        found = [entry for row in rows for entry in of_depth(row)]
        changed = [one for one in found if self._before.get(one.id, one.numbers) != one.numbers]
        self._before = {one.id: one.numbers for one in found}
        return changed


# -- entries --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the output: something that happened to a message, or to a queue.

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
        """Whether something failed."""
        return self.what in _FAILURES


def of_record(record: Record) -> Entry:
    """The entry for a record of the journal."""
    at = datetime.fromtimestamp(_in_range(record.recorded_at), UTC)
    if isinstance(record, SentRecord):
        return Entry(
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
        return Entry(
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
        return Entry("dropped", at, "", error=text)
    return Entry("malformed", at, record.queue, error=record.reason)


def of_stored(
    source: Source, stored: StoredMessage, queue: WorkQueue, kind: DeadLetterKind | None
) -> Entry:
    """A message that has appeared in a queue, or among the dead letters of that kind."""
    view = MessageView.of(source, stored, queue, kind)
    contents = view.contents
    error = contents.last_error or stored.reason or contents.problem
    return Entry(
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


def of_depth(row: QueueRow) -> Iterator[Entry]:
    """The counts of a queue and of its dead letters."""
    now = datetime.now(UTC)
    if row.exists:
        yield Entry("depth", now, row.queue, id=row.queue, numbers=row.numbers)
    for kind, number in row.counts.dead_letters.items():
        queue = f"{row.queue}.{kind}"
        yield Entry("depth", now, row.queue, id=queue, numbers={kind: number})


def as_text(one: Entry) -> Text:
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


def as_json(one: Entry) -> dict[str, Any]:
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
