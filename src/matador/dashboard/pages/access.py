"""Login, logout, and the audit log."""

from __future__ import annotations

import asyncio
import logging
from http import HTTPStatus

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from matador.dashboard.desk import desk_of
from matador.dashboard.guard import cookie, field, form_of, local_path, session_of

log = logging.getLogger("matador.dashboard")

_SHOWN = 200
_PAUSE = 0.5  # seconds a wrong token takes, at least


async def login_form(request: Request) -> Response:
    """Asks for a token."""
    if not desk_of(request).options.needs_login:
        return RedirectResponse("/", HTTPStatus.SEE_OTHER)
    return _form(request, HTTPStatus.OK, None)


def _form(request: Request, status: int, problem: str | None) -> Response:
    desk = desk_of(request)
    after = request.query_params.get("next", "/")
    return HTMLResponse(desk.renderer.text("login.html", next=after, problem=problem), status)


async def login(request: Request) -> Response:
    """Begins a session for a user with a token."""
    desk, form = desk_of(request), form_of(request)
    address = request.client.host if request.client is not None else "unknown"
    if desk.sessions.is_blocked(address):
        return _form(request, HTTPStatus.TOO_MANY_REQUESTS, "Too many wrong tokens. Wait a minute.")
    user = desk.sessions.user_of(field(form, "token").strip())
    if user is None:
        desk.sessions.failed(address)
        log.warning("a wrong token was given for the dashboard, from %s", address)
        await asyncio.to_thread(desk.audit.add, address, "login refused")
        await asyncio.sleep(_PAUSE)
        return _form(request, HTTPStatus.FORBIDDEN, "This token is wrong.")
    session = desk.sessions.begin(user.role, user.name)
    await asyncio.to_thread(desk.audit.add, f"{user.role} {session.label} at {address}", "login")
    answer = RedirectResponse(local_path(field(form, "next")), HTTPStatus.SEE_OTHER)
    answer.headers.append("set-cookie", cookie(request.scope, session.id))
    return answer


async def logout(request: Request) -> Response:
    """Ends the session."""
    desk = desk_of(request)
    await desk.record(request, "logout")
    desk.sessions.end(session_of(request))
    answer = RedirectResponse("/login", HTTPStatus.SEE_OTHER)
    answer.headers.append("set-cookie", cookie(request.scope, "", lasting=False))
    return answer


async def audit(request: Request) -> Response:
    """The latest actions."""
    desk = desk_of(request)
    entries = await asyncio.to_thread(desk.audit.last, _SHOWN)
    return desk.renderer.page(
        request, "audit.html", entries=entries, file=str(desk.audit.path), shown=_SHOWN
    )
