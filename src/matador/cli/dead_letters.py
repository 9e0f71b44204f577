"""``matador dead-letters``: what failed for good, looked at, sent back or deleted."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Any, TypeAlias

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from matador.cli.connecting import connected
from matador.cli.expressions import Where
from matador.cli.letters import letter_as_json, letter_in_full, letters_as_table
from matador.cli.loading import load
from matador.cli.options import App, AsJson, Verbose, Yes, examples
from matador.cli.output import (
    FAILED,
    CommandError,
    UsageError,
    complain,
    err,
    note,
    plural,
    reported,
    say,
    say_json,
    show_logs,
    warn,
)
from matador.errors import QueueNotFoundError
from matador.events.app import Matador
from matador.events.dead_letters import DeadLetterOffice, Letter, Moved, Place, Selection
from matador.model.options import suggestion
from matador.model.topology import DEAD_LETTER_KINDS, DeadLetterKind

dead_letters = typer.Typer(
    no_args_is_help=True, help="Look at dead letters, send them back to their queues, delete them."
)

_DONE = {"redrive": "redriven", "purge": "purged"}

Mover: TypeAlias = Callable[..., Awaitable[Moved]]

Queue = Annotated[
    str | None, typer.Option("--queue", "-q", metavar="QUEUE", help="Of this work queue.")
]
Kind = Annotated[
    str | None, typer.Option("--kind", metavar="KIND", help="unhandled or undeliverable.")
]
Event = Annotated[str | None, typer.Option("--event", metavar="KEY", help="Of this event.")]
Subscriber = Annotated[
    str | None, typer.Option("--subscriber", metavar="NAME", help="Of this subscriber.")
]
Error = Annotated[
    str | None,
    typer.Option("--error", metavar="TEXT", help="With this text in their reason or errors."),
]
WhereText = Annotated[
    str | None,
    typer.Option("--where", metavar="CONDITION", help="With this payload, such as 'amount > 100'."),
]
Ids = Annotated[
    list[str] | None,
    typer.Option("--id", metavar="ID", help="This one, or one that begins so; may be repeated."),
]
All = Annotated[bool, typer.Option("--all", help="All of them.")]
Undecodable = Annotated[
    bool, typer.Option("--undecodable", help="Only those that are not envelopes.")
]
Limit = Annotated[
    int | None, typer.Option("--limit", metavar="N", min=1, help="At most this many.")
]


@dead_letters.command(
    "list",
    epilog=examples(
        "matador dead-letters list shop.py",
        "matador dead-letters list shop.py --subscriber charge --where 'amount > 100'",
    ),
)
@reported
def list_(
    app: App,
    *,
    queue: Queue = None,
    kind: Kind = None,
    event: Event = None,
    subscriber: Subscriber = None,
    error: Error = None,
    where: WhereText = None,
    undecodable: Undecodable = False,
    limit: Limit = None,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """List dead letters, oldest first. All filters given must hold."""
    condition = None if where is None else Where(where)
    target = _load(app, verbose)
    selection = _selection(
        target, queue, kind, event, subscriber, error, condition, (), undecodable or None
    )
    letters = asyncio.run(_collect(target, selection, limit))
    _doubt(condition)
    if as_json:
        say_json({"dead_letters": [letter_as_json(letter) for letter in letters]})
    elif letters:
        say(letters_as_table(letters))
        note(plural(len(letters), "dead letter") + (f" (--limit {limit})" if limit else ""))
    else:
        note("no dead letters" + ("" if selection == Selection() else " match"))


@dead_letters.command(epilog=examples("matador dead-letters show shop.py --id 3f2a"))
@reported
def show(
    app: App,
    *,
    ids: Annotated[
        list[str],
        typer.Option("--id", metavar="ID", help="Its id, or the beginning of it."),
    ],
    queue: Queue = None,
    kind: Kind = None,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Show dead letters in full: docket, errors, payload; raw bytes if they are not envelopes."""
    target = _load(app, verbose)
    selection = _selection(target, queue, kind, None, None, None, None, tuple(ids), None)
    letters = asyncio.run(_collect(target, selection, None))
    _check_ids(ids, [letter.id for letter in letters])
    if as_json:
        say_json({"dead_letters": [letter_as_json(letter, full=True) for letter in letters]})
        return
    for letter in letters:
        say(letter_in_full(letter))


