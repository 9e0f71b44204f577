"""``matador messages``: lists, shows and cancels messages that wait in their queues."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Annotated

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
)
from matador.cli.message_views import MessageView
from matador.cli.output import CommandError, note
from matador.cli.receivers import chosen_queues, warn_of_unknown
from matador.cli.stored_messages import Move, check_chosen, list_found, move_chosen, show_found
from matador.errors import QueueNotFoundError
from matador.observe.sources import Source
from matador.runtime.dead_letters import Moved, Place, Progress
from matador.transports.base import Browsing, Measuring, Transport

_STATES = ("waiting", "delayed", "in-flight")

messages = Commands("List, show and cancel messages that wait in their queues.")


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageFilters:
    """The options that choose messages; all that are given must match."""

    queue: Queue = None
    state: Annotated[
        str | None,
        choice("STATE", "Only this state: waiting, delayed or in-flight.", "--state", _STATES),
    ] = None
    event: Event = None
    subscriber: Subscriber = None


@messages.add(
    "matador messages list shop.py",
    "matador messages list shop.py --queue events --state delayed",
    name="list",
)
def list_(file: File, *, filters: MessageFilters, limit: Limit = None, common: Connecting) -> None:
    """List messages in order of sending. Shows the first 100 unless --limit or --json is given."""
    seen = common.sources(file)
    found = _find(seen, filters)
    list_found(common, seen, found, limit, "message", filtered=filters != MessageFilters())


@messages.add("matador messages show shop.py --id 3f2a")
def show(file: File, *, ids: RequiredIds, queue: Queue = None, common: Connecting) -> None:
    """Show messages in full: docket and payload, or the bytes if undecodable."""
    seen = common.sources(file)
    found = _find(seen, MessageFilters(queue=queue), ids)
    show_found(common, seen, found, ids, "message")


@messages.add(
    "matador messages cancel shop.py --id 3f2a",
    "matador messages cancel shop.py --event order.placed --state delayed --yes",
)
def cancel(
    file: File,
    *,
    ids: Ids = None,
    everything: All = False,
    filters: MessageFilters,
    limit: Limit = None,
    yes: Yes = False,
    common: Connecting,
) -> None:
    """Delete messages before they are handled, with the checkpoints of resumable handlers.

    Messages that a worker is handling are left alone. An interrupted cancel can be run again.
    """
    seen = common.sources(file)
    check_chosen(bool(ids or everything or filters != MessageFilters()), "cancel")

    async def choose() -> list[tuple[Source, Place]]:
        places: list[tuple[Source, Place]] = []
        async for source, one in _found(seen, filters, ids or ()):
            queue = one.stored.queue
            places.append((source, Place(queue, one.stored.position, one.id, queue)))
            if len(places) == limit:
                break
        return places

    async def delete(source: Source, places: Sequence[Place], progress: Progress) -> Moved:
        moved = await source.letters.purge(places, progress=progress)
        moved.gone, moved.held = moved.gone + moved.held, 0  # a worker is handling those
        return moved

    move_chosen(common, seen, Move("cancel", "cancelled", "message", choose, delete), ids, yes)


async def _find(
    seen: Sequence[Source], filters: MessageFilters, ids: Sequence[str] = ()
) -> AsyncIterator[MessageView]:
    async for _, view in _found(seen, filters, ids):
        yield view


def _found(
    seen: Sequence[Source], filters: MessageFilters, ids: Sequence[str] = ()
) -> AsyncIterator[tuple[Source, MessageView]]:
    """The messages that match, and whose they are.

    Raises:
        UsageError: an unknown queue.
    """
    queues = chosen_queues(seen, filters.queue)
    warn_of_unknown(seen, filters.event, filters.subscriber)
    state = "ready" if filters.state == "waiting" else filters.state

    async def find() -> AsyncIterator[tuple[Source, MessageView]]:
        noted: set[str] = set()
        for source, queue in queues:
            transport, name = source.transport, source.topology.full_name(queue.name)
            if not transport.capabilities.browse or not isinstance(transport, Browsing):
                raise CommandError(
                    f"{transport.name} cannot list the messages of a queue "
                    f"(`matador queues` counts them)"
                )
            try:
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
                        yield source, view
            except QueueNotFoundError as error:
                if len(seen) == 1:
                    raise
                note(f"{source.name}: {error}")

    return find()


async def _note_invisible(transport: Transport, state: str | None, queue: str) -> None:
    """Say which messages the broker does not show.

    Raises:
        CommandError: exactly those were asked for.
    """
    if not transport.capabilities.depth or not isinstance(transport, Measuring):
        return
    if "delayed" in (await transport.depth(queue)).unknown:
        if state in ("delayed", "in-flight"):
            raise CommandError(f"{transport.name} shows waiting messages only, not {state} ones")
        note(f"{transport.name} shows waiting messages only")
