"""``matador dead-letters``: what failed for good, looked at, sent back or deleted."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Annotated

import typer

from matador.cli.connecting import connected
from matador.cli.filters import (
    All,
    Error,
    Event,
    Ids,
    Kind,
    Limit,
    Queue,
    Subscriber,
    Undecodable,
    WhereText,
    check_chosen,
    doubt,
    meant_ids,
    select,
)
from matador.cli.letters import letter_as_json, letter_in_full, letters_as_table
from matador.cli.loading import load
from matador.cli.moving import move
from matador.cli.options import App, AsJson, Verbose, Yes, examples
from matador.cli.output import note, plural, reported, say, say_json, show_logs
from matador.events.app import Matador
from matador.events.dead_letters import Letter, Selection

_SHOWN = 100
"""How many are listed for people, unless told otherwise."""

dead_letters = typer.Typer(
    no_args_is_help=True, help="Look at dead letters, send them back to their queues, delete them."
)


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
    """List dead letters, oldest first: a hundred, unless --limit or --json is given."""
    target = _load(app, verbose)
    selection = select(
        target,
        queue=queue,
        kind=kind,
        event=event,
        subscriber=subscriber,
        error=error,
        where=where,
        undecodable=undecodable or None,
    )
    most = limit if limit or as_json else _SHOWN
    letters = asyncio.run(_collect(target, selection, most and most + 1))
    doubt(selection.where)
    more = most is not None and len(letters) > most
    letters = letters[:most]
    if as_json:
        listed = [letter_as_json(letter) for letter in letters]
        say_json({"dead_letters": listed, "more": more})
    elif letters:
        say(letters_as_table(letters))
        note(f"the first {most:,}; --limit shows more" if more else _counted(letters))
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
    selection = select(target, queue=queue, kind=kind, ids=ids)
    letters = asyncio.run(_collect(target, selection, None))
    meant = meant_ids(ids, (letter.id for letter in letters))
    letters = [letter for letter in letters if letter.id in meant]
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
    target = _load(app, verbose)
    raw = True if undecodable else (None if ids else False)
    selection = select(
        target,
        queue=queue,
        kind=kind,
        event=event,
        subscriber=subscriber,
        error=error,
        where=where,
        ids=ids,
        undecodable=raw,
    )
    check_chosen(selection, everything or undecodable, "redrive")
    asyncio.run(move(target, selection, limit, "redrive", yes, as_json))


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
    target = _load(app, verbose)
    selection = select(
        target,
        queue=queue,
        kind=kind,
        event=event,
        subscriber=subscriber,
        error=error,
        where=where,
        ids=ids,
        undecodable=undecodable or None,
    )
    check_chosen(selection, everything, "purge")
    asyncio.run(move(target, selection, limit, "purge", yes, as_json))


def _load(reference: str, verbose: bool) -> Matador:
    app = load(reference).app
    show_logs(logging.DEBUG if verbose else logging.ERROR)
    return app


def _counted(letters: Sequence[Letter]) -> str:
    return plural(len(letters), "dead letter")


async def _collect(app: Matador, selection: Selection, limit: int | None) -> list[Letter]:
    async with connected(app):
        return [letter async for letter in app.dead_letters.browse(selection, limit=limit)]
