"""``matador dead-letters``: lists, shows, redrives and purges messages that failed for good."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias

import typer

from matador.cli.commands import (
    All,
    App,
    AsJson,
    Commands,
    Event,
    Ids,
    Limit,
    Queue,
    RequiredIds,
    Subscriber,
    Verbose,
    Yes,
)
from matador.cli.connection import connected, load
from matador.cli.field_filters import FieldFilters
from matador.cli.interaction import confirm, counting_progress, working
from matador.cli.message_views import (
    LISTED,
    matching_ids,
    print_in_full,
    print_list,
    print_moved,
)
from matador.cli.output import UsageError, plural, warn
from matador.errors import QueueNotFoundError
from matador.events.app import Matador
from matador.events.dead_letters import Letter, Moved, Selection
from matador.model.options import suggestion
from matador.model.topology import DEAD_LETTER_KINDS, DeadLetterKind

Verb: TypeAlias = Literal["redrive", "purge"]
Mover: TypeAlias = Callable[..., Awaitable[Moved]]

_DONE: dict[Verb, str] = {"redrive": "redriven", "purge": "purged"}

Kind = Annotated[
    str | None,
    typer.Option(
        "--kind",
        metavar="KIND",
        help="Only this kind: unhandled or undeliverable.",
        autocompletion=lambda: list(DEAD_LETTER_KINDS),
    ),
]

dead_letters = Commands("List dead letters, send them back to their queues, or delete them.")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterFilters:
    """The options that choose dead letters; all that are given must match."""

    queue: Queue = None
    kind: Kind = None
    event: Event = None
    subscriber: Subscriber = None
    error: Annotated[
        str | None,
        typer.Option("--error", metavar="TEXT", help="Only with this text in the reason or error."),
    ] = None
    fields: Annotated[
        list[str] | None,
        typer.Option(
            "--field",
            metavar="FILTER",
            help="Only with this payload field: 'amount>100', country=NL. Can be repeated.",
        ),
    ] = None
    undecodable: Annotated[
        bool, typer.Option("--undecodable", help="Only messages that cannot be decoded.")
    ] = False
    limit: Limit = None


@dead_letters.add(
    "matador dead-letters list shop.py",
    "matador dead-letters list shop.py --subscriber charge --field 'amount>100'",
    name="list",
)
def list_(
    app: App, *, filters: DeadLetterFilters, as_json: AsJson = False, verbose: Verbose = False
) -> None:
    """List dead letters, oldest first. Shows the first 100 unless --limit or --json is given."""
    target = load(app, verbose).app
    selection = _select(target, filters, undecodable=filters.undecodable or None)
    limit = filters.limit if filters.limit or as_json else LISTED
    letters = asyncio.run(_collect(target, selection, limit and limit + 1))
    _doubt(selection)
    print_list(letters, limit, "dead letter", filtered=selection != Selection(), as_json=as_json)


@dead_letters.add("matador dead-letters show shop.py --id 3f2a")
def show(
    app: App,
    *,
    ids: RequiredIds,
    queue: Queue = None,
    kind: Kind = None,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Show dead letters in full: docket, errors and payload, or the bytes if undecodable."""
    target = load(app, verbose).app
    selection = _select(target, DeadLetterFilters(queue=queue, kind=kind), ids)
    letters = asyncio.run(_collect(target, selection, None))
    chosen = matching_ids(ids, (letter.id for letter in letters), "dead letter")
    letters = [letter for letter in letters if letter.id in chosen]
    print_in_full(letters, "dead letter", as_json=as_json)


