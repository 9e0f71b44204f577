"""``matador messages`` and ``matador dead-letters``: lists, shows and moves stored messages."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, TypeAlias, cast

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
from matador.cli.output import (
    CommandError,
    counting_progress,
    note,
    plural,
    warn,
    working,
    wrong_usage,
)
from matador.cli.receivers import chosen_queues, warn_of_unknown
from matador.cli.resources import (
    CANCEL,
    DEAD_LETTERS,
    LISTED,
    MESSAGES,
    PURGE,
    REDRIVE,
    Resource,
    Verb,
    failures_json,
    matching_ids,
)
from matador.cli.views import MessageView
from matador.errors import ConfigurationError, QueueNotFoundError
from matador.events.field_filters import FieldFilters
from matador.model.topology import DEAD_LETTER_KINDS, DeadLetterKind, WorkQueue
from matador.observe.sources import Source
from matador.runtime.dead_letters import Letter, Moved, Place, Progress, Selection
from matador.transports.base import Browsing, Measuring, Transport

_STATES = ("waiting", "delayed", "in-flight")

Search: TypeAlias = Callable[[int | None], AsyncIterator[MessageView]]
"""Finds messages: all of them, or at most the given number."""

Kind = Annotated[
    str | None,
    choice("KIND", "Only this kind: unhandled, undeliverable or dlq.", "--kind", DEAD_LETTER_KINDS),
]

messages = Commands("List, show and cancel messages that wait in their queues.")
dead_letters = Commands("List dead letters, send them back to their queues, or delete them.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Filters:
    """The options that choose messages; all that are given must match."""

    queue: Queue = None
    event: Event = None
    subscriber: Subscriber = None
    limit: Limit = None

    @property
    def given(self) -> bool:
        """Whether there is a filter, apart from the limit."""
        return replace(self, limit=None) != type(self)()


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageFilters(Filters):
    """The filters for messages that wait."""

    state: Annotated[
        str | None,
        choice("STATE", "Only this state: waiting, delayed or in-flight.", "--state", _STATES),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterFilters(Filters):
    """The filters for dead letters."""

    kind: Kind = None
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """The other options of commands that move messages."""

    ids: Ids = None
    everything: All = False
    yes: Yes = False


# -- commands -------------------------------------------------------------------------------------


@messages.add(
    "matador messages list shop.py",
    "matador messages list shop.py --queue events --state delayed",
    name="list",
)
def list_messages(file: File, *, filters: MessageFilters, common: Connecting) -> None:
    """List messages in order of sending. Shows the first 100 unless --limit or --json is given."""
    seen = common.sources(file)
    _list(MESSAGES, common, seen, _messages(seen, filters), filters)


@messages.add("matador messages show shop.py --id 3f2a", name="show")
def show_messages(file: File, *, ids: RequiredIds, queue: Queue = None, common: Connecting) -> None:
    """Show messages in full: docket and payload, or the bytes if undecodable."""
    seen = common.sources(file)
    _show(MESSAGES, common, seen, _messages(seen, MessageFilters(queue=queue), ids), ids)


@messages.add(
    "matador messages cancel shop.py --id 3f2a",
    "matador messages cancel shop.py --event order.placed --state delayed --yes",
)
def cancel(file: File, *, filters: MessageFilters, chosen: Chosen, common: Connecting) -> None:
    """Delete messages before they are handled, with the checkpoints of resumable handlers.

    Messages that a worker is handling are left alone. An interrupted cancel can be run again.
    """
    _check_chosen(CANCEL, filters, chosen)
    seen = common.sources(file)
    search = _messages(seen, filters, chosen.ids)
    asyncio.run(_move(CANCEL, MESSAGES, common, seen, search, filters, chosen))


@dead_letters.add(
    "matador dead-letters list shop.py",
    "matador dead-letters list shop.py --subscriber charge --field 'amount>100'",
    name="list",
)
def list_dead_letters(file: File, *, filters: DeadLetterFilters, common: Connecting) -> None:
    """List dead letters, oldest first. Shows the first 100 unless --limit or --json is given.

    Failed jobs are the dead letters of job queues.
    """
    seen = common.sources(file)
    _list(DEAD_LETTERS, common, seen, _dead_letters(seen, filters), filters)


@dead_letters.add("matador dead-letters show shop.py --id 3f2a", name="show")
def show_dead_letters(
    file: File, *, ids: RequiredIds, queue: Queue = None, kind: Kind = None, common: Connecting
) -> None:
    """Show dead letters in full: errors, traceback and payload, or the bytes if undecodable."""
    seen = common.sources(file)
    filters = DeadLetterFilters(queue=queue, kind=kind)
    _show(DEAD_LETTERS, common, seen, _dead_letters(seen, filters, ids), ids)


@dead_letters.add(
    "matador dead-letters redrive shop.py --id 3f2a",
    "matador dead-letters redrive shop.py --subscriber charge --error timeout",
    "matador dead-letters redrive shop.py --all --yes",
)
def redrive(file: File, *, filters: DeadLetterFilters, chosen: Chosen, common: Connecting) -> None:
    """Send dead letters back to their queues, to start again with the first attempt.

    They keep their ids, so resumable handlers resume after the last completed step. Each is
    moved atomically: an interrupted redrive can be run again and repeats nothing. Messages that
    cannot be decoded are left alone unless chosen by --id or --undecodable.
    """
    _check_chosen(REDRIVE, filters, chosen)
    seen = common.sources(file)
    only_decodable = not (chosen.ids or filters.undecodable)
    search = _dead_letters(seen, filters, chosen.ids, only_decodable=only_decodable)
    asyncio.run(_move(REDRIVE, DEAD_LETTERS, common, seen, search, filters, chosen))


@dead_letters.add(
    "matador dead-letters purge shop.py --id 3f2a",
    "matador dead-letters purge shop.py --kind unhandled --yes",
)
def purge(file: File, *, filters: DeadLetterFilters, chosen: Chosen, common: Connecting) -> None:
    """Delete dead letters for good, with the checkpoints of resumable handlers."""
    _check_chosen(PURGE, filters, chosen)
    seen = common.sources(file)
    search = _dead_letters(seen, filters, chosen.ids)
    asyncio.run(_move(PURGE, DEAD_LETTERS, common, seen, search, filters, chosen))


# -- searching ------------------------------------------------------------------------------------


def _messages(
    seen: Sequence[Source], filters: MessageFilters, ids: Sequence[str] | None = None
) -> Search:
    """Find the messages that match.

    Raises:
        UsageError: an unknown queue.
    """
    queues = chosen_queues(seen, filters.queue)
    warn_of_unknown(seen, filters.event, filters.subscriber)
    state = "ready" if filters.state == "waiting" else filters.state
    noted: set[str] = set()

    async def browse(source: Source, queue: WorkQueue) -> AsyncIterator[MessageView]:
        transport, name = source.transport, source.topology.full_name(queue.name)
        if not transport.capabilities.browse or not isinstance(transport, Browsing):
            raise CommandError(
                f"{transport.name} cannot list the messages of a queue "
                f"(`matador queues` counts them)"
            )
        if transport.name not in noted:
            noted.add(transport.name)
            await _note_invisible(transport, filters.state, name)
        async for stored in transport.browse(name):
            view = MessageView.of(source, stored, queue)
            if (
                state in (None, stored.state)
                and filters.event in (None, view.contents.name)
                and filters.subscriber in (None, *view.contents.receiver.split(", "))
                and (not ids or view.id.startswith(tuple(ids)))
            ):
                yield view

    async def search(limit: int | None) -> AsyncIterator[MessageView]:
        number = 0
        async for view in _of_all(seen, ((source, browse(source, one)) for source, one in queues)):
            yield view
            number += 1
            if number == limit:
                return

    return search


async def _note_invisible(transport: Transport, state: str | None, queue: str) -> None:
    """Print which messages the broker does not show.

    Raises:
        CommandError: the command asks for exactly those.
    """
    if not transport.capabilities.depth or not isinstance(transport, Measuring):
        return
    if "delayed" in (await transport.depth(queue)).unknown:
        if state in ("delayed", "in-flight"):
            raise CommandError(f"{transport.name} shows waiting messages only, not {state} ones")
        note(f"{transport.name} shows waiting messages only")


def _dead_letters(
    seen: Sequence[Source],
    filters: DeadLetterFilters,
    ids: Sequence[str] | None = None,
    *,
    only_decodable: bool = False,
) -> Search:
    """Find the dead letters that match. Warns of those left out because of ``only_decodable``.

    Raises:
        UsageError: an unknown queue, or an invalid filter.
    """
    if filters.queue is not None:
        chosen_queues(seen, filters.queue)
    warn_of_unknown(seen, filters.event, filters.subscriber)
    with wrong_usage(ConfigurationError, prefix="--field "):
        fields = FieldFilters(filters.fields) if filters.fields else None
    selection = Selection(
        queue=filters.queue,
        kind=cast("DeadLetterKind | None", filters.kind),
        name=filters.event,
        subscriber=filters.subscriber,
        error=filters.error,
        where=fields,
        ids=tuple(ids or ()),
        undecodable=filters.undecodable or None,
    )

    async def browse(source: Source) -> AsyncIterator[MessageView]:
        if source.jobs is not None and not await source.exists():
            raise QueueNotFoundError(f"there is no queue {source.queues[0]!r}")
        async for one in source.letters.browse(selection):
            yield MessageView(source, one.stored, one.queue, one.contents, one.kind)

    async def search(limit: int | None) -> AsyncIterator[MessageView]:
        number = left = 0
        some = [one for one in seen if not filters.queue or one.topology.has_queue(filters.queue)]
        async for view in _of_all(seen, ((source, browse(source)) for source in some)):
            if only_decodable and view.contents.problem is not None:
                left += 1
                continue
            yield view
            number += 1
            if number == limit:
                break
        if left:
            warn(
                f"{plural(left, 'dead letter')} cannot be decoded and will stay; "
                f"--undecodable chooses such letters"
            )
        for doubt in fields.doubts() if fields is not None else ():
            warn(f"--field: {doubt}")

    return search


async def _of_all(
    seen: Sequence[Source], searches: Iterable[tuple[Source, AsyncIterator[MessageView]]]
) -> AsyncIterator[MessageView]:
    """The results of several searches. With several sources, a missing queue is only noted."""
    for source, found in searches:
        try:
            async for view in found:
                yield view
        except QueueNotFoundError as error:
            if len(seen) == 1:
                raise
            note(f"{source.name}: {error}")


# -- listing, showing and moving ------------------------------------------------------------------


async def _collect(
    common: Connecting, seen: Sequence[Source], search: Search, limit: int | None = None
) -> list[MessageView]:
    async with common.connected(seen):
        return [view async for view in search(limit)]


def _list(
    resource: Resource[MessageView],
    common: Connecting,
    seen: Sequence[Source],
    search: Search,
    filters: Filters,
) -> None:
    limit = filters.limit if filters.limit or common.as_json else LISTED
    found = asyncio.run(_collect(common, seen, search, limit and limit + 1))
    resource.list(common, found, limit, none=" match" if filters.given else "")


def _show(
    resource: Resource[MessageView],
    common: Connecting,
    seen: Sequence[Source],
    search: Search,
    ids: Sequence[str],
) -> None:
    found = asyncio.run(_collect(common, seen, search))
    chosen = matching_ids(ids, (one.id for one in found), resource.noun)
    resource.show(common, [one for one in found if one.id in chosen])


def _check_chosen(verb: Verb, filters: Filters, chosen: Chosen) -> None:
    given = bool(chosen.ids or chosen.everything or filters.given)
    verb.require_choice(given, "--id, a filter such as --event, or --all")


async def _move(
    verb: Verb,
    resource: Resource[MessageView],
    common: Connecting,
    seen: Sequence[Source],
    search: Search,
    filters: Filters,
    chosen: Chosen,
) -> None:
    """Search, ask for confirmation, move with a progress bar, and report.

    Raises:
        typer.Exit: some of the messages were not moved.
    """
    noun = resource.noun
    async with common.connected(seen):
        with working("searching…"):
            found = [(one.source, _place(one)) async for one in search(filters.limit)]
        if chosen.ids:
            matching = matching_ids(chosen.ids, (place.id for _, place in found), noun)
            found = [(source, place) for source, place in found if place.id in matching]
        if found and not chosen.yes:
            verb.confirm(len(found), noun)
        done = 0
        moved = Moved()
        with counting_progress(verb.name) as show_progress:

            def advance(number: int) -> None:
                nonlocal done
                done += number
                show_progress(done, len(found))

            for source in seen:
                places = [place for one, place in found if one is source]
                if places:
                    of_source = await _carry_out(verb, source, places, advance)
                    moved.done += of_source.done
                    moved.gone += of_source.gone
                    moved.held += of_source.held
                    moved.failed += of_source.failed
    counts = {"chosen": len(found), verb.done: moved.done, "gone": moved.gone, "held": moved.held}
    said = [f"{plural(moved.done, noun)} {verb.done}"] if found else []
    remark = "" if found else f"no {noun}s match"
    common.show({**counts, "failed": failures_json(moved.failed)}, *said, remark=remark)
    if moved.gone:
        note(f"{plural(moved.gone, noun)} taken by another process in the meantime")
    verb.report(moved.failed, moved.held, noun)


def _place(view: MessageView) -> Place:
    """The position of a message, which the office needs to move it."""
    stored = view.stored
    if view.kind is None:
        return Place(stored.queue, stored.position, view.id, stored.queue)
    return view.source.letters.place(Letter(stored, view.queue, view.kind, view.contents))


async def _carry_out(
    verb: Verb, source: Source, places: Sequence[Place], progress: Progress
) -> Moved:
    office = source.letters
    if verb is CANCEL:
        moved = await office.purge(places, progress=progress)
        moved.gone, moved.held = moved.gone + moved.held, 0  # a worker is handling those
        return moved
    mover = office.redrive if verb is REDRIVE else office.purge
    return await mover(places, patience=office.patience, progress=progress)
