"""Counts what a worker does and shows it: live on a terminal, as log lines elsewhere."""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, cast

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from matador.cli.output import ConsoleHandler, fit, plural, say_json_line
from matador.errors import MatadorError
from matador.policy.retry import Outcome

log = logging.getLogger("matador.worker")

_REFRESH = 0.25
_ASK_DEPTH = 1.0
_ASK_SHARE = 20  # asking for depths takes at most one part in so many of the time
_SUMMARY = 10.0
_SMOOTH = 0.3
_COLUMNS = ("waiting", "in progress", "handled", "per second", "failed", "dead letters")
_LEAST = ("per second", "in progress", "waiting", "failed")  # left out first if it is too narrow


class OutcomeTotals(Protocol):
    """Counts the outcomes of attempts, as ``OutcomeCounter`` does."""

    def total(self, queue: str | None = None, *outcomes: Outcome) -> int:
        """The number of attempts with these outcomes, on one queue or on all."""
        ...


@dataclass(frozen=True, slots=True)
class QueueWatch:
    """What the display asks beside the counts.

    ``waiting`` returns how many messages wait in a queue; None if the broker does not tell.
    ``in_progress`` returns by queue how many this worker has received and not settled.
    """

    waiting: Callable[[str], Awaitable[int | None]]
    in_progress: Callable[[], Mapping[str, int]]


class WorkerCounts:
    """The outcomes of a worker's messages by queue, with rates and depths."""

    def __init__(self, queues: Sequence[str], counter: OutcomeTotals) -> None:
        self.queues = queues
        self.counter = counter
        self.rates = dict.fromkeys(queues, 0.0)
        self.waiting: dict[str, int | None] = {}
        self._before = dict.fromkeys(queues, 0)

    def numbers(self, queue: str) -> dict[str, int]:
        """The counts of a queue, as ``--json`` names them."""
        total = self.counter.total
        return {
            "handled": total(queue, "success"),
            "failed": total(queue, "retry", "dead-letter", "discard"),
            "dead_letters": total(queue, "dead-letter"),
        }

    def measure(self, seconds: float) -> None:
        """Update the rates, ``seconds`` after the last time."""
        for queue, before in self._before.items():
            handled = self.counter.total(queue, "success")
            now, rate = (handled - before) / seconds, self.rates[queue]
            rate = now if rate == 0 else rate + _SMOOTH * (now - rate)
            self.rates[queue] = rate if rate >= 0.05 else 0.0
            self._before[queue] = handled


def display(
    watch: QueueWatch, counts: WorkerCounts, console: Console
) -> Callable[[], Awaitable[None]]:
    """Shows the counts on a terminal, a few times a second, until cancelled."""

    async def show() -> None:
        asked = 0.0
        pause = _ASK_DEPTH
        last = time.monotonic()
        with Live(console=console, auto_refresh=False) as live, _logs_above(console):
            try:
                while True:
                    now = time.monotonic()
                    if now - asked >= pause:
                        await _ask_waiting(watch, counts)
                        asked = time.monotonic()
                        pause = max(_ASK_DEPTH, _ASK_SHARE * (asked - now))
                        counts.measure(max(asked - last, 0.001))
                        last = asked
                    live.update(_as_table(watch, counts, console.width), refresh=True)
                    await asyncio.sleep(_REFRESH)
            finally:
                live.update(_as_table(watch, counts, console.width), refresh=True)

    return show


def summaries(
    counts: WorkerCounts, *, as_json: bool, process: int | None
) -> Callable[[], Awaitable[None]]:
    """Prints the counts every ten seconds if they have changed, and once more when cancelled."""

    async def summarise() -> None:
        before: dict[str, dict[str, int]] = {}

        def say() -> None:
            nonlocal before
            numbers = {queue: counts.numbers(queue) for queue in counts.queues}
            if numbers == before or not any(any(one.values()) for one in numbers.values()):
                return
            before = numbers
            if as_json:
                say_json_line({"type": "counts", "process": process, "queues": numbers})
            else:
                log.info("%s", _as_line(numbers))

        try:
            while True:
                await asyncio.sleep(_SUMMARY)
                say()
        finally:
            say()

    return summarise


@contextmanager
def _logs_above(console: Console) -> Generator[None]:
    """Make log handlers, ours and those of the application, print above the display, not into it.

    Another console would know nothing of the display.
    """
    moved: list[tuple[logging.StreamHandler[Any], Any]] = []
    ours: list[tuple[ConsoleHandler, Console]] = []
    for found in logging.getLogger().handlers:
        if isinstance(found, ConsoleHandler):
            ours.append((found, found.console))
            found.console = console
        elif isinstance(found, logging.StreamHandler):
            handler = cast("logging.StreamHandler[Any]", found)
            if handler.stream in (sys.__stderr__, sys.__stdout__):
                moved.append((handler, handler.setStream(sys.stderr)))
    try:
        yield
    finally:
        for handler, stream in moved:
            handler.setStream(stream)
        for handler, before in ours:
            handler.console = before


async def _ask_waiting(watch: QueueWatch, counts: WorkerCounts) -> None:
    for queue in counts.queues:
        try:
            counts.waiting[queue] = await watch.waiting(queue)
        except MatadorError:  # the connection is down; the log says so
            counts.waiting[queue] = None


def _as_table(watch: QueueWatch, counts: WorkerCounts, width: int) -> Table:
    columns: dict[str, list[Text]] = {name: [] for name in _COLUMNS}
    running = watch.in_progress()
    for queue in counts.queues:
        count, waiting = counts.numbers(queue), counts.waiting.get(queue)
        failed, dead = count["failed"], count["dead_letters"]
        cells = (
            Text("–" if waiting is None else f"{waiting:,}"),
            Text(f"{running.get(queue, 0):,}"),
            Text(f"{count['handled']:,}"),
            Text(f"{counts.rates[queue]:,.1f}"),
            Text(f"{failed:,}", "yellow" if failed else "dim"),
            Text(f"{dead:,}", "bold red" if dead else "dim"),
        )
        for column, cell in zip(columns.values(), cells, strict=True):
            column.append(cell)
    names = [Text(queue, "bold") for queue in counts.queues]
    return fit(width, names, columns, _LEAST, "queue")[0]


def _as_line(numbers: dict[str, dict[str, int]]) -> str:
    return "; ".join(
        f"{queue}: {one['handled']:,} handled, {one['failed']:,} failed, "
        f"{plural(one['dead_letters'], 'dead letter')}"
        for queue, one in numbers.items()
    )