@dead_letters.add(
    "matador dead-letters redrive shop.py --id 3f2a",
    "matador dead-letters redrive shop.py --subscriber charge --error timeout",
    "matador dead-letters redrive shop.py --all --yes",
)
def redrive(
    app: App,
    *,
    ids: Ids = None,
    everything: All = False,
    filters: DeadLetterFilters,
    yes: Yes = False,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Send dead letters back to their queues, to start again with the first attempt.

    They keep their ids, so resumable subscribers resume after the last completed step. Each is
    moved atomically: an interrupted redrive can be run again and repeats nothing. Messages that
    cannot be decoded are left alone unless chosen by --id or --undecodable.
    """
    target = load(app, verbose).app
    undecodable = True if filters.undecodable else (None if ids else False)
    selection = _select(target, filters, ids, undecodable)
    _check_chosen(selection, everything, "redrive")
    asyncio.run(_move(target, selection, filters.limit, "redrive", yes, as_json))


@dead_letters.add(
    "matador dead-letters purge shop.py --id 3f2a",
    "matador dead-letters purge shop.py --kind unhandled --yes",
)
def purge(
    app: App,
    *,
    ids: Ids = None,
    everything: All = False,
    filters: DeadLetterFilters,
    yes: Yes = False,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Delete dead letters for good, with the checkpoints of resumable subscribers."""
    target = load(app, verbose).app
    selection = _select(target, filters, ids, filters.undecodable or None)
    _check_chosen(selection, everything, "purge")
    asyncio.run(_move(target, selection, filters.limit, "purge", yes, as_json))


# -- choosing -----------------------------------------------------------------------------------


def _select(
    app: Matador,
    filters: DeadLetterFilters,
    ids: list[str] | None = None,
    undecodable: bool | None = None,
) -> Selection:
    """The selection that the options describe.

    Raises:
        UsageError: an unknown queue or kind, or an invalid filter.
    """
    try:
        name = None if filters.queue is None else app.topology.queue(filters.queue).name
    except QueueNotFoundError as unknown:
        raise UsageError(str(unknown)) from None
    if any(not one for one in ids or ()):
        raise UsageError("--id is empty")
    return Selection(
        queue=name,
        kind=None if filters.kind is None else _kind(filters.kind),
        event=filters.event,
        subscriber=filters.subscriber,
        error=filters.error,
        where=FieldFilters(filters.fields) if filters.fields else None,
        ids=tuple(ids or ()),
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


def _check_chosen(selection: Selection, everything: bool, verb: Verb) -> None:
    chosen = selection != Selection(undecodable=selection.undecodable)
    if not (chosen or everything or selection.undecodable):
        raise UsageError(f"choose what to {verb}: give --id, a filter such as --event, or --all")


def _doubt(selection: Selection) -> None:
    """Warn about fields that nothing has. For after the search."""
    if isinstance(selection.where, FieldFilters):
        for doubt in selection.where.doubts():
            warn(f"--field: {doubt}")


async def _collect(app: Matador, selection: Selection, limit: int | None) -> list[Letter]:
    async with connected(app):
        return [letter async for letter in app.dead_letters.browse(selection, limit=limit)]


# -- moving -------------------------------------------------------------------------------------


async def _move(
    app: Matador, selection: Selection, limit: int | None, verb: Verb, yes: bool, as_json: bool
) -> None:
    """Redrive or purge what was chosen, after a confirmation."""
    async with connected(app):
        office = app.dead_letters
        with working("searching…"):
            places = await office.choose(selection, limit=limit)
        _doubt(selection)
        if selection.ids:
            chosen = matching_ids(selection.ids, (place.id for place in places), "dead letter")
            places = [place for place in places if place.id in chosen]
        if places and not yes:
            counted = plural(len(places), "dead letter")
            confirm(f"{verb} {counted}", f"{counted} would be {_DONE[verb]}")
        mover: Mover = office.redrive if verb == "redrive" else office.purge
        done = 0
        with counting_progress(verb) as show_progress:

            def advance(number: int) -> None:
                nonlocal done
                done += number
                show_progress(done, len(places))

            moved = await mover(places, patience=office.patience, progress=advance)
    print_moved(moved, len(places), _DONE[verb], "dead letter", as_json=as_json)
