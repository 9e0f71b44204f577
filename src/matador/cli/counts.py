"""What a worker does, counted by hooks and shown: live on a terminal, as log lines elsewhere."""

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
_ASK_SHARE = 20  # asking for depths may take this part of the time, no more
_SUMMARY = 10.0
_SMOOTH = 0.3


@dataclass(slots=True)
class Tally:
    """What became of the messages of one queue."""

    handled: int = 0
    failed: int = 0
    dead: int = 0
    rate: float = 0.0
    depth: QueueDepth | None = None
    _before: int = field(default=0, repr=False)

    def measure(self, seconds: float) -> None:
        """Bring the rate up to date, ``seconds`` after the last time."""
        now = (self.handled - self._before) / seconds
        self._before = self.handled
        self.rate = now if self.rate == 0 else self.rate + _SMOOTH * (now - self.rate)
        if self.rate < 0.05:
            self.rate = 0.0

    @property
    def numbers(self) -> tuple[int, int, int]:
        """Handled, failed, dead-lettered."""
        return self.handled, self.failed, self.dead


class Counting(Hooks):
    """Counts by queue. The hooks are plain functions, so that no worker waits for them."""

    def __init__(self, queues: list[str]) -> None:
        self.tallies = {queue: Tally() for queue in queues}

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
        tally = self._of(queue)
        tally.failed += 1
        tally.dead += dead

    def _of(self, queue: str) -> Tally:
        return self.tallies.setdefault(queue, Tally())


def display(app: Matador, counting: Counting, console: Console) -> Callable[[], Awaitable[None]]:
    """Shows the counts on a terminal, a few times a second, until it is cancelled."""

    async def show() -> None:
        asked = 0.0
        pause = _ASK_DEPTH
        last = time.monotonic()
        with Live(console=console, auto_refresh=False) as live, _logs_above():
            try:
                while True:
                    now = time.monotonic()
                    if now - asked >= pause:
                        await _ask_depths(app, counting)
                        asked = time.monotonic()
                        pause = max(_ASK_DEPTH, _ASK_SHARE * (asked - now))
                        for tally in counting.tallies.values():
                            tally.measure(max(asked - last, 0.001))
                        last = asked
                    live.update(_as_table(app, counting), refresh=True)
                    await asyncio.sleep(_REFRESH)
            finally:
                live.update(_as_table(app, counting), refresh=True)

    return show


def summaries(
    counting: Counting, *, as_json: bool, process: int | None
) -> Callable[[], Awaitable[None]]:
    """Says every ten seconds what has changed, and once more when it is cancelled."""

    async def summarise() -> None:
        before: dict[str, tuple[int, int, int]] = {}

        def say() -> None:
            nonlocal before
            numbers = {queue: tally.numbers for queue, tally in counting.tallies.items()}
            if numbers == before or not any(map(any, numbers.values())):
                return
            before = numbers
            if as_json:
                say_json_line(_as_json(counting, process))
            else:
                log.info("%s", _as_line(counting))

        try:
            while True:
                await asyncio.sleep(_SUMMARY)
                say()
        finally:
            say()

    return summarise


@contextmanager
def _logs_above() -> Generator[None]:
    """Have handlers that the application set up itself print above the display, not into it."""
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


async def _ask_depths(app: Matador, counting: Counting) -> None:
    transport = app.transport
    if not transport.capabilities.depth or not isinstance(transport, Measuring):
        return
    for queue, tally in counting.tallies.items():
        try:
            tally.depth = await transport.depth(queue)
        except MatadorError:  # it is reconnecting, or gone: the log says so
            tally.depth = None


def _as_table(app: Matador, counting: Counting) -> Table:
    numbers = ("waiting", "in progress", "handled", "per second", "failed", "dead letters")
    made = table("queue", *numbers, right=numbers)
    running = {one.queue: one.in_progress for one in (app.worker.consumers if app.worker else ())}
    for queue, tally in counting.tallies.items():
        waiting = "–" if tally.depth is None else f"{tally.depth.ready + tally.depth.delayed:,}"
        made.add_row(
            Text(queue, "bold"),
            waiting,
            f"{running.get(queue, 0):,}",
            f"{tally.handled:,}",
            f"{tally.rate:,.1f}",
            Text(f"{tally.failed:,}", "yellow" if tally.failed else "dim"),
            Text(f"{tally.dead:,}", "bold red" if tally.dead else "dim"),
        )
    return made


def _as_line(counting: Counting) -> str:
    return "; ".join(
        f"{queue}: {tally.handled:,} handled, {tally.failed:,} failed, {tally.dead:,} dead letters"
        for queue, tally in counting.tallies.items()
    )


def _as_json(counting: Counting, process: int | None) -> dict[str, object]:
    return {
        "type": "counts",
        "process": process,
        "queues": {
            queue: {"handled": tally.handled, "failed": tally.failed, "dead_letters": tally.dead}
            for queue, tally in counting.tallies.items()
        },
    }
