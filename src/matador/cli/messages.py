"""``matador messages``: lists, shows and cancels messages that wait in their queues."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Annotated, get_args

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
)
from matador.cli.connection import known_queue
from matador.cli.message_views import MessageView
from matador.cli.output import CommandError, note
from matador.cli.stored_messages import Move, check_chosen, list_found, move_chosen, show_found
from matador.errors import DecodeError
from matador.events.app import Matador
from matador.events.dead_letters import Moved, Place, Progress
from matador.model.message import MessageState, StoredMessage
from matador.transports.base import Browsing, Measuring
from matador.transports.clock import SystemClock

_STATES = tuple(state for state in get_args(MessageState) if state != "done")

messages = Commands("List, show and cancel messages that wait in their queues.")


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageFilters:
    """The options that choose messages; all that are given must match."""

    queue: Queue = None
    state: Annotated[
        str | None,
        choice("STATE", "Only this state: ready, delayed or in-flight.", "--state", _STATES),
    ] = None
    event: Event = None
    subscriber: Subscriber = None


@messages.add(
    "matador messages list shop.py",
    "matador messages list shop.py --queue events --state delayed",
    name="list",
)
def list_(app: App, *, filters: MessageFilters, limit: Limit = None, common: Common) -> None:
    """List messages in order of sending. Shows the first 100 unless --limit or --json is given."""
    target = common.load(app).app
    found = _find(target, filters)
    list_found(common, target, found, limit, "message", filtered=filters != MessageFilters())


@messages.add("matador messages show shop.py --id 3f2a")
def show(app: App, *, ids: RequiredIds, queue: Queue = None, common: Common) -> None:
    """Show messages in full: docket and payload, or the bytes if undecodable."""
    target = common.load(app).app
    show_found(common, target, _find(target, MessageFilters(queue=queue), ids), ids, "message")


@messages.add(
    "matador messages cancel shop.py --id 3f2a",
    "matador messages cancel shop.py --event order.placed --state delayed --yes",
)
def cancel(
    app: App,
    *,
    ids: Ids = None,
    everything: All = False,
    filters: MessageFilters,
    limit: Limit = None,
    yes: Yes = False,
    common: Common,
) -> None:
    """Delete messages before they are handled, with the checkpoints of resumable subscribers.

    Messages that a worker is handling are left alone. An interrupted cancel can be run again.
    """
    target = common.load(app).app
    found = _find(target, filters, ids or ())
    check_chosen(bool(ids or everything or filters != MessageFilters()), "cancel")

    async def choose() -> list[Place]:
        places: list[Place] = []
        async for one in found:
            places.append(Place(one.stored.queue, one.stored.position, one.id, one.stored.queue))
            if len(places) == limit:
                break
        return places

    async def delete(places: Sequence[Place], progress: Progress) -> Moved:
        moved = await target.dead_letters.purge(places, progress=progress)
        moved.gone, moved.held = moved.gone + moved.held, 0  # a worker is handling those
        return moved

    move_chosen(common, target, Move("cancel", "cancelled", "message", choose, delete), ids, yes)


def _find(
    app: Matador, filters: MessageFilters, ids: Sequence[str] = ()
) -> AsyncIterator[MessageView]:
    """The messages that match.

    Raises:
        UsageError: an unknown queue.
    """
    topology = app.topology
    queues = topology.queues if filters.queue is None else [known_queue(app, filters.queue)]

    async def find() -> AsyncIterator[MessageView]:
        transport = app.transport
        if not transport.capabilities.browse or not isinstance(transport, Browsing):
            raise CommandError(
                f"{transport.name} cannot list the messages of a queue "
                f"(`matador queues` counts them)"
            )
        await _note_invisible(app, filters.state, topology.full_name(queues[0].name))
        for queue in queues:
            async for stored in transport.browse(topology.full_name(queue.name)):
                message = _view(app, stored, queue.name)
                docket = message.docket
                if (
                    filters.state in (None, stored.state)
                    and filters.event in (None, docket and docket.event_key)
                    and filters.subscriber in (None, docket and docket.target_subscriber)
                    and (not ids or message.id.startswith(tuple(ids)))
                ):
                    yield message

    return find()


def _view(app: Matador, stored: StoredMessage, queue: str) -> MessageView:
    try:
        envelope, problem = app.codec.decode(stored.body, stored.headers, SystemClock()), None
    except DecodeError as error:
        envelope, problem = None, str(error)
    return MessageView(stored, queue, envelope, problem, app.codec)


async def _note_invisible(app: Matador, state: str | None, queue: str) -> None:
    """Say which messages the broker does not show.

    Raises:
        CommandError: exactly those were asked for.
    """
    transport = app.transport
    if not transport.capabilities.depth or not isinstance(transport, Measuring):
        return
    if "delayed" in (await transport.depth(queue)).unknown:
        if state in ("delayed", "in-flight"):
            raise CommandError(f"{transport.name} shows ready messages only, not {state} ones")
        note(f"{transport.name} shows ready messages only")
