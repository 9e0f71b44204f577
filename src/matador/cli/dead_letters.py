"""``matador dead-letters``: lists, shows, redrives and purges messages that failed for good."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, cast

from matador.cli.commands import (
    All,
    Commands,
    Connecting,
    Event,
    File,
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
from matador.cli.message_views import MessageView
from matador.cli.output import UsageError, note, plural, warn
from matador.cli.receivers import chosen_queues, warn_of_unknown
from matador.cli.stored_messages import Move, check_chosen, list_found, move_chosen, show_found
from matador.errors import ConfigurationError, QueueNotFoundError
from matador.events.field_filters import FieldFilters
from matador.model.topology import DEAD_LETTER_KINDS, DeadLetterKind
from matador.observe.sources import Source
from matador.runtime.dead_letters import Letter, Moved, Place, Progress, Selection

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
def list_(file: File, *, filters: DeadLetterFilters, common: Connecting) -> None:
    """List dead letters, oldest first. Shows the first 100 unless --limit or --json is given.

    Failed jobs are the dead letters of job queues.
    """
    seen = common.sources(file)
    selection = _select(seen, filters)
    found, filtered = _find(seen, selection), selection != Selection()
    list_found(common, seen, found, filters.limit, "dead letter", filtered=filtered)
    _warn_about_fields(selection)


@dead_letters.add("matador dead-letters show shop.py --id 3f2a")
def show(
    file: File, *, ids: RequiredIds, queue: Queue = None, kind: Kind = None, common: Connecting
) -> None:
    """Show dead letters in full: errors, traceback and payload, or the bytes if undecodable."""
    seen = common.sources(file)
    selection = _select(seen, DeadLetterFilters(queue=queue, kind=kind), ids)
    show_found(common, seen, _find(seen, selection), ids, "dead letter")


@dead_letters.add(
    "matador dead-letters redrive shop.py --id 3f2a",
    "matador dead-letters redrive shop.py --subscriber charge --error timeout",
    "matador dead-letters redrive shop.py --all --yes",
)
def redrive(file: File, *, filters: MoveFilters, common: Connecting) -> None:
    """Send dead letters back to their queues, to start again with the first attempt.

    They keep their ids, so resumable handlers resume after the last completed step. Each is
    moved atomically: an interrupted redrive can be run again and repeats nothing. Messages that
    cannot be decoded are left alone unless chosen by --id or --undecodable.
    """
    _move(common, file, filters, "redrive", undecodable=None if filters.ids else False)


@dead_letters.add(
    "matador dead-letters purge shop.py --id 3f2a",
    "matador dead-letters purge shop.py --kind unhandled --yes",
)
def purge(file: File, *, filters: MoveFilters, common: Connecting) -> None:
    """Delete dead letters for good, with the checkpoints of resumable handlers."""
    _move(common, file, filters, "purge", undecodable=None)


def _select(
    seen: Sequence[Source],
    filters: DeadLetterFilters,
    ids: list[str] | None = None,
    undecodable: bool | None = None,
) -> Selection:
    """The selection that the options describe.

    Raises:
        UsageError: an unknown queue, or an invalid filter.
    """
    if filters.queue is not None:
        chosen_queues(seen, filters.queue)
    warn_of_unknown(seen, filters.event, filters.subscriber)
    return Selection(
        queue=filters.queue,
        kind=cast("DeadLetterKind | None", filters.kind),
        name=filters.event,
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


async def _letters(
    seen: Sequence[Source], selection: Selection
) -> AsyncIterator[tuple[Source, Letter]]:
    for source in seen:
        if selection.queue is None or source.topology.has_queue(selection.queue):
            try:
                if source.jobs is not None and not await source.exists():
                    raise QueueNotFoundError(f"there is no queue {source.queues[0]!r}")
                async for letter in source.letters.browse(selection):
                    yield source, letter
            except QueueNotFoundError as error:
                if len(seen) == 1:
                    raise
                note(f"{source.name}: {error}")


async def _find(seen: Sequence[Source], selection: Selection) -> AsyncIterator[MessageView]:
    async for source, one in _letters(seen, selection):
        yield MessageView.of(source, one.stored, one.queue, one.kind)


def _move(
    common: Connecting, file: str, filters: MoveFilters, verb: str, *, undecodable: bool | None
) -> None:
    seen = common.sources(file)
    selection = _select(seen, filters, filters.ids, undecodable)
    chosen = selection != Selection(undecodable=undecodable)
    check_chosen(chosen or filters.everything, verb)
    purges = verb == "purge"

    async def choose() -> list[tuple[Source, Place]]:
        places: list[tuple[Source, Place]] = []
        left = 0
        # Those that cannot be decoded are looked at, too: to say how many there are.
        looked_at = replace(selection, undecodable=selection.undecodable or None)
        async for source, letter in _letters(seen, looked_at):
            if not selection.fits(letter):
                left += 1
            elif filters.limit is not None and len(places) >= filters.limit:
                break
            else:
                places.append((source, source.letters.place(letter)))
        if left:
            warn(
                f"{plural(left, 'dead letter')} cannot be decoded and will stay; "
                f"--undecodable chooses such letters"
            )
        _warn_about_fields(selection)
        return places

    async def carry_out(source: Source, places: Sequence[Place], progress: Progress) -> Moved:
        office = source.letters
        mover = office.purge if purges else office.redrive
        return await mover(places, patience=office.patience, progress=progress)

    done = "purged" if purges else "redriven"
    move = Move(verb, done, "dead letter", choose, carry_out)
    move_chosen(common, seen, move, filters.ids, filters.yes)


def _warn_about_fields(selection: Selection) -> None:
    """Warn about fields that no message has. For after the search."""
    if isinstance(selection.where, FieldFilters):
        for doubt in selection.where.doubts():
            warn(f"--field: {doubt}")
