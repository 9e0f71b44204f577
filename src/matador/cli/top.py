"""``matador top``: a live view of all queues, over the whole terminal."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import termios
import time
import tty
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from matador.cli.commands import Connecting, File, flag, option
from matador.cli.output import note, number_cell, out, plural, say_json_line
from matador.cli.queues import QueueRow, counted, queue_table
from matador.errors import MatadorError
from matador.observe.journal.follow import JournalFollower
from matador.observe.journal.records import DeliveryRecord, Record, SentRecord
from matador.observe.sources import Source, journals_of
from matador.runtime.few_at_once import few_at_once

_QUIT = (b"q", b"Q", b"\x1b")
_UP, _DOWN = (b"\x1b[A", b"\x1bOA", b"k"), (b"\x1b[B", b"\x1bOB", b"j")
_REFRESH = 0.1
_WORKER_LIVES = 60.0  # seconds after its last record
_AROUND = 4  # lines of the screen that are neither queues nor below them
_LEAST = (
    "workers", "delayed", "sent/s", "change/s", "failed/s", "in flight", "handled/s", "oldest",
    "dead letters",
)  # fmt: skip
"""The columns that a narrow terminal does not show, the first ones first."""


def top(
    file: File,
    *,
    once: Annotated[bool, flag("Show it once, and end.", "--once")] = False,
    interval: Annotated[float, option("SECONDS", "How often to look.", min=0.1)] = 1.0,
    common: Connecting,
) -> None:
    """Show depths, rates, ages, dead letters and workers of all queues, live, until q or Ctrl-C.

    The arrow keys select a queue. Rates and workers come from a journal if there is
    one; otherwise only the change of the depth is known. A dash means that it is not known.
    Without a terminal, lines are printed instead.
    """
    seen = common.sources(file)
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_run(seen, once, interval, common))


async def _run(seen: Sequence[Source], once: bool, interval: float, common: Connecting) -> None:
    activity, as_json_lines = QueueActivity(seen), common.as_json
    async with common.connected(seen):
        rows = await activity.look()
        live = sys.stdout.isatty() and sys.stdin.isatty() and not (once or as_json_lines)
        if live:
            await _Screen(activity, interval, rows).run()
            return
        while True:  # the first look knows no rates
            await asyncio.sleep(interval)
            try:
                rows = await activity.look()
            except MatadorError as error:
                if once:
                    raise
                note(f"cannot look at the queues for now: {error}", style="yellow")
                continue
            if as_json_lines:
                say_json_line({"queues": [one.as_json() for one in rows]})
            else:
                out().print(_as_table(rows, activity.has_journal, out().width))
            if once:
                return


class _Screen:
    """The view on a terminal: looks at the queues, and listens to the keyboard."""

    def __init__(self, activity: QueueActivity, interval: float, rows: Sequence[Activity]) -> None:
        self._activity, self._interval = activity, interval
        self._rows = rows
        self._selected = 0
        self._problem = ""
        self._quit = asyncio.Event()
        self._console = out()

    async def run(self) -> None:
        with (
            _keys(self._pressed),
            Live(console=self._console, screen=True, auto_refresh=False) as live,
        ):
            looking = asyncio.create_task(self._look(), name="matador-top")
            try:
                while not self._quit.is_set():
                    live.update(self._view(), refresh=True)
                    if looking.done():
                        await looking  # it ends only with an error
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(_REFRESH):
                            await self._quit.wait()
            finally:
                looking.cancel()
                await asyncio.gather(looking, return_exceptions=True)

    def _pressed(self, key: bytes) -> None:
        if key in _QUIT:
            self._quit.set()
        elif key in _UP:
            self._selected = max(0, self._selected - 1)
        elif key in _DOWN:
            self._selected = min(len(self._rows) - 1, self._selected + 1)

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(self._interval)
            try:
                self._rows = await self._activity.look()
                self._problem = ""
            except MatadorError as error:  # the connection is down: the last numbers stay
                self._problem = f"cannot look at the queues for now: {error}"

    def _view(self) -> Group:
        rows, size = self._rows, self._console.size
        below = [Text(), _details(rows[self._selected])] if rows else []
        below += [Text(self._problem, "yellow")] if self._problem else []
        below.append(Text("↑ ↓ select   q quit", "dim"))
        lines = sum(len(one.wrap(self._console, size.width)) for one in below)
        room = max(1, size.height - _AROUND - lines)
        first = max(0, min(self._selected - room // 2, len(rows) - room))
        title = (
            f"{self._activity.title}   {time.strftime('%H:%M:%S')}   {plural(len(rows), 'queue')}"
        )
        shown = rows[first : first + room]
        table = _as_table(shown, self._activity.has_journal, size.width, self._selected - first)
        return Group(Text(title, "bold"), Text(), table, *below)


@contextlib.contextmanager
def _keys(pressed: Callable[[bytes], None]) -> Generator[None]:
    """Call a function for each key, without waiting for Enter; the terminal is restored."""
    keyboard, loop = sys.stdin.fileno(), asyncio.get_running_loop()
    before = termios.tcgetattr(keyboard)

    def read() -> None:
        data = os.read(keyboard, 64)
        if not data:
            loop.remove_reader(keyboard)
            return
        known = (*_UP, *_DOWN, *_QUIT)
        while data:
            key = next((one for one in known if data.startswith(one)), data[:1])
            pressed(key)
            data = data[len(key) :]

    tty.setcbreak(keyboard)
    loop.add_reader(keyboard, read)
    try:
        yield
    finally:
        loop.remove_reader(keyboard)
        termios.tcsetattr(keyboard, termios.TCSADRAIN, before)


def _as_table(
    rows: Sequence[Activity], has_journal: bool, width: int, selected: int | None = None
) -> Table:
    cells = [_cells(one, has_journal) for one in rows]
    made, _ = queue_table([one.row for one in rows], cells, width, _LEAST)
    made.columns[0].no_wrap, made.columns[0].overflow = True, "ellipsis"  # a line for each queue
    if selected is not None and rows:
        made.rows[selected].style = "reverse"
    return made


def _cells(one: Activity, has_journal: bool) -> dict[str, Text]:
    cells = one.row.cells()
    del cells["dead letters"]  # which come after the rates here
    cells["oldest"] = _age(one.oldest)
    if has_journal:
        cells["sent/s"] = number_cell(one.sent, form=",.1f")
        cells["handled/s"] = number_cell(one.handled, form=",.1f")
        cells["failed/s"] = number_cell(one.failed or 0.0, "yellow", ",.1f")
    else:
        cells["change/s"] = number_cell(one.change, form="+,.1f")
    cells["dead letters"] = number_cell(one.row.letters or 0, "bold red")
    if has_journal:
        cells["workers"] = number_cell(one.workers)
    return cells


def _details(one: Activity) -> Text:
    row = one.row
    if not row.exists:
        return Text(f"{row.queue} does not exist yet", "red")
    letters = ", ".join(
        f"{'–' if number is None else f'{number:,}'} {kind}"
        for kind, number in row.counts.dead_letters.items()
    )
    line = Text(row.queue, "bold")
    line.append(f": dead letters: {letters or 'none are kept'}", "not bold")
    if row.counts.paused:
        line.append("; paused: no worker receives", "yellow")
    return line


def _age(seconds: float | None) -> Text:
    """An age, short: 12 s, 3 min, 5 h, 2 d. A dash if it is not known, or nothing is due."""
    if not seconds:
        return Text("–", "dim")
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length:
            return Text(f"{seconds / length:,.0f} {unit}", "yellow")
    return Text(f"{seconds:,.0f} s", "" if seconds >= 1 else "dim")


# -- measuring ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Activity:
    """The counts and rates of a queue. None: not known.

    ``oldest`` is the age of the oldest due message in seconds. Rates are per second: what was sent,
    handled and failed is known from a journal, ``change`` is that of the depth.
    """

    row: QueueRow
    oldest: float | None
    sent: float | None
    handled: float | None
    failed: float | None
    change: float | None
    workers: int | None

    def as_json(self) -> dict[str, Any]:
        """The fields that ``--json`` prints."""
        measured = {
            "oldest_seconds": self.oldest,
            "sent_per_second": self.sent,
            "handled_per_second": self.handled,
            "failed_per_second": self.failed,
            "change_per_second": self.change,
        }
        rounded = {name: one if one is None else round(one, 3) for name, one in measured.items()}
        return {**self.row.as_json(), **rounded, "workers": self.workers}


class QueueActivity:
    """Measures all queues, repeatedly. The first measurement has no rates."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self._sources = sources
        folders = dict.fromkeys(one.folder for one in journals_of(sources))
        self._followers = [JournalFollower(folder) for folder in folders]
        self._workers: dict[str, dict[str, float]] = {}
        self._depths: dict[str, int] = {}
        self._looked_at: float | None = None

    @property
    def title(self) -> str:
        """The names of the sources and their transports."""
        names = dict.fromkeys(
            f"{one.topology.namespace if one.way == 'events' else one.name} on {one.transport.name}"
            for one in self._sources
        )
        return ", ".join(names)

    @property
    def has_journal(self) -> bool:
        """Whether a journal records what is sent and handled."""
        return bool(self._followers)

    async def look(self) -> list[Activity]:
        """All queues as they are now.

        Raises:
            MatadorError: the broker cannot be asked.
        """
        rows = await counted(self._sources)
        ages = await few_at_once(_age_of, rows)
        now = time.monotonic()
        seconds = None if self._looked_at is None else max(now - self._looked_at, 0.001)
        self._looked_at = now
        happened = self._happened(now)
        return [
            self._activity(row, age, seconds, happened) for row, age in zip(rows, ages, strict=True)
        ]

    def _happened(self, now: float) -> Counter[tuple[str, str]]:
        """The number of sent, handled and failed messages per queue since the last look."""
        found: Counter[tuple[str, str]] = Counter()
        records: list[Record] = [one for follower in self._followers for one in follower.read()]
        for record in records:
            if isinstance(record, SentRecord):
                found[record.queue, "sent"] += 1
            elif isinstance(record, DeliveryRecord):
                what = "handled" if record.outcome == "success" else "failed"
                found[record.queue, what] += 1
                self._workers.setdefault(record.queue, {})[record.worker] = now
        for alive in self._workers.values():
            for worker in [one for one, at in alive.items() if now - at > _WORKER_LIVES]:
                del alive[worker]
        return found

    def _activity(
        self,
        row: QueueRow,
        age: float | None,
        seconds: float | None,
        happened: Counter[tuple[str, str]],
    ) -> Activity:
        def rate(what: str) -> float | None:
            if seconds is None or not self.has_journal:
                return None
            return happened[row.queue, what] / seconds

        change = None
        if row.depth is not None:
            before = self._depths.get(row.queue)
            self._depths[row.queue] = row.depth.total
            if before is not None and seconds is not None:
                change = (row.depth.total - before) / seconds
        return Activity(
            row,
            age,
            rate("sent"),
            rate("handled"),
            rate("failed"),
            change,
            len(self._workers.get(row.queue, ())) if self.has_journal else None,
        )


async def _age_of(row: QueueRow) -> float | None:
    return await row.source.age(row.queue) if row.exists else None
