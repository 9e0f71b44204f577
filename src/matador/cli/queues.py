"""``matador queues``: how many messages each queue holds, and pausing queues."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Annotated

import typer
from rich.console import Group
from rich.live import Live
from rich.text import Text

from matador.cli.commands import App, Commands, Common, epilog, flag, option
from matador.cli.completion import names_of
from matador.cli.connection import connected, known_queue
from matador.cli.output import CommandError, fit, out, say_json_line, wrong_usage
from matador.errors import ConfigurationError, QueueNotFoundError
from matador.events.app import Matador
from matador.events.queue_counts import QueueCounts, count
from matador.events.queue_pauses import require_pausing
from matador.model.message import QueueDepth

STATE = "state"
"""The column of ``state_of``, where there is something to say."""
_LEAST = ("in flight", "delayed")


queues = Commands(
    "Show how many messages each queue holds, and pause or resume queues.\n\n"
    "`matador queues APP` is short for `matador queues list APP`, and takes the same options.",
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
    app: App,
    *,
    watch: Annotated[bool, flag("Refresh until Ctrl-C.", "--watch", "-w")] = False,
    interval: Annotated[float, option("SECONDS", "How often --watch refreshes.", min=0.1)] = 1.0,
    common: Common,
) -> None:
    """Show how many messages each queue holds, how many dead letters, and whether it is paused."""
    target = common.load(app).app
    if watch:
        with contextlib.suppress(KeyboardInterrupt):
            asyncio.run(_watch(target, interval, common.as_json))
    else:
        counts = asyncio.run(_look(target))
        common.show({"queues": _as_json(counts)}, _as_table(counts))


@queues.add("matador queues pause shop.py events")
def pause(app: App, queue: QueueName, *, common: Common) -> None:
    """Stop all workers, in every process, from receiving from a queue until it is resumed.

    The queue still takes messages, and messages that are already being handled are finished. The
    pause outlives restarts of workers.
    """
    _set_paused(common, app, queue, True)


@queues.add("matador queues resume shop.py events")
def resume(app: App, queue: QueueName, *, common: Common) -> None:
    """End the pause of a queue: its workers continue within a second or two."""
    _set_paused(common, app, queue, False)


def _set_paused(common: Common, app: str, queue: str, paused: bool) -> None:
    target = common.load(app).app
    name = asyncio.run(_pause(target, queue, paused))
    text = f"{name} is paused" if paused else f"{name} is not paused"
    common.show({"queue": name, "paused": paused}, text)


async def _pause(app: Matador, queue: str, paused: bool) -> str:
    """Pause a queue of the application, or another one of its broker, and return its full name.

    Raises:
        UsageError: there is no such queue.
        CommandError: it is in the topology, but nobody has made it yet.
        UnsupportedError: the transport cannot pause queues.
    """
    known = app.topology.has_queue(queue)
    name = app.topology.full_name(app.topology.queue(queue).name) if known else queue
    async with connected(app):
        transport = require_pausing(app.transport)
        try:
            with wrong_usage(ConfigurationError):
                await (transport.pause_queue(name) if paused else transport.resume_queue(name))
        except QueueNotFoundError as error:
            if known:
                raise CommandError(
                    f"{name} does not exist yet: start a worker, or run `matador topology apply`"
                ) from error
            known_queue(app, queue)
            raise
    return name


async def _look(app: Matador) -> list[QueueCounts]:
    async with connected(app):
        return await count(app)


async def _watch(app: Matador, interval: float, as_json: bool) -> None:
    async with connected(app):
        if as_json:
            while True:
                say_json_line({"queues": _as_json(await count(app))})
                await asyncio.sleep(interval)
        console = out()
        if not console.is_terminal:  # somebody reads it, perhaps until there is enough
            while True:
                console.print(_as_table(await count(app)))
                await asyncio.sleep(interval)
        with Live(console=console, auto_refresh=False) as live:
            while True:
                live.update(_as_table(await count(app)), refresh=True)
                await asyncio.sleep(interval)


def _as_json(counts: list[QueueCounts]) -> list[dict[str, object]]:
    return [
        {
            "queue": one.queue,
            "exists": one.depth is not None,
            "ready": one.depth and one.depth.ready,
            "delayed": _others(one.depth)[0],
            "in_flight": _others(one.depth)[1],
            "dead_letters": one.dead_letters,
            "paused": one.paused,
        }
        for one in counts
    ]


def _as_table(counts: list[QueueCounts]) -> Group:
    kinds = list(dict.fromkeys(kind for one in counts for kind in one.dead_letters))
    cells: dict[str, list[Text]] = {}

    def add(column: str, cell: Text) -> None:
        cells.setdefault(column, []).append(cell)

    names = [Text(one.queue, "" if one.depth is None else "bold") for one in counts]
    if any(one.paused or one.depth is None for one in counts):
        cells[STATE] = [state_of(one.depth is not None, one.paused) for one in counts]
    for one in counts:
        add("ready", Text("–", "dim") if one.depth is None else _number(one.depth.ready))
        for column, number in zip(("delayed", "in flight"), _others(one.depth), strict=True):
            add(column, _number(number))
        for kind in kinds:
            add(kind, _number(one.dead_letters.get(kind), "bold red"))
    made, left_out = fit(out().width, names, cells, (*_LEAST, *kinds), "queue")
    if not left_out:
        return Group(made)
    remark = f"the terminal is too narrow for: {', '.join(left_out)}"
    return Group(made, Text(remark, "dim"))


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
