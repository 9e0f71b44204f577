"""``matador queues``: how many messages each queue holds."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Annotated

from rich.live import Live
from rich.table import Table
from rich.text import Text

from matador.cli.commands import App, Common, flag, option
from matador.cli.connection import connected
from matador.cli.output import out, say_json_line, table
from matador.events.app import Matador
from matador.events.queue_counts import QueueCounts, count
from matador.model.message import QueueDepth

_NUMBERS = ("ready", "delayed", "in flight", "unhandled", "undeliverable", "dlq")


def queues(
    app: App,
    *,
    watch: Annotated[bool, flag("Refresh until Ctrl-C.", "--watch", "-w")] = False,
    interval: Annotated[float, option("SECONDS", "How often --watch refreshes.", min=0.1)] = 1.0,
    common: Common,
) -> None:
    """Show how many messages each queue holds, and how many dead letters."""
    target = common.load(app).app
    if watch:
        with contextlib.suppress(KeyboardInterrupt):
            asyncio.run(_watch(target, interval, common.as_json))
    else:
        counts = asyncio.run(_look(target))
        common.show({"queues": _as_json(counts)}, _as_table(counts))


async def _look(app: Matador) -> list[QueueCounts]:
    async with connected(app):
        return await count(app)


async def _watch(app: Matador, interval: float, as_json: bool) -> None:
    async with connected(app):
        if as_json:
            while True:
                say_json_line({"queues": _as_json(await count(app))})
                await asyncio.sleep(interval)
        with Live(console=out(), auto_refresh=False) as live:
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
        }
        for one in counts
    ]


def _as_table(counts: list[QueueCounts]) -> Table:
    kinds = list(dict.fromkeys(kind for one in counts for kind in one.dead_letters))
    made = table("queue", "ready", "delayed", "in flight", *kinds, right=_NUMBERS)
    for one in counts:
        if one.depth is None:
            made.add_row(one.queue, Text("missing", "red"))
            continue
        depth = one.depth
        numbers = [_number(n) for n in (depth.ready, *_others(depth))]
        letters = [_number(one.dead_letters.get(kind) or 0, "bold red") for kind in kinds]
        made.add_row(Text(one.queue, "bold"), *numbers, *letters)
    return made


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
