"""``matador queues``: how many messages each queue holds, and pausing queues."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Annotated, TypeAlias

import typer
from rich.console import Group
from rich.live import Live
from rich.text import Text

from matador.cli.commands import Commands, Connecting, File, epilog, flag, option
from matador.cli.completion import names_of
from matador.cli.output import CommandError, fit, out, say_json_line, wrong_usage
from matador.cli.receivers import chosen_queues
from matador.errors import ConfigurationError, QueueNotFoundError
from matador.events.queue_counts import QueueCounts
from matador.model.message import QueueDepth
from matador.observe.sources import Source
from matador.runtime.few_at_once import few_at_once

STATE = "state"
"""The column of ``state_of``, where there is something to say."""
_LEAST = ("in flight", "delayed", "dead letters")

Counted: TypeAlias = Sequence[tuple[Source, QueueCounts]]
"""Queues with their counts, and whose they are."""


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
        counts = asyncio.run(_look(seen, common))
        common.show({"queues": _as_json(counts)}, _as_table(counts))


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
    name = asyncio.run(_pause(common, seen, queue, paused))
    text = f"{name} is paused" if paused else f"{name} is not paused"
    common.show({"queue": name, "paused": paused}, text)


async def _pause(common: Connecting, seen: Sequence[Source], queue: str, paused: bool) -> str:
    """Pause a queue of the sources, or another one of their broker, and return its full name.

    Raises:
        UsageError: there is no such queue.
        CommandError: it is declared, but nobody has made it yet.
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


async def counted(seen: Sequence[Source]) -> list[tuple[Source, QueueCounts]]:
    """The counts of all queues of connected sources."""
    found = await few_at_once(Source.counts, seen)
    return [(source, one) for source, counts in zip(seen, found, strict=True) for one in counts]


async def _look(seen: Sequence[Source], common: Connecting) -> Counted:
    async with common.connected(seen):
        return await counted(seen)


async def _watch(seen: Sequence[Source], interval: float, common: Connecting) -> None:
    async with common.connected(seen):
        if common.as_json:
            while True:
                say_json_line({"queues": _as_json(await counted(seen))})
                await asyncio.sleep(interval)
        console = out()
        if not console.is_terminal:  # somebody reads it, perhaps until there is enough
            while True:
                console.print(_as_table(await counted(seen)))
                await asyncio.sleep(interval)
        with Live(console=console, auto_refresh=False) as live:
            while True:
                live.update(_as_table(await counted(seen)), refresh=True)
                await asyncio.sleep(interval)


def _as_json(counts: Counted) -> list[dict[str, object]]:
    return [
        {
            "queue": one.queue,
            "way": source.way,
            "exists": one.depth is not None,
            "waiting": one.depth and one.depth.ready,
            "delayed": _others(one.depth)[0],
            "in_flight": _others(one.depth)[1],
            "dead_letters": one.dead_letters,
            "paused": one.paused,
        }
        for source, one in counts
    ]


def _as_table(counted: Counted) -> Group:
    counts = [one for _, one in counted]
    cells: dict[str, list[Text]] = {}

    def add(column: str, cell: Text) -> None:
        cells.setdefault(column, []).append(cell)

    names = [Text(one.queue, "" if one.depth is None else "bold") for one in counts]
    if any(one.paused or one.depth is None for one in counts):
        cells[STATE] = [state_of(one.depth is not None, one.paused) for one in counts]
    for one in counts:
        add("waiting", Text("–", "dim") if one.depth is None else _number(one.depth.ready))
        for column, number in zip(("delayed", "in flight"), _others(one.depth), strict=True):
            add(column, _number(number))
        add("dead letters", _number(_letters(one), "bold red"))
    made, left_out = fit(out().width, names, cells, _LEAST, "queue")
    if not left_out:
        return Group(made)
    remark = f"the terminal is too narrow for: {', '.join(left_out)}"
    return Group(made, Text(remark, "dim"))


def _letters(counts: QueueCounts) -> int | None:
    """How many dead letters of all kinds there are; None if that is not known."""
    known = [number for number in counts.dead_letters.values() if number is not None]
    return sum(known) if known else None


def state_of(exists: bool, paused: bool | None) -> Text:
    """What a table says of a queue that is not simply there."""
    if not exists:
        return Text("missing", "red")
    return Text("paused", "bold yellow") if paused else Text()


def _others(depth: QueueDepth | None) -> tuple[int | None, int | None]:
    """The numbers of delayed and in-flight messages, as far as the broker tells them."""
    if depth is None:
        return None, None
    return (
        None if "delayed" in depth.unknown else depth.delayed,
        None if "in_flight" in depth.unknown else depth.in_flight,
    )


def _number(number: int | None, style: str = "") -> Text:
    if number is None:
        return Text("–", "dim")
    return Text(f"{number:,}", style if number else "dim")
