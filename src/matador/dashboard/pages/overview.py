"""Overview, queues, events and workers: pages that change by themselves; and pausing queues."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from http import HTTPStatus
from typing import Any

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from matador.dashboard.desk import Desk, desk_of
from matador.dashboard.guard import field, form_of
from matador.dashboard.pages.errors import not_found, said
from matador.dashboard.problems import find_problems, is_alive, living_workers
from matador.dashboard.stats import PERIODS, Edge
from matador.errors import HistoryError
from matador.events.queue_pauses import pausing, why_not

_DAY = 86_400.0
_PATIENCE = 10.0  # seconds to wait for the broker


async def overview(request: Request) -> Response:
    """Is anything wrong, since when, and how much is going on."""
    return await _live_page(request, "overview", overview_values)


async def queues(request: Request) -> Response:
    """Every queue."""
    return await _live_page(request, "queues", queues_values)


async def change_queue(request: Request) -> Response:
    """Pause or resume a queue."""
    desk, name = desk_of(request), request.query_params.get("queue", "")
    if not desk.app.topology.has_queue(name):
        return not_found(request, f"The application has no queue {name!r}.")
    transport = pausing(desk.app.transport)
    if transport is None:
        return said(request, why_not(desk.app.transport), HTTPStatus.CONFLICT)
    action = field(form_of(request), "action")
    if action not in ("pause", "resume"):
        return said(request, "Choose what to do.", HTTPStatus.BAD_REQUEST)
    queue = desk.app.topology.full_name(desk.app.topology.queue(name).name)
    await desk.record(request, f"{action} queue", queue=queue)
    change = transport.pause_queue if action == "pause" else transport.resume_queue
    async with asyncio.timeout(_PATIENCE):
        await change(queue)
    await desk.monitor.look_again(_PATIENCE)  # so that the page shows it
    return RedirectResponse("/queues", HTTPStatus.SEE_OTHER)


async def events(request: Request) -> Response:
    """Every event with its subscribers."""
    return await _live_page(request, "events", events_values)


async def workers(request: Request) -> Response:
    """Who works, and on what."""
    return await _live_page(request, "workers", workers_values)


async def _live_page(request: Request, name: str, values: Any) -> Response:
    desk = desk_of(request)
    found = await values(desk, dict(request.query_params))
    return desk.renderer.page(request, f"{name}.html", **found)


async def overview_values(desk: Desk, params: dict[str, str]) -> dict[str, Any]:
    """What the overview shows."""
    period = params.get("period", "1h")
    period = period if period in PERIODS else "1h"
    stats = await desk.stats(period)
    alive = await living_workers(desk)
    snapshot = desk.monitor.snapshot
    depths = [one.counts.depth for one in snapshot.queues if one.counts.depth is not None]
    return {
        "snapshot": snapshot,
        "problems": await find_problems(desk, stats),
        "stats": stats,
        "period": period,
        "periods": PERIODS,
        "waiting": sum(one.ready + one.delayed for one in depths),
        "running": sum(one.in_flight for one in depths),
        "counts": desk.monitor.counts_messages,
        "alive": None if alive is None else len(alive),
        "has_journal": desk.journal is not None,
    }


async def queues_values(desk: Desk, params: dict[str, str]) -> dict[str, Any]:
    """What the page of queues shows."""
    stats = await desk.stats("1h")
    alive = await living_workers(desk)
    topology = desk.app.topology
    return {
        "snapshot": desk.monitor.snapshot,
        "rates": {} if stats is None else stats.queues,
        "idle": Edge(),
        "consumers": None if alive is None else Counter(q for one in alive for q in one.queues),
        "kinds": list(dict.fromkeys(k for q in topology.queues for k in topology.kinds_of(q))),
        "counts": desk.monitor.counts_messages,
        "pauses": desk.monitor.pauses,
        "consumed": set(desk.app.consume_from),
        "now": time.time(),
    }


async def events_values(desk: Desk, params: dict[str, str]) -> dict[str, Any]:
    """What the page of events shows."""
    period = params.get("period", "1h")
    period = period if period in PERIODS else "1h"
    stats = await desk.stats(period)
    edges = {} if stats is None else stats.edges
    letters = await asyncio.to_thread(desk.index.by_edge)
    known = {(event.key, one.name) for event, subscribers in desk.app.schema for one in subscribers}
    return {
        "schema": list(desk.app.schema),
        "edges": edges,
        "idle": Edge(),
        "letters": letters,
        "others": sorted(key for key in {*edges, *letters} if key not in known),
        "stats": stats,
        "period": period,
        "periods": PERIODS,
        "default_queue": desk.app.topology.default_queue.name,
    }


async def workers_values(desk: Desk, params: dict[str, str]) -> dict[str, Any]:
    """What the page of workers shows."""
    now = time.time()
    problem = None
    rows: list[Any] = []
    others: list[tuple[str, int, int]] = []
    try:
        rows = await asyncio.to_thread(desk.store.workers, now - _DAY)
        others = await asyncio.to_thread(desk.store.attempts_by_worker, now - _DAY)
    except HistoryError as error:
        problem = str(error)
    return {
        "workers": [(one, is_alive(one, now)) for one in rows],
        "others": others,
        "now": now,
        "problem": problem,
        "history": str(desk.options.history),
        "has_journal": desk.journal is not None,
    }


LIVE = {
    "overview": overview_values,
    "queues": queues_values,
    "events": events_values,
    "workers": workers_values,
}
"""The pages whose live part can be asked for again and again."""
