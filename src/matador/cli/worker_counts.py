"""Counts what a worker does and shows it: live on a terminal, as log lines elsewhere."""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from matador.cli.output import say_json_line, table
from matador.errors import MatadorError
from matador.events.app import Matador
from matador.events.hooks import DecodeFailure, Hooks, WorkerError, WorkerSuccess
from matador.model.message import QueueDepth
from matador.policy.retry import SendToDeadLetters
from matador.transports.base import Measuring

log = logging.getLogger("matador.worker")

_REFRESH = 0.25
_ASK_DEPTH = 1.0
_ASK_SHARE = 20  # asking for depths takes at most one part in so many of the time
_SUMMARY = 10.0
_SMOOTH = 0.3


@dataclass(slots=True)
class QueueProgress:
    """The outcomes of one queue's messages."""

    handled: int = 0
    failed: int = 0
    dead: int = 0
    rate: float = 0.0
    depth: QueueDepth | None = None
    _before: int = field(default=0, repr=False)

    def measure(self, seconds: float) -> None:
        """Update the rate, ``seconds`` after the last time."""
        now = (self.handled - self._before) / seconds
        self._before = self.handled
        self.rate = now if self.rate == 0 else self.rate + _SMOOTH * (now - self.rate)
        if self.rate < 0.05:
            self.rate = 0.0

    @property
    def numbers(self) -> tuple[int, int, int]:
        """Handled, failed, dead-lettered."""
        return self.handled, self.failed, self.dead


class WorkerCounts(Hooks):
    """Counts by queue. The hooks are plain functions, so that workers do not wait for them."""

    def __init__(self, queues: list[str]) -> None:
        self.queues = {queue: QueueProgress() for queue in queues}

    def on_worker_success(self, event: WorkerSuccess) -> None:
        """See ``Hooks``."""
        self._of(event.queue).handled += 1

    def on_worker_error(self, event: WorkerError) -> None:
        """See ``Hooks``."""
        self._failed(event.queue, isinstance(event.decision, SendToDeadLetters))

    def on_decode_error(self, event: DecodeFailure) -> None:
        """See ``Hooks``."""
        self._failed(event.queue, isinstance(event.decision, SendToDeadLetters))

    def _failed(self, queue: str, dead: bool) -> None:
        one = self._of(queue)
        one.failed += 1
        one.dead += dead

    def _of(self, queue: str) -> QueueProgress:
        return self.queues.setdefault(queue, QueueProgress())


def display(app: Matador, counts: WorkerCounts, console: Console) -> Callable[[], Awaitable[None]]:
    """Shows the counts on a terminal, a few times a second, until cancelled."""

    async def show() -> None:
        asked = 0.0
        pause = _ASK_DEPTH
        last = time.monotonic()
        with Live(console=console, auto_refresh=False) as live, _logs_above():
            try:
                while True:
                    now = time.monotonic()
                    if now - asked >= pause:
                        await _ask_depths(app, counts)
                        asked = time.monotonic()
                        pause = max(_ASK_DEPTH, _ASK_SHARE * (asked - now))
                        for one in counts.queues.values():
                            one.measure(max(asked - last, 0.001))
                        last = asked
                    live.update(_as_table(app, counts), refresh=True)
                    await asyncio.sleep(_REFRESH)
            finally:
                live.update(_as_table(app, counts), refresh=True)

    return show


def summaries(
    counts: WorkerCounts, *, as_json: bool, process: int | None
) -> Callable[[], Awaitable[None]]:
    """Prints the counts every ten seconds if they have changed, and once more when cancelled."""

    async def summarise() -> None:
        before: dict[str, tuple[int, int, int]] = {}

        def say() -> None:
            nonlocal before
            numbers = {queue: one.numbers for queue, one in counts.queues.items()}
            if numbers == before or not any(map(any, numbers.values())):
                return
            before = numbers
            if as_json:
                say_json_line(_as_json(counts, process))
            else:
                log.info("%s", _as_line(counts))

        try:
            while True:
                await asyncio.sleep(_SUMMARY)
                say()
        finally:
            say()

    return summarise


@contextmanager
def _logs_above() -> Generator[None]:
    """Make log handlers of the application print above the display, not into it."""
    moved: list[tuple[logging.StreamHandler[Any], Any]] = []
    for found in logging.getLogger().handlers:
        if isinstance(found, logging.StreamHandler):
            handler = cast("logging.StreamHandler[Any]", found)
            if handler.stream in (sys.__stderr__, sys.__stdout__):
                moved.append((handler, handler.setStream(sys.stderr)))
    try:
        yield
    finally:
        for handler, stream in moved:
            handler.setStream(stream)


async def _ask_depths(app: Matador, counts: WorkerCounts) -> None:
    transport = app.transport
    if not transport.capabilities.depth or not isinstance(transport, Measuring):
        return
    for queue, one in counts.queues.items():
        try:
            one.depth = await transport.depth(queue)
        except MatadorError:  # the connection is down; the log says so
            one.depth = None


def _as_table(app: Matador, counts: WorkerCounts) -> Table:
    numbers = ("waiting", "in progress", "handled", "per second", "failed", "dead letters")
    made = table("queue", *numbers, right=numbers)
    running = {one.queue: one.running + one.waiting for one in app.health().queues}
    for queue, one in counts.queues.items():
        waiting = "–" if one.depth is None else f"{one.depth.ready + one.depth.delayed:,}"
        made.add_row(
            Text(queue, "bold"),
            waiting,
            f"{running.get(queue, 0):,}",
            f"{one.handled:,}",
            f"{one.rate:,.1f}",
            Text(f"{one.failed:,}", "yellow" if one.failed else "dim"),
            Text(f"{one.dead:,}", "bold red" if one.dead else "dim"),
        )
    return made


def _as_line(counts: WorkerCounts) -> str:
    return "; ".join(
        f"{queue}: {one.handled:,} handled, {one.failed:,} failed, {one.dead:,} dead letters"
        for queue, one in counts.queues.items()
    )


def _as_json(counts: WorkerCounts, process: int | None) -> dict[str, object]:
    return {
        "type": "counts",
        "process": process,
        "queues": {
            queue: {"handled": one.handled, "failed": one.failed, "dead_letters": one.dead}
            for queue, one in counts.queues.items()
        },
    }
