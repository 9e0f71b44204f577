"""Checks every request: host, session, role, forged forms, size of forms; adds security headers.

All pages are behind it, so that none can omit a check. All methods but GET and HEAD need a form of
this dashboard and, unless it only reads, an operator.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Callable
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

from starlette.datastructures import MutableHeaders
from starlette.requests import HTTPConnection, Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from matador.dashboard.options import DashboardOptions, is_known_host
from matador.dashboard.sessions import Session, Sessions

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}
_OPEN = ("/login", "/static/")
_READERS_MAY = frozenset(("/login", "/logout", "/lake/query"))
_LONGEST_FORM = 2 << 20
_MOST_FIELDS = 10_000
_MOST_DIGITS = 18  # of a number that fits into eight bytes, whatever its digits are
_FORM_TYPE = "application/x-www-form-urlencoded"
_PATIENCE = 15.0  # seconds to send a form

Form = dict[str, list[str]]


class Guard:
    """An ASGI middleware; see the module. Adds ``session`` and ``form`` to the request's state."""

    def __init__(
        self,
        app: ASGIApp,
        options: DashboardOptions,
        sessions: Sessions,
        render: Callable[..., str],
    ) -> None:
        self._app = app
        self._options = options
        self._sessions = sessions
        self._render = render

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return

        new: list[Session] = []

        async def secured(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
                if not scope["path"].startswith("/static/"):
                    headers["cache-control"] = "no-store"
                for one in new:
                    headers.append("set-cookie", cookie(scope, one.id))
            await send(message)

        refused = await self._refused(scope, receive, new)
        if refused is not None:
            await refused(scope, receive, secured)
        else:
            await self._app(scope, receive, secured)

    async def _refused(self, scope: Scope, receive: Receive, new: list[Session]) -> Response | None:
        """The answer to a refused request; None if it may pass."""
        connection = HTTPConnection(scope)
        host = connection.headers.get("host", "")
        if not is_known_host(host, self._options.allowed_hosts):
            return _plain(
                HTTPStatus.MISDIRECTED_REQUEST,
                "This name is not one of the dashboard. Use its address, or start it with "
                "--allowed-host NAME.",
            )
        if _is_foreign(connection):
            return _plain(HTTPStatus.FORBIDDEN, "Pages of other sites may link here, not load it.")
        path, method = scope["path"], scope["method"]
        state = scope.setdefault("state", {})
        session = self._sessions.find(connection.cookies.get(cookie_name(scope)))
        reads = method in ("GET", "HEAD")
        if session is None and not self._options.needs_login and reads:
            session = self._sessions.begin("operator")
            new.append(session)
        state["session"] = session
        if not reads:
            if method != "POST":
                return _plain(HTTPStatus.METHOD_NOT_ALLOWED, "Only GET and POST are understood.")
            if not _same_origin(connection, host):
                return _plain(HTTPStatus.FORBIDDEN, "The form was not sent by the dashboard.")
        is_open = path.startswith(_OPEN)
        if session is None and not is_open and reads:
            if _is_browser(connection):
                asked = path + (f"?{query}" if (query := scope["query_string"].decode()) else "")
                return RedirectResponse(f"/login?next={quote(asked)}", HTTPStatus.SEE_OTHER)
            return _plain(HTTPStatus.UNAUTHORIZED, "Log in first.")
        if reads:
            return None
        form = await _form(Request(scope, receive))
        if isinstance(form, Response):
            return form
        if not is_open:
            why = _why_not(form, session, path, self._options)
            if why is not None:
                return self._not_done(connection, form, *why)
        state["form"] = form
        return None

    def _not_done(
        self, connection: HTTPConnection, form: Form, status: HTTPStatus, text: str
    ) -> Response:
        """The answer to a refused form, with a link and the text that the user typed."""
        if not _is_browser(connection):
            return _plain(status, text)
        page = _page_of(connection)
        link, label = page, "Open the page again"
        if status == HTTPStatus.UNAUTHORIZED:
            link, label = f"/login?next={quote(page)}", "Log in"
        entered = field(form, "payload") or field(form, "sql")
        text = self._render("refused.html", text=text, link=link, label=label, entered=entered)
        return HTMLResponse(text, status)


def _why_not(
    form: Form, session: Session | None, path: str, options: DashboardOptions
) -> tuple[HTTPStatus, str] | None:
    """The reason why a form is refused; None if it may pass."""
    if session is None and options.needs_login:
        return (
            HTTPStatus.UNAUTHORIZED,
            "Nothing was done: you are not logged in, or your session has ended.",
        )
    sent = field(form, "csrf")
    if session is None or not hmac.compare_digest(sent.encode(), session.csrf.encode()):
        return HTTPStatus.FORBIDDEN, (
            "Nothing was done: the form is too old, or was not sent by this dashboard. "
            "Open the page again, and send it from there."
        )
    if session.role != "operator" and path not in _READERS_MAY:
        return HTTPStatus.FORBIDDEN, "Nothing was done: you may look, but not change anything."
    return None


def _is_browser(connection: HTTPConnection) -> bool:
    return "text/html" in connection.headers.get("accept", "")


def _page_of(connection: HTTPConnection) -> str:
    """The page that a form was sent from. The guard has checked that it is one of ours."""
    sent_from = urlsplit(connection.headers.get("referer", ""))
    if sent_from.netloc.lower() != connection.headers.get("host", "").lower():
        return "/"
    return local_path(f"{sent_from.path}?{sent_from.query}" if sent_from.query else sent_from.path)


def local_path(path: str) -> str:
    """A path of the dashboard, never another site."""
    is_ours = path.startswith("/") and not path.startswith(("//", "/\\"))
    return path if is_ours and path.isprintable() else "/"


def cookie_name(scope: Scope) -> str:
    """Browsers send cookies to all ports of a host, so each port has its own."""
    port = HTTPConnection(scope).url.port or 0
    return f"matador_{port}"


def cookie(scope: Scope, value: str, *, lasting: bool = True) -> str:
    """The header that sets the session's cookie, or removes it."""
    secure = "; Secure" if scope.get("scheme") == "https" else ""
    ended = "" if lasting else "; Max-Age=0"
    return f"{cookie_name(scope)}={value}; Path=/; HttpOnly; SameSite=Strict{secure}{ended}"


def _is_foreign(connection: HTTPConnection) -> bool:
    """Whether a page of another site loads a resource, according to the browser. Following a link
    is allowed."""
    site = connection.headers.get("sec-fetch-site", "none")
    mode = connection.headers.get("sec-fetch-mode", "navigate")
    return site in ("cross-site", "same-site") and mode != "navigate"


def _same_origin(connection: HTTPConnection, host: str) -> bool:
    """Whether a form comes from this dashboard. Browsers send the origin; without it, the form is
    refused."""
    return urlsplit(connection.headers.get("origin", "")).netloc.lower() == host.lower()


async def _form(request: Request) -> Form | Response:
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != _FORM_TYPE:
        return _plain(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "Only forms are understood.")
    body = bytearray()
    try:
        async with asyncio.timeout(_PATIENCE):
            async for part in request.stream():
                body += part
                if len(body) > _LONGEST_FORM:
                    return _plain(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "The form is too large.")
        form = parse_qs(
            body.decode(), keep_blank_values=True, errors="strict", max_num_fields=_MOST_FIELDS
        )
        # Browsers send CRLF for each line end of a text area.
        return {name: [one.replace("\r\n", "\n") for one in form[name]] for name in form}
    except TimeoutError:
        return _plain(HTTPStatus.REQUEST_TIMEOUT, "The form took too long.")
    except ValueError:  # also UnicodeDecodeError
        return _plain(HTTPStatus.BAD_REQUEST, "The form cannot be read.")


def _plain(status: HTTPStatus, text: str) -> Response:
    return PlainTextResponse(f"{text}\n", status)


def session_of(request: Request) -> Session:
    """The session of a request. All requests behind the guard have one."""
    found: Any = request.scope["state"]["session"]
    assert isinstance(found, Session), "the guard refuses requests without a session"
    return found


def form_of(request: Request) -> Form:
    """The form that was sent."""
    return request.scope["state"]["form"]


def field(form: Form, name: str, default: str = "") -> str:
    """One field of a form."""
    return form.get(name, [default])[0]


def read_number(text: str) -> int | None:
    """A number in an address or a form, if a database can hold it; None for anything else."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS else None
