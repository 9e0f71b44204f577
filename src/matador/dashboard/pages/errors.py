"""Short pages: not found, refused, failed, or to be confirmed."""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from matador.dashboard.desk import desk_of
from matador.errors import MatadorError


def said(
    request: Request,
    text: str,
    status: int = HTTPStatus.OK,
    link: str = "/",
    label: str = "Back to the overview",
) -> Response:
    """A page with one sentence and a link."""
    values = {"text": text, "link": link, "label": label}
    return desk_of(request).renderer.page(request, "said.html", status, **values)


def confirmed(
    request: Request,
    title: str,
    text: str,
    action: str,
    fields: Sequence[tuple[str, str]],
    back: str,
) -> Response:
    """A page that asks for confirmation: ``action`` gets the fields, and ``sure``."""
    values = {"heading": title, "text": text, "action": action, "fields": fields, "back": back}
    return desk_of(request).renderer.page(request, "confirm.html", **values)


def not_found(request: Request, text: str = "There is no such page.") -> Response:
    """The page for something that does not exist."""
    return said(request, text, HTTPStatus.NOT_FOUND)


async def on_not_found(request: Request, error: Exception) -> Response:
    """Handle an unknown path."""
    if request.scope.get("state", {}).get("session") is None:
        return PlainTextResponse("There is no such page.\n", HTTPStatus.NOT_FOUND)
    return not_found(request)


async def on_error(request: Request, error: Exception) -> Response:
    """Handle a failure of the broker, the history or the audit log."""
    text = str(error) if isinstance(error, MatadorError) else "This took too long."
    if request.scope.get("state", {}).get("session") is None:
        return PlainTextResponse("This failed.\n", HTTPStatus.SERVICE_UNAVAILABLE)
    return said(request, text, HTTPStatus.SERVICE_UNAVAILABLE)
