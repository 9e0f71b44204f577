"""``matador queues``: how many messages each queue holds, and pausing queues."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from matador.cli.commands import Commands, Connecting, File, epilog, flag, option
from matador.cli.completion import names_of
from matador.cli.output import CommandError, fit, number_cell, out, say_json_line, wrong_usage
from matador.cli.receivers import chosen_queues
from matador.cli.resources import show_paused
from matador.errors import ConfigurationError, QueueNotFoundError
from matador.events.queue_counts import QueueCounts
from matador.model.message import QueueDepth
from matador.observe.sources import Source
from matador.runtime.few_at_once import few_at_once

_LEAST = ("in flight", "delayed", "dead letters")

queues = Commands(
    "Show how many messages each queue holds, and pause or resume queues.\n\n"
    "`matador queues FILE` is short for `matador queues list FILE`, and takes the same options.",
    default="list",
    epilog=epilog("matador queues shop.py", "matador queues pause shop.py events"),
)

QueueName = Annotated[
    str,
    typer.Argument(
        metavar="QUEUE",
        help="The name of the queue; the full name of one that is not in the topology.",
        show_default=False,
        autocompletion=names_of("queues"),
    ),
]


@queues.add(
    "matador queues list shop.py",
    "matador queues shop.py",
    "matador queues shop.py --watch",
    name="list",
)
def list_queues(
    file: File,
    *,
    watch: Annotated[bool, flag("Refresh until Ctrl-C.", "--watch", "-w")] = False,
    interval: Annotated[float, option("SECONDS", "How often --watch refreshes.", min=0.1)] = 1.0,
    common: Connecting,
) -> None:
    """Show how many messages each queue holds, how many dead letters, and whether it is paused."""
    seen = common.sources(file)
    if watch:
        with contextlib.suppress(KeyboardInterrupt):
            asyncio.run(_watch(seen, interval, common))
    else:
        rows = asyncio.run(_look(seen, common))
        common.show(_as_json(rows), _as_view(rows))


@queues.add("matador queues pause shop.py events")
def pause(file: File, queue: QueueName, *, common: Connecting) -> None:
    """Stop all workers, in every process, from receiving from a queue until it is resumed.

    The queue still takes messages, and messages that are already being handled are finished. The
    pause outlives restarts of workers.
    """
    _set_paused(common, file, queue, True)


@queues.add("matador queues resume shop.py events")
def resume(file: File, queue: QueueName, *, common: Connecting) -> None:
    """End the pause of a queue: its workers continue within a second or two."""
    _set_paused(common, file, queue, False)


def _set_paused(common: Connecting, file: str, queue: str, paused: bool) -> None:
    seen = common.sources(file)
    show_paused(common, asyncio.run(_pause(common, seen, queue, paused)), paused)


async def _pause(common: Connecting, seen: Sequence[Source], queue: str, paused: bool) -> str:
    """Pause a queue of the sources, or another one of their broker, and return its full name.

    Raises:
        UsageError: there is no such queue.
        CommandError: it is declared, but does not exist yet.
        UnsupportedError: the transport cannot pause queues.
    """
    known = [
        (one, one.topology.full_name(one.topology.queue(queue).name))
        for one in seen
        if one.topology.has_queue(queue)
    ]
    source, name = known[0] if known else (seen[0], queue)
    async with common.connected([source]):
        try:
            with wrong_usage(ConfigurationError):
                await source.pause(name, paused)
        except QueueNotFoundError as error:
            if known:
                raise CommandError(
                    f"{name} does not exist yet: start a worker, or run `matador topology apply`"
                ) from error
            chosen_queues(seen, queue)
            raise
    return name


async def _look(seen: Sequence[Source], common: Connecting) -> list[QueueRow]:
    async with common.connected(seen):
        return await counted(seen)


async def _watch(seen: Sequence[Source], interval: float, common: Connecting) -> None:
    console = out()
    live = console.is_terminal and not common.as_json
    async with common.connected(seen):
        with Live(console=console, auto_refresh=False) if live else nullcontext() as view:
            while True:
                rows = await counted(seen)
                if view is not None:
                    view.update(_as_view(rows), refresh=True)
                elif common.as_json:
                    say_json_line(_as_json(rows))
                else:  # a program reads it, perhaps only the first lines
                    console.print(_as_view(rows))
                await asyncio.sleep(interval)


# -- rows -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class QueueRow:
    """The counts of a queue at one moment, and its source. None: not known."""

    source: Source
    counts: QueueCounts

    @property
    def queue(self) -> str:
        """Its full name."""
        return self.counts.queue

    @property
    def depth(self) -> QueueDepth | None:
        """The number of messages in each state; None if the queue does not exist."""
        return self.counts.depth

    @property
    def exists(self) -> bool:
        """Whether the broker has the queue."""
        return self.depth is not None

    @property
    def numbers(self) -> dict[str, int | None]:
        """The number of messages in each state, as ``--json`` names them."""
        depth = self.depth
        if depth is None:
            return {"waiting": None, "delayed": None, "in_flight": None}
        return {
            "waiting": depth.ready,
            "delayed": None if "delayed" in depth.unknown else depth.delayed,
            "in_flight": None if "in_flight" in depth.unknown else depth.in_flight,
        }

    @property
    def letters(self) -> int | None:
        """The number of dead letters of all kinds."""
        known = [number for number in self.counts.dead_letters.values() if number is not None]
        return sum(known) if known else None

    def cells(self) -> dict[str, Text]:
        """The columns that every table of queues has."""
        numbers = {name.replace("_", " "): number for name, number in self.numbers.items()}
        cells = {name: number_cell(number) for name, number in numbers.items()}
        return {**cells, "dead letters": number_cell(self.letters, "bold red")}

    def as_json(self) -> dict[str, Any]:
        """The fields that ``--json`` prints."""
        return {
            "queue": self.queue,
            "exists": self.exists,
            **self.numbers,
            "dead_letters": self.counts.dead_letters,
            "paused": self.counts.paused,
        }


async def counted(seen: Sequence[Source]) -> list[QueueRow]:
    """All queues of connected sources."""
    found = await few_at_once(Source.counts, seen)
    return [
        QueueRow(source, one) for source, counts in zip(seen, found, strict=True) for one in counts
    ]


def queue_table(
    rows: Sequence[QueueRow], cells: Sequence[Mapping[str, Text]], width: int, least: Sequence[str]
) -> tuple[Table, list[str]]:
    """A table with one line per queue, and the columns that do not fit. See ``fit``."""
    columns: dict[str, list[Text]] = {}
    if any(row.counts.paused or not row.exists for row in rows):
        columns["state"] = [_state(row) for row in rows]
    for line in cells:
        for column, cell in line.items():
            columns.setdefault(column, []).append(cell)
    names = [Text(row.queue, "bold" if row.exists else "") for row in rows]
    return fit(width, names, columns, least, "queue")


def _state(row: QueueRow) -> Text:
    if not row.exists:
        return Text("missing", "red")
    return Text("paused", "bold yellow") if row.counts.paused else Text()


def _as_json(rows: Sequence[QueueRow]) -> dict[str, Any]:
    return {"queues": [{**row.as_json(), "way": row.source.way} for row in rows]}


def _as_view(rows: Sequence[QueueRow]) -> Group:
    made, left_out = queue_table(rows, [row.cells() for row in rows], out().width, _LEAST)
    if not left_out:
        return Group(made)
    remark = f"the terminal is too narrow for: {', '.join(left_out)}"
    return Group(made, Text(remark, "dim"))
