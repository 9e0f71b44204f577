"""Redrives and purges for people: counts, asks, shows how far it is, and says what came of it."""

from __future__ import annotations

import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import nullcontext
from typing import Literal, TypeAlias

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from matador.cli.connecting import connected
from matador.cli.filters import doubt, meant_ids
from matador.cli.output import (
    FAILED,
    CommandError,
    UsageError,
    complain,
    err,
    note,
    plural,
    say,
    say_json,
    warn,
)
from matador.events.app import Matador
from matador.events.dead_letters import DeadLetterOffice, Moved, Place, Selection

Verb: TypeAlias = Literal["redrive", "purge"]
Mover: TypeAlias = Callable[..., Awaitable[Moved]]

_DONE: dict[Verb, str] = {"redrive": "redriven", "purge": "purged"}


async def move(
    app: Matador, selection: Selection, limit: int | None, verb: Verb, yes: bool, as_json: bool
) -> None:
    """Move the dead letters that are meant, once it is agreed to."""
    async with connected(app):
        office = app.dead_letters
        console = err()
        with console.status("looking…") if console.is_terminal else nullcontext():
            places = await office.choose(selection, limit=limit)
        doubt(selection.where)
        if selection.ids:
            meant = meant_ids(selection.ids, (place.id for place in places))
            places = [place for place in places if place.id in meant]
        if places and not yes:
            _ask(verb, len(places))
        mover: Mover = office.redrive if verb == "redrive" else office.purge
        moved = await _with_progress(office, mover, places, verb)
    _report(moved, verb, len(places), as_json)


def _ask(verb: Verb, number: int) -> None:
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError(
            f"{plural(number, 'dead letter')} would be {_DONE[verb]}; "
            f"add --yes to do it without asking"
        )
    err().print(f"{verb} {plural(number, 'dead letter')}? [y/N] ", end="")
    # The event loop would only note a Ctrl-C, and go on waiting for the answer.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        answer = sys.stdin.readline()
    finally:
        signal.signal(signal.SIGINT, before)
    if answer.strip().lower() not in ("y", "yes"):
        raise CommandError("nothing was changed")


async def _with_progress(
    office: DeadLetterOffice, mover: Mover, places: Sequence[Place], verb: Verb
) -> Moved:
    console = err()
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as progress:
        task = progress.add_task(verb, total=len(places))

        def advance(number: int) -> None:
            progress.advance(task, number)

        return await mover(places, patience=office.patience, progress=advance)


def _report(moved: Moved, verb: Verb, chosen: int, as_json: bool) -> None:
    if as_json:
        failed = [{"id": id_, "error": error} for id_, error in moved.failed]
        counts = {"chosen": chosen, _DONE[verb]: moved.done, "gone": moved.gone, "held": moved.held}
        say_json({**counts, "failed": failed})
    elif not chosen:
        note("no dead letters match")
    else:
        say(f"{plural(moved.done, 'dead letter')} {_DONE[verb]}")
    if moved.gone:
        note(f"{moved.gone:,} were moved by somebody else meanwhile")
    if moved.held:
        warn(f"{moved.held:,} are held by another process; run it again later")
    for id_, error in moved.failed[:20]:
        complain(f"{id_}: {error}")
    if len(moved.failed) > 20:
        complain(f"and {len(moved.failed) - 20:,} more could not be {_DONE[verb]}")
    if moved.failed or moved.held:
        raise typer.Exit(FAILED)
