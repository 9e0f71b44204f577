"""``matador worker``: runs everything in a file that receives, until a signal stops it."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from rich.table import Table

from matador.cli.catalogue import contents_of
from matador.cli.commands import Common, Concurrency, File, Queues, Wait, option
from matador.cli.observing import Observing
from matador.cli.output import err, say_json_line, table
from matador.cli.receivers import find, to_run
from matador.cli.reload import Reloading, WorkersFailed
from matador.cli.supervisor import stop_with_supervisor, supervise
from matador.cli.worker_counts import Row, WorkerCounts, display, summaries
from matador.events.app import Matador
from matador.observe.counters import OutcomeCounter
from matador.observe.sources import Runner
from matador.runtime.hooks import Hooks
from matador.runtime.process import run


@dataclass(frozen=True, slots=True, kw_only=True)
class Working:
    """The options of workers that each of several processes gets as well."""

    queues: Queues = None
    concurrency: Concurrency = None
    wait: Wait = None
    process: Annotated[int | None, option("N", "Which process this is.", hidden=True)] = None

    def arguments(self) -> list[str]:
        """Them on the command line of another process."""
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
    """What is received, and what handles it."""
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
