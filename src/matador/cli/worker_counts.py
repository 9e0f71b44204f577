"""Counts what a worker does and shows it: live on a terminal, as log lines elsewhere."""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from matador.channels import QueueService
from matador.cli.output import ConsoleHandler, fit, plural, say_json_line
from matador.cli.receivers import waiting
from matador.errors import MatadorError
from matador.events.app import Matador
from matador.observe.counters import OutcomeCounter
from matador.observe.sources import Runner
from matador.policy.retry import Outcome

log = logging.getLogger("matador.worker")

_REFRESH = 0.25
_ASK_DEPTH = 1.0
_ASK_SHARE = 20  # asking for depths takes at most one part in so many of the time
_SUMMARY = 10.0
_SMOOTH = 0.3
_COLUMNS = ("waiting", "in flight", "handled", "per second", "failed", "dead letters")
_LEAST = ("per second", "in flight", "waiting", "failed")  # left out first if it is too narrow


@dataclass(frozen=True, slots=True)
class Row:
    """A queue that a running receiver consumes.

    ``label`` is its name for people. ``only``: its name in the counter, if there are others in it.
    """

    label: str
    receiver: Runner
    counter: OutcomeCounter
    only: str | None = None

    @classmethod
    def of(cls, receiver: Runner, counter: OutcomeCounter) -> list[Row]:
        """The queues of a receiver, which has been started."""
        if isinstance(receiver, Matador | QueueService):
            queues = [one.queue for one in receiver.consumer_health]
            return [cls(queue, receiver, counter, queue) for queue in queues]
        return [cls(receiver.queue, receiver, counter)]

    def total(self, *outcomes: Outcome) -> int:
        """How many attempts had these outcomes."""
        return self.counter.total(self.only, *outcomes)

    @property
    def in_progress(self) -> int:
        """How many messages it has received and not settled."""
        health = self.receiver.consumer_health
        return sum(one.running + one.waiting for one in health if self.only in (None, one.queue))


class WorkerCounts:
    """The outcomes of a worker's messages by queue, with rates and depths."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self._rows: dict[str, list[Row]] = {}
        for one in rows:
            self._rows.setdefault(one.label, []).append(one)
        self.queues = list(self._rows)
        self.rates = dict.fromkeys(self.queues, 0.0)
        self.waiting: dict[str, int | None] = {}
        self._before = dict.fromkeys(self.queues, 0)

    def numbers(self, queue: str) -> dict[str, int]:
        """The counts of a queue, as ``--json`` names them."""
        return {
            "handled": self._total(queue, "success"),
            "failed": self._total(queue, "retry", "dead-letter", "discard"),
            "dead_letters": self._total(queue, "dead-letter"),
        }

    def in_progress(self, queue: str) -> int:
        """How many messages of a queue this worker has received and not settled."""
        return sum(one.in_progress for one in self._rows[queue])

    async def ask_waiting(self) -> None:
        """Ask how many messages wait."""
        for queue, rows in self._rows.items():
            try:
                self.waiting[queue] = await waiting(rows[0].receiver, rows[0].only)
            except MatadorError:  # the connection is down; the log says so
                self.waiting[queue] = None

    def _total(self, queue: str, *outcomes: Outcome) -> int:
        return sum(one.total(*outcomes) for one in self._rows[queue])

    def measure(self, seconds: float) -> None:
        """Update the rates, ``seconds`` after the last time."""
        for queue, before in self._before.items():
            handled = self._total(queue, "success")
            now, rate = (handled - before) / seconds, self.rates[queue]
            rate = now if rate == 0 else rate + _SMOOTH * (now - rate)
            self.rates[queue] = rate if rate >= 0.05 else 0.0
            self._before[queue] = handled


async def display(counts: WorkerCounts, console: Console) -> None:
    """Show the counts on a terminal, a few times a second, until cancelled."""
    asked = 0.0
    pause = _ASK_DEPTH
    last = time.monotonic()
    with Live(console=console, auto_refresh=False) as live, _logs_above(console):
        try:
            while True:
                now = time.monotonic()
                if now - asked >= pause:
                    await counts.ask_waiting()
                    asked = time.monotonic()
                    pause = max(_ASK_DEPTH, _ASK_SHARE * (asked - now))
                    counts.measure(max(asked - last, 0.001))
                    last = asked
                live.update(_as_table(counts, console.width), refresh=True)
                await asyncio.sleep(_REFRESH)
        finally:
            live.update(_as_table(counts, console.width), refresh=True)


async def summaries(counts: WorkerCounts, as_json: bool, process: int | None) -> None:
    """Print the counts every ten seconds if they have changed, and once more when cancelled."""
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


def _as_table(counts: WorkerCounts, width: int) -> Table:
    columns: dict[str, list[Text]] = {name: [] for name in _COLUMNS}
    for queue in counts.queues:
        count, ready = counts.numbers(queue), counts.waiting.get(queue)
        failed, dead = count["failed"], count["dead_letters"]
        cells = (
            Text("–" if ready is None else f"{ready:,}"),
            Text(f"{counts.in_progress(queue):,}"),
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
