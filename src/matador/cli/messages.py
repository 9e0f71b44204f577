"""``matador messages``: lists, shows and cancels messages that wait in their queues."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Annotated, get_args

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
from matador.cli.interaction import confirm, counting_progress, working
from matador.cli.message_views import (
    LISTED,
    matching_ids,
    print_in_full,
    print_list,
    print_moved,
)
from matador.cli.output import CommandError, UsageError, note, plural
from matador.codec.base import RawEnvelope
from matador.errors import DecodeError, QueueNotFoundError
from matador.events.app import Matador
from matador.events.dead_letters import BATCH, Letter, Moved
from matador.model.message import Complete, Delivery, MessageState, StoredMessage
from matador.model.options import suggestion
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
        typer.Option(
            "--state",
            metavar="STATE",
            help="Only this state: ready, delayed or in-flight.",
            autocompletion=lambda: list(_STATES),
        ),
    ] = None
    event: Event = None
    subscriber: Subscriber = None


@messages.add(
    "matador messages list shop.py",
    "matador messages list shop.py --queue events --state delayed",
    name="list",
)
def list_(
    app: App,
    *,
    filters: MessageFilters,
    limit: Limit = None,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """List messages in order of sending. Shows the first 100 unless --limit or --json is given."""
    target = load(app, verbose).app
    _check(target, filters)
    limit = limit if limit or as_json else LISTED
    found = asyncio.run(_collect(target, filters, (), limit and limit + 1))
    print_list(found, limit, "message", filtered=filters != MessageFilters(), as_json=as_json)


@messages.add("matador messages show shop.py --id 3f2a")
def show(
    app: App,
    *,
    ids: RequiredIds,
    queue: Queue = None,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Show messages in full: docket and payload, or the bytes if undecodable."""
    target = load(app, verbose).app
    filters = MessageFilters(queue=queue)
    _check(target, filters)
    found = _chosen(ids, asyncio.run(_collect(target, filters, ids, None)))
    print_in_full(found, "message", as_json=as_json)


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
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Delete messages before they are handled, with the checkpoints of resumable subscribers.

    Messages that a worker is handling are left alone. An interrupted cancel can be run again.
    """
    target = load(app, verbose).app
    _check(target, filters)
    if not (ids or everything or filters != MessageFilters()):
        raise UsageError("choose what to cancel: give --id, a filter such as --event, or --all")
    asyncio.run(_cancel(target, filters, ids or (), limit, yes, as_json))


# -- choosing -----------------------------------------------------------------------------------


def _check(app: Matador, filters: MessageFilters) -> None:
    """Check the options before connecting.

    Raises:
        UsageError: an unknown queue or state.
    """
    if filters.state is not None and filters.state not in _STATES:
        known = ", ".join(_STATES)
        hint = suggestion(filters.state, _STATES)
        raise UsageError(f"--state {filters.state!r} is not one of {known}{hint}")
    try:
        if filters.queue is not None:
            app.topology.queue(filters.queue)
    except QueueNotFoundError as unknown:
        raise UsageError(str(unknown)) from None


def _browsing(app: Matador) -> Browsing:
    transport = app.transport
    if not transport.capabilities.browse or not isinstance(transport, Browsing):
        raise CommandError(
            f"{transport.name} cannot list the messages of a queue (`matador queues` counts them)"
        )
    return transport


async def _collect(
    app: Matador, filters: MessageFilters, ids: Sequence[str], limit: int | None
) -> list[Letter]:
    async with connected(app):
        await _note_invisible(app, filters)
        return await _choose(app, filters, ids, limit)


async def _choose(
    app: Matador, filters: MessageFilters, ids: Sequence[str], limit: int | None
) -> list[Letter]:
    found: list[Letter] = []
    async for message in _browse(app, filters):
        if not ids or any(message.id.startswith(one) for one in ids):
            found.append(message)
        if limit is not None and len(found) >= limit:
            break
    return found


async def _browse(app: Matador, filters: MessageFilters) -> AsyncIterator[Letter]:
    browsing, topology = _browsing(app), app.topology
    only = None if filters.queue is None else topology.queue(filters.queue)
    for queue in topology.queues:
        if only not in (None, queue):
            continue
        async for stored in browsing.browse(topology.full_name(queue.name)):
            if filters.state not in (None, stored.state):
                continue
            envelope, problem = _decoded(app, stored)
            docket = None if envelope is None else envelope.docket
            if filters.event not in (None, docket and docket.event_key):
                continue
            if filters.subscriber not in (None, docket and docket.target_subscriber):
                continue
            yield Letter(stored, queue, "unhandled", envelope, problem, app.codec)


def _decoded(
    app: Matador, message: StoredMessage | Delivery
) -> tuple[RawEnvelope | None, str | None]:
    try:
        return app.codec.decode(message.body, message.headers, SystemClock()), None
    except DecodeError as error:
        return None, str(error)


def _chosen(ids: Sequence[str], found: list[Letter]) -> list[Letter]:
    chosen = matching_ids(ids, (one.id for one in found), "message")
    return [one for one in found if one.id in chosen]


async def _note_invisible(app: Matador, filters: MessageFilters) -> None:
    """Say which messages the broker does not show.

    Raises:
        CommandError: exactly those were asked for.
    """
    transport = app.transport
    if not transport.capabilities.depth or not isinstance(transport, Measuring):
        return
    queue = filters.queue or app.topology.default_queue.name
    depth = await transport.depth(app.topology.full_name(queue))
    if "delayed" not in depth.unknown:
        return
    if filters.state in ("delayed", "in-flight"):
        raise CommandError(f"{transport.name} shows ready messages only, not {filters.state} ones")
    note(f"{transport.name} shows ready messages only")


# -- cancelling ---------------------------------------------------------------------------------


async def _cancel(
    app: Matador,
    filters: MessageFilters,
    ids: Sequence[str],
    limit: int | None,
    yes: bool,
    as_json: bool,
) -> None:
    async with connected(app):
        await _note_invisible(app, filters)
        with working("searching…"):
            found = await _choose(app, filters, ids, limit)
        if ids:
            found = _chosen(ids, found)
        counted = plural(len(found), "message")
        if found and not yes:
            confirm(f"cancel {counted}", f"{counted} would be cancelled")
        moved = Moved()
        with counting_progress("cancel") as show_progress:
            for start in range(0, len(found), BATCH):
                batch = asyncio.ensure_future(
                    _cancel_batch(app, found[start : start + BATCH], moved)
                )
                try:
                    await asyncio.shield(batch)
                except asyncio.CancelledError:
                    await batch  # finish the batch: no message stays held
                    raise
                show_progress(min(start + BATCH, len(found)), len(found))
    moved.gone = len(found) - moved.done - len(moved.failed)
    print_moved(moved, len(found), "cancelled", "message", as_json=as_json)


async def _cancel_batch(app: Matador, batch: Sequence[Letter], moved: Moved) -> None:
    by_queue: dict[str, list[str]] = {}
    for message in batch:
        by_queue.setdefault(message.stored.queue, []).append(message.stored.position)
    for queue, positions in by_queue.items():
        taken = list(filter(None, await _browsing(app).take(queue, positions)))
        errors = await app.transport.settle([Complete(one.receipt) for one in taken])
        for delivery, error in zip(taken, errors, strict=True):
            envelope, _ = _decoded(app, delivery)
            id_ = "undecodable" if envelope is None else envelope.id
            if error is not None:
                moved.failed.append((id_, str(error)))
                continue
            moved.done += 1
            if envelope is not None:
                await app.checkpoints.delete(id_)
