"""The objects that the pages need, created once and passed to each page."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from starlette.requests import Request

from matador.dashboard.audit import AuditLog
from matador.dashboard.guard import session_of
from matador.dashboard.lake_desk import LakeDesk
from matador.dashboard.letter_index import LetterIndex
from matador.dashboard.masking import Masking
from matador.dashboard.monitor import Monitor
from matador.dashboard.moves import Moves
from matador.dashboard.options import DashboardOptions
from matador.dashboard.render import Renderer
from matador.dashboard.sessions import Sessions
from matador.dashboard.sources import Sources, WatchedQueue
from matador.dashboard.stats import Stats, read_stats
from matador.errors import HistoryError
from matador.observe.history.store import HistoryStore

T = TypeVar("T")

_FRESH = 2.0
_MOST_STATS = 100
_PATIENCE = 10.0  # seconds to wait for a broker


@dataclass(slots=True)
class Desk:
    """The shared objects of the pages. Created when the dashboard starts, in the event loop of the
    application."""

    sources: Sources
    options: DashboardOptions
    sessions: Sessions
    store: HistoryStore
    index: LetterIndex
    monitor: Monitor
    moves: Moves
    audit: AuditLog
    masking: Masking
    renderer: Renderer
    lake: LakeDesk | None
    streams: int = 0
    ending: bool = False
    _stats: dict[tuple[str, WatchedQueue | None], tuple[float, Stats]] = field(
        default_factory=dict[tuple[str, WatchedQueue | None], tuple[float, Stats]]
    )
    _reading: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def stats(self, period: str, queue: WatchedQueue | None = None) -> Stats | None:
        """The figures of a period, of all queues or of one, cached for a moment; None if there is
        no history."""
        key = period, queue
        async with self._reading:
            known = self._stats.get(key)
            if known is not None and time.monotonic() - known[0] < _FRESH:
                return known[1]
            try:
                names = None if queue is None else (queue.full_name, queue.name)
                made = await asyncio.to_thread(read_stats, self.store, period, time.time(), names)
            except HistoryError as error:
                self.monitor.history_problem = str(error)
                return None
            if len(self._stats) >= _MOST_STATS:
                self._stats.clear()
            self._stats[key] = (time.monotonic(), made)
            return made

    async def record(self, request: Request, action: str, **details: Any) -> None:
        """Add an action to the audit log, before it is carried out.

        Raises:
            HistoryError: it could not be recorded.
        """
        await asyncio.to_thread(self.audit.add, user_of(request), action, **details)


async def within(call: Awaitable[T]) -> T:
    """Wait for a broker with a time limit."""
    async with asyncio.timeout(_PATIENCE):
        return await call


def user_of(request: Request) -> str:
    """The user of a request, for the audit log: role, session and address."""
    session = session_of(request)
    address = request.client.host if request.client is not None else "unknown"
    return f"{session.role} {session.label} at {address}"


def desk_of(request: Request) -> Desk:
    """The desk of the dashboard that a request is for."""
    return request.app.state.desk
