"""``matador dead-letters``: lists, shows, redrives and purges messages that failed for good."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, cast

from matador.cli.commands import (
    All,
    App,
    Commands,
    Common,
    Event,
    Ids,
    Limit,
    Queue,
    RequiredIds,
    Subscriber,
    Yes,
    choice,
    flag,
    option,
)
from matador.cli.connection import known_queue
from matador.cli.message_views import MessageView
from matador.cli.output import UsageError, plural, warn
from matador.cli.stored_messages import Move, check_chosen, list_found, move_chosen, show_found
from matador.errors import ConfigurationError
from matador.events.app import Matador
from matador.events.dead_letters import Moved, Place, Progress, Selection
from matador.events.field_filters import FieldFilters
from matador.model.topology import DEAD_LETTER_KINDS, DeadLetterKind

Kind = Annotated[
    str | None,
    choice("KIND", "Only this kind: unhandled, undeliverable or dlq.", "--kind", DEAD_LETTER_KINDS),
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
        str | None, option("TEXT", "Only with this text in the reason or error.", "--error")
    ] = None
    fields: Annotated[
        list[str] | None,
        option(
            "FILTER",
            "Only with this payload field: 'amount>100', country=NL. Can be repeated.",
            "--field",
        ),
    ] = None
    undecodable: Annotated[bool, flag("Only messages that cannot be decoded.", "--undecodable")] = (
        False
    )
    limit: Limit = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveFilters(DeadLetterFilters):
    """The same, with the options of commands that move dead letters."""

    ids: Ids = None
    everything: All = False
    yes: Yes = False


@dead_letters.add(
    "matador dead-letters list shop.py",
    "matador dead-letters list shop.py --subscriber charge --field 'amount>100'",
    name="list",
)
def list_(app: App, *, filters: DeadLetterFilters, common: Common) -> None:
    """List dead letters, oldest first. Shows the first 100 unless --limit or --json is given."""
    target = common.load(app).app
    selection = _select(target, filters)
    found, filtered = _find(target, selection), selection != Selection()
    list_found(common, target, found, filters.limit, "dead letter", filtered=filtered)
    _warn_about_fields(selection)


@dead_letters.add("matador dead-letters show shop.py --id 3f2a")
def show(
    app: App, *, ids: RequiredIds, queue: Queue = None, kind: Kind = None, common: Common
) -> None:
    """Show dead letters in full: docket, errors and payload, or the bytes if undecodable."""
    target = common.load(app).app
    selection = _select(target, DeadLetterFilters(queue=queue, kind=kind), ids)
    show_found(common, target, _find(target, selection), ids, "dead letter")


@dead_letters.add(
    "matador dead-letters redrive shop.py --id 3f2a",
    "matador dead-letters redrive shop.py --subscriber charge --error timeout",
    "matador dead-letters redrive shop.py --all --yes",
)
def redrive(app: App, *, filters: MoveFilters, common: Common) -> None:
    """Send dead letters back to their queues, to start again with the first attempt.

    They keep their ids, so resumable subscribers resume after the last completed step. Each is
    moved atomically: an interrupted redrive can be run again and repeats nothing. Messages that
    cannot be decoded are left alone unless chosen by --id or --undecodable.
    """
    _move(common, app, filters, "redrive", undecodable=None if filters.ids else False)


@dead_letters.add(
    "matador dead-letters purge shop.py --id 3f2a",
    "matador dead-letters purge shop.py --kind unhandled --yes",
)
def purge(app: App, *, filters: MoveFilters, common: Common) -> None:
    """Delete dead letters for good, with the checkpoints of resumable subscribers."""
    _move(common, app, filters, "purge", undecodable=None)


def _select(
    app: Matador,
    filters: DeadLetterFilters,
    ids: list[str] | None = None,
    undecodable: bool | None = None,
) -> Selection:
    """The selection that the options describe.

    Raises:
        UsageError: an unknown queue, or an invalid filter.
    """
    return Selection(
        queue=None if filters.queue is None else known_queue(app, filters.queue).name,
        kind=cast("DeadLetterKind | None", filters.kind),
        event=filters.event,
        subscriber=filters.subscriber,
        error=filters.error,
        where=_filters(filters.fields) if filters.fields else None,
        ids=tuple(ids or ()),
        undecodable=filters.undecodable or undecodable,
    )


def _filters(given: Sequence[str]) -> FieldFilters:
    try:
        return FieldFilters(given)
    except ConfigurationError as error:
        raise UsageError(f"--field {error}") from error


async def _find(app: Matador, selection: Selection) -> AsyncIterator[MessageView]:
    async for one in app.dead_letters.browse(selection):
        yield MessageView(
            one.stored, one.queue.name, one.envelope, one.problem, one.codec, one.kind
        )


def _move(
    common: Common, app: str, filters: MoveFilters, verb: str, *, undecodable: bool | None
) -> None:
    target = common.load(app).app
    selection = _select(target, filters, filters.ids, undecodable)
    chosen = selection != Selection(undecodable=undecodable)
    check_chosen(chosen or filters.everything, verb)
    office = target.dead_letters
    mover, done = (office.purge, "purged") if verb == "purge" else (office.redrive, "redriven")

    async def choose() -> list[Place]:
        places: list[Place] = []
        left = 0
        # Those that cannot be decoded are looked at, too: to say how many there are.
        seen = replace(selection, undecodable=selection.undecodable or None)
        async for letter in office.browse(seen):
            if not selection.fits(letter):
                left += 1
            elif filters.limit is not None and len(places) >= filters.limit:
                break
            else:
                places.append(office.place(letter))
        if left:
            warn(
                f"{plural(left, 'dead letter')} cannot be decoded and will stay; "
                f"--undecodable chooses such letters"
            )
        _warn_about_fields(selection)
        return places

    async def carry_out(places: Sequence[Place], progress: Progress) -> Moved:
        return await mover(places, patience=office.patience, progress=progress)

    move = Move(verb, done, "dead letter", choose, carry_out)
    move_chosen(common, target, move, filters.ids, filters.yes)


def _warn_about_fields(selection: Selection) -> None:
    """Warn about fields that no message has. For after the search."""
    if isinstance(selection.where, FieldFilters):
        for doubt in selection.where.doubts():
            warn(f"--field: {doubt}")
