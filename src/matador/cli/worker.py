"""``matador worker``: runs everything in a file that receives, until a signal stops it.

It counts what it does, and shows that live on a terminal, as log lines elsewhere.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any, cast

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from matador.channels import QueueService
from matador.cli.commands import Common, Concurrency, File, Queues, Wait, option
from matador.cli.observing import Observing
from matador.cli.output import ConsoleHandler, err, fit, plural, say_json_line, table
from matador.cli.receivers import contents_of, find, to_run, waiting
from matador.cli.reload import Reloading, WorkersFailed
from matador.cli.supervisor import stop_with_supervisor, supervise
from matador.errors import MatadorError
from matador.events.app import Matador
from matador.observe.counters import OutcomeCounter
from matador.observe.sources import Runner
from matador.policy.retry import Outcome
from matador.runtime.hooks import Hooks
from matador.runtime.process import run

_REFRESH = 0.25
_ASK_DEPTH = 1.0
_ASK_SHARE = 20  # asking for depths takes at most one part in so many of the time
_SUMMARY = 10.0
_SMOOTH = 0.3
_COLUMNS = ("waiting", "in flight", "handled", "per second", "failed", "dead letters")
_LEAST = ("per second", "in flight", "waiting", "failed")  # left out first if it is too narrow


@dataclass(frozen=True, slots=True, kw_only=True)
class Working:
    """The worker options that are passed on to each of several processes."""

    queues: Queues = None
    concurrency: Concurrency = None
    wait: Wait = None
    process: Annotated[int | None, option("N", "Which process this is.", hidden=True)] = None

    def arguments(self) -> list[str]:
        """The options as arguments of another process."""
        given = {"queues": self.queues, "concurrency": self.concurrency, "wait": self.wait}
        named = [(f"--{name}", str(value)) for name, value in given.items() if value is not None]
        return [text for pair in named for text in pair]


Processes = Annotated[int, option("N", "Number of processes. Those that die are restarted.", min=1)]


class _Concurrency(Hooks):
    def __init__(self, number: int) -> None:
        self._number = number

    def get_queue_concurrency(self, queue: str) -> int:
        return self._number


def worker(
    file: File,
    *,
    processes: Processes = 1,
    working: Working,
    reloading: Reloading,
    observing: Observing,
    common: Common,
) -> None:
    """Run everything in a file that receives messages, until Ctrl-C or SIGTERM.

    That is: applications, workers of jobs, queues with declared jobs, RPC servers, subscribers and
    queue services. They run in one process, and are shut down together. FILE:name runs one of them,
    FILE:one,two several. The first signal lets running handlers finish; the second one cancels
    them, and their messages go back. Counts are shown live on a terminal, and as a log line every
    ten seconds elsewhere. --json prints one line each for "started", "counts" and "stopped".
    """
    line = [sys.executable, "-m", "matador", "worker", file]
    if reload(line, file, processes, working, reloading, observing, common):
        return
    found = find(file, common.level(logging.INFO))
    work(to_run(found, working.queues), line, processes, working, observing, common)


def reload(
    line: Sequence[str],
    reference: str,
    processes: int,
    working: Working,
    reloading: Reloading,
    observing: Observing,
    common: Common,
) -> bool:
    """Run the command again and again if ``--reload`` was given; returns whether it was."""
    if not reloading.reload:
        reloading.start()
        return False
    again = [*line, *([] if processes == 1 else ["--processes", str(processes)])]
    again += _options(working, common, observing, processes)
    reloading.run(reference, again)
    return True


def work(
    receivers: Sequence[Runner],
    line: Sequence[str],
    processes: int,
    working: Working,
    observing: Observing,
    common: Common,
) -> None:
    """Run receivers until a signal; ``line`` starts another process of them.

    Raises:
        WorkersFailed: one of several processes failed.
    """
    observing.check()
    observing.start_logs(working.process)
    if working.process is None and not common.as_json and not observing.as_json:
        err().print(_subscriptions(receivers))
    if processes > 1:
        again = [*line, *_options(working, common, observing, processes)]
        # A line of JSON says itself which process it is from.
        results, logs = not common.as_json, not observing.as_json
        if not supervise(again, processes, prefixed=results, prefixed_logs=logs):
            raise WorkersFailed
        return
    counters = [OutcomeCounter() for _ in receivers]
    hooks = observing.hooks_for(receivers)
    for one, counter in zip(receivers, counters, strict=True):
        more = [hook for hook in hooks if hook not in one.hooks]
        if working.concurrency is not None:
            more.append(_Concurrency(working.concurrency))
        if isinstance(one, Matador):
            one.configure(hooks=[counter, *more])
        else:
            one.add_hooks(counter, *more)
        if working.wait is not None:
            one.connect_timeout = working.wait
    endpoint = observing.endpoint(receivers, hooks, working.process)
    if working.process is not None:
        stop_with_supervisor()

    async def show() -> None:
        pairs = zip(receivers, counters, strict=True)
        counts = WorkerCounts([row for one, counter in pairs for row in Row.of(one, counter)])
        console, as_json = err(), common.as_json
        live = (
            console.is_terminal and not (as_json or observing.as_json) and working.process is None
        )
        if as_json:
            started = {"type": "started", "process": working.process, "queues": list(counts.queues)}
            say_json_line(started)
        showing = display(counts, console) if live else summaries(counts, as_json, working.process)
        await showing

    run(*receivers, around=endpoint, meanwhile=show)
    if common.as_json:
        say_json_line({"type": "stopped", "process": working.process})


def _options(working: Working, common: Common, observing: Observing, processes: int) -> list[str]:
    line = working.arguments()
    line += ["--json"] * common.as_json + ["--verbose"] * common.verbose
    return line + observing.arguments(processes)


def _subscriptions(receivers: Sequence[Runner]) -> Table:
    """A table of messages, receivers and queues."""
    made = table("message", "receiver", "queue")
    consumed = {
        one.topology.full_name(name)
        for one in receivers
        if isinstance(one, Matador)
        for name in one.consume_from
    }
    shown = ""
    for one in contents_of(receivers).receivers:
        if one.message.kind == "event" and one.address not in consumed:
            continue
        key = one.message.key
        made.add_row(key if key != shown else "", one.name, one.address)
        shown = key
    return made


log = logging.getLogger("matador.worker")

# -- counts ---------------------------------------------------------------------------------------


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
        """Ask the brokers how many messages wait."""
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
