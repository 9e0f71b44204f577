"""The lake: its report, SQL over its tables, replay with a dry run."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from http import HTTPStatus
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from matador.dashboard.desk import Desk, desk_of, user_of
from matador.dashboard.guard import field, form_of, session_of
from matador.dashboard.pages.errors import not_found, said
from matador.errors import MatadorError

T = TypeVar("T")

_CHOICE = ("event", "subscriber", "where", "since", "until")
_LONGEST_QUERY = 10_000
_LEFT = 499  # the status that servers log for a client that disconnected early
_EXAMPLE = "SELECT event_key, subscriber, outcome, count(*) AS n FROM deliveries GROUP BY 1, 2, 3"
_REPORT_POLICY = "default-src 'none'; style-src 'unsafe-inline'; sandbox; frame-ancestors 'none'"


async def lake(request: Request) -> Response:
    """The page of the lake."""
    return _page(request)


def _page(request: Request, status: int = HTTPStatus.OK, **more: Any) -> Response:
    desk = desk_of(request)
    values: dict[str, Any] = {
        "lake": desk.lake,
        "masked": bool(desk.masking),
        "events": []
        if desk.sources.app is None
        else [one.key for one in desk.sources.app.schema.events],
        "sql": _EXAMPLE,
        "answer": None,
        "problem": None,
    }
    return desk.renderer.page(request, "lake.html", status, **{**values, **more})


async def lake_values(desk: Desk, params: dict[str, str]) -> dict[str, Any]:
    """The values of the live part of the page."""
    return {"lake": desk.lake}


async def make_report(request: Request) -> Response:
    """Start to make a report."""
    desk = desk_of(request)
    if desk.lake is None:
        return not_found(request)
    await desk.record(request, "make report")
    desk.lake.make_report()
    return RedirectResponse("/lake", HTTPStatus.SEE_OTHER)


async def report(request: Request) -> Response:
    """The report page."""
    desk = desk_of(request)
    if desk.lake is None or desk.lake.report is None:
        return not_found(request, "No report was made yet.")
    headers = {"content-security-policy": _REPORT_POLICY}
    return HTMLResponse(desk.lake.report, headers=headers)


async def query(request: Request) -> Response:
    """The first rows of a query, which only reads."""
    desk = desk_of(request)
    if desk.lake is None:
        return not_found(request)
    if desk.masking:
        text = "SQL would show the fields that are masked, so it is off."
        return said(request, text, HTTPStatus.FORBIDDEN)
    sql = field(form_of(request), "sql")
    if len(sql) > _LONGEST_QUERY:
        problem = f"the query has {len(sql):,} characters; at most {_LONGEST_QUERY:,} are allowed"
        return _page(request, HTTPStatus.BAD_REQUEST, sql=sql, problem=problem)
    await desk.record(request, "query", sql=sql)
    try:
        asking = desk.lake.queries.ask(sql, session_of(request).label)
        answer = await _unless_left(request, asking)
    except MatadorError as error:
        return _page(request, HTTPStatus.BAD_REQUEST, sql=sql, problem=str(error))
    if answer is None:
        return Response(status_code=_LEFT)
    return _page(request, sql=sql, answer=answer)


async def _unless_left(request: Request, work: Coroutine[Any, Any, T]) -> T | None:
    """The result of the work; None if the browser disconnects, which cancels the work."""

    async def left() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    working, leaving = asyncio.create_task(work), asyncio.create_task(left())
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        working.cancel()
        leaving.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def begin_replay(request: Request) -> Response:
    """Count what a replay would send."""
    desk, form = desk_of(request), form_of(request)
    if desk.lake is None:
        return not_found(request)
    choice = {name: field(form, name).strip() for name in _CHOICE}
    if desk.masking and choice["where"]:
        text = "A condition could tell masked values, so it is off. Choose by event, or by time."
        return said(request, text, HTTPStatus.FORBIDDEN)
    if not any(choice.values()):
        return said(request, "Choose what to replay: an event, at least.", HTTPStatus.BAD_REQUEST)
    replay = desk.lake.begin_replay(choice)
    return RedirectResponse(f"/lake/replays/{replay.id}", HTTPStatus.SEE_OTHER)


async def show_replay(request: Request) -> Response:
    """The progress of a replay."""
    desk = desk_of(request)
    found = None if desk.lake is None else desk.lake.find(request.path_params["id"])
    if found is None:
        return not_found(request, "There is no such replay any more.")
    return desk.renderer.page(request, "replay.html", replay=found)


async def confirm_replay(request: Request) -> Response:
    """Start a replay."""
    desk = desk_of(request)
    found = None if desk.lake is None else desk.lake.find(request.path_params["id"])
    if desk.lake is None or found is None:
        return not_found(request, "There is no such replay any more.")
    if not desk.lake.confirm(found, user_of(request)):
        text = (
            "This is not waiting to be confirmed: it was sent before, is being counted, or failed."
        )
        return said(request, text, HTTPStatus.CONFLICT)
    return RedirectResponse(f"/lake/replays/{found.id}", HTTPStatus.SEE_OTHER)


async def replay_values(desk: Desk, params: dict[str, str]) -> dict[str, Any]:
    """The values of the live part of a replay."""
    found = None if desk.lake is None else desk.lake.find(params.get("id", ""))
    if found is None:
        raise MatadorError("there is no such replay")
    return {"replay": found}
