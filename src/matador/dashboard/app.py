"""``Dashboard``: the ASGI application, with everything behind the guard."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Iterable
from http import HTTPStatus
from pathlib import Path

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Receive, Scope, Send

from matador.charts.svg import STYLE_SHEET
from matador.dashboard.alerts import Alerts
from matador.dashboard.audit import AuditLog
from matador.dashboard.desk import Desk
from matador.dashboard.guard import Guard
from matador.dashboard.journal_reader import follow_journal
from matador.dashboard.lake_desk import LakeDesk
from matador.dashboard.letter_index import LetterIndex
from matador.dashboard.link import Link
from matador.dashboard.live import live
from matador.dashboard.masking import Masking
from matador.dashboard.monitor import Monitor
from matador.dashboard.moves import Moves
from matador.dashboard.options import DashboardOptions
from matador.dashboard.pages import access, dead_letters, jobs, lake, messages, overview, queues
from matador.dashboard.pages.errors import on_error, on_not_found
from matador.dashboard.render import FOLDER, Renderer
from matador.dashboard.sessions import Sessions
from matador.dashboard.sources import Sources
from matador.errors import ConfigurationError, MatadorError
from matador.observe.history.store import HistoryStore
from matador.observe.sources import Target


async def _favicon(request: Request) -> Response:
    return RedirectResponse("/static/icon.svg", HTTPStatus.MOVED_PERMANENTLY)


async def _chart_style(request: Request) -> Response:
    return FileResponse(STYLE_SHEET)


def _routes() -> list[Route | Mount]:
    # Names of queues and ids of jobs are in the query: some of them, such as "..", fit in no path.
    get, post = ["GET"], ["POST"]
    return [
        Route("/", overview.overview, methods=get),
        Route("/queues", queues.queues, methods=get),
        Route("/queues/queue", queues.queue, methods=get),
        Route("/queues/change", queues.change_queue, methods=post),
        Route("/queues/cancel", queues.cancel, methods=post),
        Route("/handlers", overview.handlers, methods=get),
        Route("/workers", overview.workers, methods=get),
        Route("/dead-letters", dead_letters.dead_letters, methods=get),
        Route("/dead-letters/export", dead_letters.export, methods=get),
        Route("/dead-letters/move", dead_letters.begin_move, methods=post),
        Route("/dead-letters/{number}", messages.letter, methods=get),
        Route("/dead-letters/{number}/edit", dead_letters.edit, methods=get),
        Route("/dead-letters/{number}/edit", dead_letters.edited, methods=post),
        Route("/moves/{id}", dead_letters.show_move, methods=get),
        Route("/moves/{id}/confirm", dead_letters.confirm_move, methods=post),
        Route("/moves/{id}/cancel", dead_letters.cancel_move, methods=post),
        Route("/messages", messages.messages, methods=get),
        Route("/jobs", jobs.jobs, methods=get),
        Route("/jobs/queue", jobs.job_queue, methods=get),
        Route("/jobs/job", jobs.job, methods=get),
        Route("/jobs/job", jobs.change_job, methods=post),
        Route("/jobs/schedule", jobs.change_schedule, methods=post),
        Route("/lake", lake.lake, methods=get),
        Route("/lake/report", lake.report, methods=get),
        Route("/lake/report", lake.make_report, methods=post),
        Route("/lake/query", lake.query, methods=post),
        Route("/lake/replays", lake.begin_replay, methods=post),
        Route("/lake/replays/{id}", lake.show_replay, methods=get),
        Route("/lake/replays/{id}/confirm", lake.confirm_replay, methods=post),
        Route("/audit", access.audit, methods=get),
        Route("/login", access.login_form, methods=get),
        Route("/login", access.login, methods=post),
        Route("/logout", access.logout, methods=post),
        Route("/live", live, methods=get),
        Route("/favicon.ico", _favicon, methods=get),
        Route("/static/charts.css", _chart_style, methods=get),
        Mount("/static", StaticFiles(directory=FOLDER / "static")),
    ]


class Dashboard:
    """Web pages about services that receive messages, as an ASGI application for any server.

    ``matador dashboard FILE`` runs it for you. The services may run in this process. If they are
    not started, the dashboard connects their transports and disconnects them at the end. The server
    must run in the event loop of running services, and send lifespan events.

    Args:
        services: an application, a job queue, an RPC server, a subscriber or a queue service, or
            several of them.
        options: its users and its files.

    Raises:
        ConfigurationError: there is nothing to show.
        NotStartedError: services with in-memory transports must be started first.

    Example:
        >>> dashboard = Dashboard([app, emails], DashboardOptions(history="history.db"))
        >>> uvicorn.run(dashboard, port=8080)  # doctest: +SKIP
    """

    def __init__(self, services: Target | Iterable[Target], options: DashboardOptions) -> None:
        self._sources = Sources(services if isinstance(services, Iterable) else [services])
        if options.lake is not None and self._sources.app is None:
            raise ConfigurationError("the page of the lake needs an application, for its replays")
        self._options = options
        self._sessions = Sessions(options)
        handlers = {
            HTTPStatus.NOT_FOUND.value: on_not_found,
            MatadorError: on_error,
            TimeoutError: on_error,
        }
        self._pages = Starlette(
            routes=_routes(),
            lifespan=self._running,
            exception_handlers=handlers,
        )
        self._renderer = Renderer(self._sources.title, needs_login=options.needs_login)
        self._guarded = Guard(self._pages, options, self._sessions, self._renderer.text)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request, or the start and the end of the server."""
        await self._guarded(scope, receive, send)

    def running(self) -> contextlib.AbstractAsyncContextManager[None]:
        """Connect and watch, for a server that sends no lifespan events.

        Raises:
            MatadorError: it cannot start. If a broker is down, the dashboard keeps retrying
                instead.
        """
        return self._running(self._pages)

    def end_live_pages(self) -> None:
        """End open live pages and queries, for a server that shuts down."""
        desk: Desk = self._pages.state.desk
        desk.ending = True
        desk.monitor.wake()
        if desk.lake is not None:
            desk.lake.queries.end()

    @contextlib.asynccontextmanager
    async def _running(self, _: Starlette) -> AsyncGenerator[None]:
        sources, options = self._sources, self._options
        async with contextlib.AsyncExitStack() as stack:
            link = Link(sources, lambda: self._pages.state.desk.monitor.look_soon())
            stack.push_async_callback(link.close)
            await link.open()
            store = HistoryStore(Path(options.history))
            stack.callback(store.close)
            audit = AuditLog(options.audit_file)
            index = LetterIndex(sources)
            stack.callback(index.close)
            monitor = Monitor(sources, store, index)
            moves = Moves(sources, index, audit, monitor.look_soon)
            lake_desk = None
            if options.lake is not None and sources.app is not None:
                lake_desk = LakeDesk(sources.app, options, audit)
                stack.push_async_callback(lake_desk.stop)
            desk = Desk(
                sources=sources,
                options=options,
                sessions=self._sessions,
                store=store,
                index=index,
                monitor=monitor,
                moves=moves,
                audit=audit,
                masking=Masking(options.mask),
                renderer=self._renderer,
                lake=lake_desk,
            )
            self._pages.state.desk = desk
            if sources.journal is not None:
                following = asyncio.create_task(follow_journal(sources.journal.folder, store))
                stack.push_async_callback(_cancelled, following)
            if options.webhook is not None:
                telling = asyncio.create_task(Alerts(desk, options.webhook).keep_telling())
                stack.push_async_callback(_cancelled, telling)
            stack.push_async_callback(moves.stop)
            monitor.start()
            stack.push_async_callback(monitor.stop)
            yield


async def _cancelled(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
