"""``matador tail``: shows messages as they are sent and handled."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from matador.cli.commands import App, Common, Event, Queue, Subscriber, a_path, flag, option
from matador.cli.connection import connected, known_queue
from matador.cli.output import CommandError, note, out, say_json_line, warn
from matador.cli.queues import count
from matador.cli.traffic import Happening, as_json, as_text, of_depth, of_record, of_stored
from matador.errors import MatadorError, QueueNotFoundError
from matador.events.app import Matador
from matador.model.options import suggestion
from matador.observe import Journal
from matador.observe.journal.follow import JournalFollower
from matador.observe.oldest import can_look
from matador.transports.base import Browsing, Measuring

_MOST_LOOKED_AT = 10_000  # messages of a queue, at each look


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficFilters:
    """The options that choose what is shown; all that are given must match."""

    event: Event = None
    subscriber: Subscriber = None
    queue: Queue = None
    failed: Annotated[bool, flag("Only what failed.", "--failed")] = False

    def match(self, one: Happening) -> bool:
        """Is it to be shown? What is about no event is shown unless an event is asked for."""
        return (
            self.event in (None, one.event)
            and self.subscriber in (None, one.subscriber)
            and self.queue in (None, one.queue)
            and (one.failed or not self.failed)
        )


def tail(
    app: App,
    *,
    filters: TrafficFilters,
    journal: Annotated[
        Path | None,
        option("FOLDER", "The journal. Default: the application's.", "--journal", parser=a_path),
    ] = None,
    from_start: Annotated[
        bool, flag("Begin with what the journal has already.", "--from-start")
    ] = False,
    interval: Annotated[float, option("SECONDS", "How often to look.", min=0.05)] = 0.25,
    common: Common,
) -> None:
    """Show messages as they are sent and handled, until Ctrl-C.

    Everything is shown if the application has a journal: sends, and every attempt with its outcome.
    Otherwise the queues are looked at again and again: what was handled between two looks is not
    seen. Where looking would disturb the queue, only numbers are shown. --json prints one line for
    each.
    """
    target = common.load(app).app
    if filters.queue is not None:
        full = target.topology.full_name(known_queue(target, filters.queue).name)
        filters = TrafficFilters(
            event=filters.event, subscriber=filters.subscriber, queue=full, failed=filters.failed
        )
    _warn_of_unknown(target, filters)
    folders = _journals(target) if journal is None else [journal]
    with contextlib.suppress(KeyboardInterrupt):
        if folders:
            if journal is not None and not journal.is_dir():
                note(f"{journal} does not exist yet")
            _show(_from_journals(folders, from_start, interval), filters, common)
        else:
            asyncio.run(_look(target, interval, filters, common))


def _warn_of_unknown(app: Matador, filters: TrafficFilters) -> None:
    """Say what the schema does not know: a journal may have it all the same, from before."""
    events = [name for event, _ in app.schema for name in (event.key, *event.aliases)]
    subscribers = [one.name for _, some in app.schema for one in some]
    for kind, name, known in (
        ("event", filters.event, events),
        ("subscriber", filters.subscriber, subscribers),
    ):
        if name is not None and name not in known:
            warn(f"there is no {kind} {name!r} in the schema{suggestion(name, known)}")


def _journals(app: Matador) -> list[Path]:
    return list(dict.fromkeys(one.folder for one in app.hooks if isinstance(one, Journal)))


def _from_journals(
    folders: Iterable[Path], from_start: bool, interval: float
) -> Iterator[Happening]:
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


def _show(happenings: Iterable[Happening], filters: TrafficFilters, common: Common) -> None:
    console = out()
    for one in happenings:
        if filters.match(one):
            if common.as_json:
                say_json_line(as_json(one))
            else:
                console.print(as_text(one), soft_wrap=True)


# -- without a journal ----------------------------------------------------------------------------


async def _look(app: Matador, interval: float, filters: TrafficFilters, common: Common) -> None:
    async with connected(app):
        async for happenings in _looks(app, interval):
            _show(happenings, filters, common)


async def _looks(app: Matador, interval: float) -> AsyncIterator[list[Happening]]:
    transport = app.transport
    if can_look(transport):
        note(
            "there is no journal: this shows what is in the queues at each look, and no attempts. "
            "Add hooks=[Journal(…)] to see everything. Ctrl-C ends it"
        )
        look = _StoredMessages(app, transport).look
    elif transport.capabilities.depth and isinstance(transport, Measuring):
        note(
            f"there is no journal, and {transport.name} does not show messages without taking "
            f"them: this shows how the numbers change. Add hooks=[Journal(…)] to see everything. "
            f"Ctrl-C ends it"
        )
        look = _Depths(app).look
    else:
        raise CommandError(
            f"{transport.name} shows neither messages nor numbers: add hooks=[Journal(…)] to the "
            f"application"
        )
    failing = False
    while True:
        try:
            yield await look()
            failing = False
        except MatadorError as error:
            if not failing:
                note(f"cannot look at the queues for now: {error}", style="yellow")
            failing = True
        await asyncio.sleep(interval)


class _StoredMessages:
    """What has appeared in the queues since the last look."""

    def __init__(self, app: Matador, transport: Browsing) -> None:
        self._app, self._transport = app, transport
        self._seen: dict[str, set[tuple[str, str]]] = {}
        self._complained: set[str] = set()

    async def look(self) -> list[Happening]:
        topology = self._app.topology
        found: list[Happening] = []
        for queue in topology.queues:
            found += await self._new(topology.full_name(queue.name), None)
            for kind in topology.kinds_of(queue):
                found += await self._new(topology.dead_letter_name(queue.name, kind), kind)
        return sorted(found, key=lambda one: one.at)

    async def _new(self, queue: str, kind: str | None) -> list[Happening]:
        before, now = self._seen.get(queue), set[tuple[str, str]]()
        found: list[Happening] = []
        try:
            async for stored in self._transport.browse(queue, limit=_MOST_LOOKED_AT):
                key = stored.id, stored.position
                now.add(key)
                if before is not None and key not in before:
                    found.append(of_stored(self._app, stored, kind))
        except QueueNotFoundError:
            pass  # nobody has used it yet
        self._seen[queue] = now
        if len(now) >= _MOST_LOOKED_AT and queue not in self._complained:
            self._complained.add(queue)
            note(f"{queue}: only the first {_MOST_LOOKED_AT:,} messages are looked at")
        return found


class _Depths:
    """How the numbers of messages have changed since the last look."""

    def __init__(self, app: Matador) -> None:
        self._app = app
        self._before: dict[str, Any] = {}

    async def look(self) -> list[Happening]:
        found = [happening for one in await count(self._app) for happening in of_depth(one)]
        changed = [one for one in found if self._before.get(one.id, one.numbers) != one.numbers]
        self._before = {one.id: one.numbers for one in found}
        return changed
