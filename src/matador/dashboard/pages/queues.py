"""Queues: all of them, one with its messages, pausing, and canceling waiting messages."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from matador.dashboard import guard
from matador.dashboard.desk import Desk, desk_of, within
from matador.dashboard.guard import form_of
from matador.dashboard.monitor import QueueView
from matador.dashboard.pages.errors import confirmed, not_found, said
from matador.dashboard.pages.listing import listing
from matador.dashboard.problems import living_workers
from matador.dashboard.render import plural, query
from matador.dashboard.sources import WatchedQueue
from matador.dashboard.stats import PERIODS, Edge
from matador.errors import MatadorError, QueueNotFoundError
from matador.model.job import JOB_STATUSES
from matador.model.message import StoredMessage
from matador.runtime.dead_letters import Contents, Place, delivery_of
from matador.transports.base import Browsing

_PATIENCE = 10.0  # seconds to wait for the broker
_MOST_SHOWN = 50


@dataclass(frozen=True, slots=True)
class Listed:
    """The first messages of a queue, or the reason why they are not shown."""

    messages: list[tuple[StoredMessage, Contents]] = field(
        default_factory=list[tuple[StoredMessage, Contents]]
    )
    note: str | None = None


async def queues(request: Request) -> Response:
    """Every queue."""
    desk = desk_of(request)
    values = await queues_values(desk, dict(request.query_params))
    return desk.renderer.page(request, "queues.html", **values)


async def queues_values(desk: Desk, params: dict[str, str]) -> dict[str, Any]:
    """The values of the page of queues."""

    def waiting(view: QueueView) -> int:
        depth = view.counts.depth
        return -1 if depth is None else depth.ready

    def age(view: QueueView) -> float:
        return 0.0 if view.oldest_at is None else 1 / view.oldest_at

    chosen = listing(
        desk.monitor.snapshot.queues,
        params,
        lambda view: f"{view.name} {view.watched.full_name} {view.watched.source.way}",
        {
            "order of declaration": lambda view: 0,
            "waiting": waiting,
            "dead letters": lambda view: view.dead,
            "oldest": age,
        },
    )
    return {
        **await _figures(desk),
        "chosen": chosen,
        "snapshot": desk.monitor.snapshot,
        "counts": desk.monitor.counts_messages,
        "pauses": any(one.pauses for one in desk.sources.all),
    }


async def _figures(desk: Desk) -> dict[str, Any]:
    """The latest figures of workers about all queues."""
    stats, alive = await desk.stats("1h"), await living_workers(desk)
    return {
        "rates": {} if stats is None else stats.queues,
        "idle": Edge(),
        "consumers": None if alive is None else Counter(q for one in alive for q in one.queues),
        "now": time.time(),
    }


async def queue(request: Request) -> Response:
    """One queue: its figures, and the messages that wait in it."""
    desk, name = desk_of(request), request.query_params.get("queue", "")
    found = desk.sources.queue(name)
    if found is None:
        return _unknown(request, name)
    values = await queue_values(desk, dict(request.query_params))
    listed = Listed() if found.source.jobs is not None else await within(_listed(found))
    return desk.renderer.page(request, "queue.html", **values, listed=listed)


async def queue_values(desk: Desk, params: dict[str, str]) -> dict[str, Any]:
    """The values of the live part of the page of a queue."""
    found = desk.sources.queue(params.get("queue", ""))
    if found is None:
        raise MatadorError("there is no such queue")
    period = params.get("period", "1h")
    period = period if period in PERIODS else "1h"
    views = {view.watched: view for view in desk.monitor.snapshot.queues}
    return {
        **await _figures(desk),
        "queue": found,
        "view": views.get(found),
        "snapshot": desk.monitor.snapshot,
        "statuses": JOB_STATUSES,
        "stats": await desk.stats(period, found),
        "period": period,
        "periods": PERIODS,
    }


async def change_queue(request: Request) -> Response:
    """Pause or resume a queue."""
    desk, name = desk_of(request), request.query_params.get("queue", "")
    queue = desk.sources.queue(name)
    if queue is None:
        return _unknown(request, name)
    if not queue.source.pauses:
        return said(request, queue.source.why_not_pause, HTTPStatus.CONFLICT)
    action = guard.field(form_of(request), "action")
    if action not in ("pause", "resume"):
        return said(request, "Choose what to do.", HTTPStatus.BAD_REQUEST)
    await desk.record(request, f"{action} queue", queue=queue.full_name)
    await within(queue.source.pause(queue.full_name, action == "pause"))
    await desk.monitor.look_again(_PATIENCE)  # so that the page shows it
    back = "/jobs" if guard.field(form_of(request), "back") == "/jobs" else "/queues"
    return RedirectResponse(back, HTTPStatus.SEE_OTHER)


async def cancel(request: Request) -> Response:
    """Delete chosen messages that wait, with their checkpoints. Asks first."""
    desk, form = desk_of(request), form_of(request)
    name = request.query_params.get("queue", "")
    found = desk.sources.queue(name)
    if found is None:
        return _unknown(request, name)
    full = found.full_name
    page = f"/queues/queue?{query({'queue': name})}"
    chosen = [(id_, position) for id_, _, position in map(_split, form.get("message", [])) if id_]
    if not chosen:
        text = "Select at least one message."
        return said(request, text, HTTPStatus.BAD_REQUEST, page, "Back to the queue")
    number = plural(len(chosen), "message")
    if guard.field(form, "sure") != "yes":
        return confirmed(
            request,
            f"Cancel {number}",
            f"{number} of {name} would be deleted without being handled: "
            + ", ".join(id_ for id_, _ in chosen),
            f"/queues/cancel?{query({'queue': name})}",
            [("message", one) for one in form["message"]],
            page,
        )
    await desk.record(request, "cancel messages", queue=full, ids=[id_ for id_, _ in chosen])
    places = [Place(full, position, id_, full) for id_, position in chosen]
    moved = await within(found.source.letters.purge(places))
    desk.monitor.look_soon()
    text = f"{plural(moved.done, 'message')} canceled."
    if left := moved.gone + moved.held:
        text += f" {plural(left, 'message')} handled, or gone, in the meantime."
    text += "".join(f" {id_}: {error}." for id_, error in moved.failed)
    return said(request, text, link=page, label="Back to the queue")


def _split(value: str) -> tuple[str, str, str]:
    """Id and position of a message in a form: the position has no space."""
    return value.rpartition(" ")


def _unknown(request: Request, name: str) -> Response:
    return not_found(request, f"There is no queue {name!r} in this dashboard.")


async def _listed(queue: WatchedQueue) -> Listed:
    source = queue.source
    name = source.transport.name
    if not source.browses:
        return Listed(note=f"{name} cannot show waiting messages.")
    if source.takes_to_browse:
        return Listed(note=taken(name))
    listed = Listed()
    with contextlib.suppress(QueueNotFoundError):
        async for one in browsed(queue, _MOST_SHOWN):
            listed.messages.append(one)
    return listed


async def browsed(
    queue: WatchedQueue, limit: int | None = None
) -> AsyncIterator[tuple[StoredMessage, Contents]]:
    """The messages of a queue, with their decoded contents."""
    transport, reader = queue.source.transport, queue.source.reader
    assert isinstance(transport, Browsing)
    async for stored in transport.browse(queue.full_name, limit=limit):
        yield stored, reader.read(delivery_of(stored), queue.full_name)


def taken(transport: str) -> str:
    """The note that waiting messages of a transport are not shown."""
    return (
        f"{transport} shows waiting messages only by taking them for a moment, so they are not "
        f"looked at here. `matador messages` does."
    )
