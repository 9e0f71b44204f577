"""Overview, handlers and workers: pages that change by themselves."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response

from matador.channels import QueueService
from matador.dashboard.desk import Desk, desk_of
from matador.dashboard.pages.listing import listing
from matador.dashboard.problems import find_problems, is_alive, living_workers
from matador.dashboard.sources import WatchedSource
from matador.dashboard.stats import LATELY, PERIODS, Edge
from matador.errors import HistoryError
from matador.events.app import Matador
from matador.pubsub import Subscriber

_DAY = 86_400.0


async def overview(request: Request) -> Response:
    """Current problems and activity."""
    return await _live_page(request, "overview", overview_values)


async def handlers(request: Request) -> Response:
    """The handlers of each event, job, command and message."""
    return await _live_page(request, "handlers", handlers_values)


async def workers(request: Request) -> Response:
    """The workers and their current messages."""
    return await _live_page(request, "workers", workers_values)


async def _live_page(request: Request, name: str, values: Any) -> Response:
    desk = desk_of(request)
    found = await values(desk, dict(request.query_params))
    return desk.renderer.page(request, f"{name}.html", **found)


async def overview_values(desk: Desk, params: dict[str, str]) -> dict[str, Any]:
    """The values of the overview."""
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
        "waiting": sum(one.ready for one in depths),
        "delayed": sum(one.delayed for one in depths),
        "running": sum(one.in_flight for one in depths),
        "counts": desk.monitor.counts_messages,
        "alive": None if alive is None else len(alive),
        "has_journal": desk.sources.journal is not None,
    }


@dataclass(frozen=True, slots=True)
class HandlerRow:
    """A handler: its message type, its health and its dead letters."""

    name: str
    text: str
    more: str
    edge: Edge
    letters: int
    link: str


async def handlers_values(desk: Desk, params: dict[str, str]) -> dict[str, Any]:
    """The values of the page of handlers: a section for each event, and for each other source."""
    period = params.get("period", "1h")
    period = period if period in PERIODS else "1h"
    stats = await desk.stats(period)
    edges = {} if stats is None else dict(stats.edges)
    letters = await asyncio.to_thread(desk.index.by_edge)
    sections: list[Section] = []
    for source in desk.sources.all:
        if isinstance(source.service, Matador):
            sections += _of_events(desk, source, edges, letters)
        else:
            sections.append(_of_others(desk, source, edges, letters))
    rest = [
        HandlerRow(name, event or "cannot be decoded", "", edge, 0, "")
        for (event, name), edge in sorted(edges.items())
    ]
    rest += [
        HandlerRow(
            name,
            event or "cannot be decoded",
            f"queue {queue}",
            Edge(),
            number,
            _letters(queue, event, name),
        )
        for (queue, event, name), number in sorted(letters.items())
    ]
    if rest:
        note = "What workers or dead letters mention, and nothing here is declared for."
        sections.append(("Others", note, rest))

    def most(of: Callable[[HandlerRow], float]) -> Callable[[Section], float]:
        return lambda section: max(map(of, section[2]), default=0)

    chosen = listing(
        sections,
        params,
        lambda one: " ".join([one[0], one[1], *(f"{row.name} {row.text}" for row in one[2])]),
        {
            "order of declaration": most(lambda row: 0),
            "failing": most(lambda row: row.edge.failure_rate),
            "attempts": most(lambda row: row.edge.attempts),
            "dead letters": most(lambda row: row.letters),
        },
    )
    return {"chosen": chosen, "stats": stats, "period": period, "periods": PERIODS}


Section: TypeAlias = tuple[str, str, list[HandlerRow]]


Edges: TypeAlias = dict[tuple[str, str], Edge]
Letters: TypeAlias = dict[tuple[str, str, str], int]


def _of_events(
    desk: Desk, source: WatchedSource, edges: Edges, letters: Letters
) -> list[tuple[str, str, list[HandlerRow]]]:
    """A section for each event. Removes its entries from ``edges`` and ``letters``."""
    app = source.service
    assert isinstance(app, Matador)
    ours = [one.name for one in desk.sources.queues if one.source is source]
    sections: list[tuple[str, str, list[HandlerRow]]] = []
    for event, subscribers in app.schema:
        rows: list[HandlerRow] = []
        for one in subscribers:
            keys = [key for key in letters if key[0] in ours and key[1:] == (event.key, one.name)]
            number = sum(letters.pop(key) for key in keys)
            queue = one.queue or app.topology.default_queue.name
            more = f"queue {queue} · idempotent: {one.idempotent} · {one.importance}"
            edge = edges.pop((event.key, one.name), Edge())
            link = _letters("", event.key, one.name)
            rows.append(HandlerRow(one.name, one.description, more, edge, number, link))
        also = f" Also known as {', '.join(event.aliases)}." if event.aliases else ""
        sections.append((event.key, f"{event.description}{also}", rows))
    return sections


def _of_others(
    desk: Desk, source: WatchedSource, edges: Edges, letters: Letters
) -> tuple[str, str, list[HandlerRow]]:
    """A section for a source that has no events: what it declares, and what was seen there."""
    rows: list[HandlerRow] = []
    for queue in [one for one in desk.sources.queues if one.source is source]:
        declared = source.handlers_of(queue.full_name)
        here = [key for key, edge in edges.items() if edge.queue == queue.full_name]
        by_title = {key[0]: edges.pop(key) for key in here}
        counts: Counter[str] = Counter()
        for key in [key for key in letters if key[0] == queue.name]:
            counts[key[1]] += letters.pop(key)
        titles = {source.title_of(name): name for name in (*declared, *counts)}
        more = f"queue {queue.name}" if isinstance(source.service, QueueService) else ""
        for title in sorted({*titles, *by_title}):
            name = titles.get(title) or title.removesuffix(source.title_of(""))
            edge, function = by_title.get(title, Edge()), declared.get(name, "")
            link = _letters(queue.name, name)
            rows.append(
                HandlerRow(name or "cannot be decoded", function, more, edge, counts[name], link)
            )
    where = f"{source.way}, {source.transport.name}"
    if isinstance(source.service, Subscriber):
        bound = (f"{pattern} → {route.handler}" for pattern, route in source.service.bindings)
        where += f" · {', '.join(bound)}"
    return source.name, where, rows


def _letters(queue: str, name: str, receiver: str = "") -> str:
    chosen = {"queue": queue, "name": name, "receiver": receiver}
    return f"/dead-letters?{urlencode({key: value for key, value in chosen.items() if value})}"


async def workers_values(desk: Desk, params: dict[str, str]) -> dict[str, Any]:
    """The values of the page of workers."""
    now = time.time()
    problem = None
    rows: list[Any] = []
    lately: dict[str, tuple[int, int]] = {}
    others: list[tuple[str, int, int, int]] = []
    try:
        rows = await asyncio.to_thread(desk.store.workers, now - _DAY)
        found = await asyncio.to_thread(desk.store.attempts_by_worker, now - LATELY, "worker")
        lately = {name: (attempts, failed) for name, _, attempts, failed in found}
        others = await asyncio.to_thread(desk.store.attempts_by_worker, now - _DAY, "journal")
    except HistoryError as error:
        problem = str(error)
    return {
        "workers": [(one, is_alive(one, now), lately.get(one.name, (0, 0))) for one in rows],
        "others": others,
        "now": now,
        "problem": problem,
        "history": str(desk.options.history),
    }


LIVE = {
    "overview": overview_values,
    "handlers": handlers_values,
    "workers": workers_values,
}
"""The pages with a live part."""