@dead_letters.command(
    epilog=examples(
        "matador dead-letters redrive shop.py --id 3f2a",
        "matador dead-letters redrive shop.py --subscriber charge --error timeout",
        "matador dead-letters redrive shop.py --all --yes",
    )
)
@reported
def redrive(
    app: App,
    *,
    ids: Ids = None,
    everything: All = False,
    queue: Queue = None,
    kind: Kind = None,
    event: Event = None,
    subscriber: Subscriber = None,
    error: Error = None,
    where: WhereText = None,
    undecodable: Undecodable = False,
    limit: Limit = None,
    yes: Yes = False,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Send dead letters back to their queues, to be tried again from the first attempt.

    They keep their ids, so resumable subscribers go on behind their last step. Each is moved in
    one step: an interrupted redrive can be run again and repeats nothing. Those that are not
    envelopes are left alone unless asked for by --id or --undecodable.
    """
    condition = None if where is None else Where(where)
    target = _load(app, verbose)
    raw = True if undecodable else (None if ids else False)
    selection = _selection(
        target, queue, kind, event, subscriber, error, condition, tuple(ids or ()), raw
    )
    _check_chosen(selection, everything or undecodable, "redrive")
    asyncio.run(_move(target, selection, limit, "redrive", yes, as_json))


@dead_letters.command(
    epilog=examples(
        "matador dead-letters purge shop.py --id 3f2a",
        "matador dead-letters purge shop.py --kind unhandled --yes",
    )
)
@reported
def purge(
    app: App,
    *,
    ids: Ids = None,
    everything: All = False,
    queue: Queue = None,
    kind: Kind = None,
    event: Event = None,
    subscriber: Subscriber = None,
    error: Error = None,
    where: WhereText = None,
    undecodable: Undecodable = False,
    limit: Limit = None,
    yes: Yes = False,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Delete dead letters for good, and what resumable subscribers remember of them."""
    condition = None if where is None else Where(where)
    target = _load(app, verbose)
    selection = _selection(
        target,
        queue,
        kind,
        event,
        subscriber,
        error,
        condition,
        tuple(ids or ()),
        undecodable or None,
    )
    _check_chosen(selection, everything, "purge")
    asyncio.run(_move(target, selection, limit, "purge", yes, as_json))


# -- choosing -------------------------------------------------------------------------------------


def _load(reference: str, verbose: bool) -> Matador:
    app = load(reference).app
    show_logs(logging.DEBUG if verbose else logging.ERROR)
    return app


def _selection(
    app: Matador,
    queue: str | None,
    kind: str | None,
    event: str | None,
    subscriber: str | None,
    error: str | None,
    where: Where | None,
    ids: tuple[str, ...],
    undecodable: bool | None,
) -> Selection:
    try:
        name = None if queue is None else app.topology.queue(queue).name
    except QueueNotFoundError as unknown:
        raise UsageError(str(unknown)) from None
    if any(not one for one in ids):
        raise UsageError("--id is empty")
    return Selection(
        queue=name,
        kind=None if kind is None else _kind(kind),
        event=event,
        subscriber=subscriber,
        error=error,
        where=where,
        ids=ids,
        undecodable=undecodable,
    )


def _kind(given: str) -> DeadLetterKind:
    for kind in DEAD_LETTER_KINDS:
        if given == kind:
            return kind
    known = ", ".join(DEAD_LETTER_KINDS)
    raise UsageError(
        f"--kind {given!r} is not one of {known}{suggestion(given, DEAD_LETTER_KINDS)}"
    )


def _check_chosen(selection: Selection, everything: bool, verb: str) -> None:
    chosen = selection != Selection(undecodable=selection.undecodable)
    if not chosen and not everything and selection.undecodable is not True:
        raise UsageError(
            f"which ones? Give --id, a filter such as --event, or {verb} them with --all"
        )


def _check_ids(wanted: Sequence[str], found: Sequence[str]) -> None:
    """Each id, or beginning of one, must mean one dead letter."""
    for one in wanted:
        if one in found:
            continue
        begin = sorted({id_ for id_ in found if id_.startswith(one)})
        if not begin:
            raise CommandError(f"there is no dead letter with the id {one!r}")
        if len(begin) > 1:
            listed = ", ".join(begin[:5]) + (", …" if len(begin) > 5 else "")
            raise UsageError(f"{one!r} begins several ids: {listed}")


async def _collect(app: Matador, selection: Selection, limit: int | None) -> list[Letter]:
    async with connected(app):
        return [letter async for letter in app.dead_letters.browse(selection, limit=limit)]


def _doubt(condition: Any) -> None:
    if isinstance(condition, Where):
        for doubt in condition.doubts():
            warn(f"--where: {doubt}")


# -- moving ---------------------------------------------------------------------------------------


async def _move(
    app: Matador, selection: Selection, limit: int | None, verb: str, yes: bool, as_json: bool
) -> None:
    async with connected(app):
        office = app.dead_letters
        places = await office.choose(selection, limit=limit)
        _doubt(selection.where)
        if selection.ids:
            _check_ids(selection.ids, [place.id for place in places])
        if places and not yes:
            _ask(verb, len(places))
        mover: Mover = office.redrive if verb == "redrive" else office.purge
        moved = await _with_progress(office, mover, places, verb)
    _report(moved, verb, len(places), as_json)


def _ask(verb: str, number: int) -> None:
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError(
            f"{plural(number, 'dead letter')} would be {_DONE[verb]}; "
            f"add --yes to do it without asking"
        )
    err().print(f"{verb} {plural(number, 'dead letter')}? [y/N] ", end="")
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise CommandError("nothing was changed")


async def _with_progress(
    office: DeadLetterOffice, mover: Mover, places: Sequence[Place], verb: str
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


def _report(moved: Moved, verb: str, chosen: int, as_json: bool) -> None:
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
