"""``matador top``: a live view of all queues, over the whole terminal."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import termios
import time
import tty
from collections.abc import Callable, Generator, Sequence
from typing import Annotated

from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from matador.cli.commands import Connecting, File, flag, option
from matador.cli.output import fit, note, out, plural, say_json_line
from matador.cli.queue_activity import QueueActivity, QueueRow, as_json
from matador.cli.queues import STATE, state_of
from matador.errors import MatadorError
from matador.observe.sources import Source

_QUIT = (b"q", b"Q", b"\x1b")
_UP, _DOWN = (b"\x1b[A", b"\x1bOA", b"k"), (b"\x1b[B", b"\x1bOB", b"j")
_REFRESH = 0.1
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
                say_json_line({"queues": [as_json(row) for row in rows]})
            else:
                out().print(_as_table(rows, activity.has_journal, out().width))
            if once:
                return


class _Screen:
    """The view on a terminal: looks at the queues, and listens to the keyboard."""

    def __init__(self, activity: QueueActivity, interval: float, rows: Sequence[QueueRow]) -> None:
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
    rows: Sequence[QueueRow], has_journal: bool, width: int, selected: int | None = None
) -> Table:
    cells: dict[str, list[Text]] = {}

    def add(column: str, cell: Text) -> None:
        cells.setdefault(column, []).append(cell)

    if any(row.paused or not row.exists for row in rows):
        cells[STATE] = [state_of(row.exists, row.paused) for row in rows]
    for row in rows:
        add("waiting", _number(row.waiting))
        add("delayed", _number(row.delayed))
        add("in flight", _number(row.in_flight))
        add("oldest", _age(row.oldest))
        if has_journal:
            add("sent/s", _rate(row.sent))
            add("handled/s", _rate(row.handled))
            add("failed/s", Text(f"{row.failed or 0:,.1f}", "yellow" if row.failed else "dim"))
        else:
            change = row.change
            add("change/s", Text("–", "dim") if change is None else Text(f"{change:+,.1f}"))
        dead = sum(value or 0 for value in row.dead_letters.values())
        add("dead letters", Text(f"{dead:,}", "bold red" if dead else "dim"))
        if has_journal:
            add("workers", _number(row.workers))
    names = [Text(row.queue, "bold" if row.exists else "red") for row in rows]
    made, _ = fit(width, names, cells, _LEAST, "queue")
    made.columns[0].no_wrap, made.columns[0].overflow = True, "ellipsis"  # a line for each queue
    if selected is not None and rows:
        made.rows[selected].style = "reverse"
    return made


def _details(row: QueueRow) -> Text:
    if not row.exists:
        return Text(f"{row.queue} does not exist yet", "red")
    letters = ", ".join(
        f"{'–' if number is None else f'{number:,}'} {kind}"
        for kind, number in row.dead_letters.items()
    )
    line = Text(row.queue, "bold")
    line.append(f": dead letters: {letters or 'none are kept'}", "not bold")
    if row.paused:
        line.append("; paused: no worker receives", "yellow")
    return line


def _number(number: int | None) -> Text:
    if number is None:
        return Text("–", "dim")
    return Text(f"{number:,}", "" if number else "dim")


def _rate(rate: float | None) -> Text:
    return Text("–", "dim") if rate is None else Text(f"{rate:,.1f}", "" if rate else "dim")


def _age(seconds: float | None) -> Text:
    """An age, short: 12 s, 3 min, 5 h, 2 d. A dash if it is not known, or nothing is due."""
    if not seconds:
        return Text("–", "dim")
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length:
            return Text(f"{seconds / length:,.0f} {unit}", "yellow")
    return Text(f"{seconds:,.0f} s", "" if seconds >= 1 else "dim")
