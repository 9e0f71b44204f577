"""Short answers: something is not there, was refused, went wrong, or must be confirmed."""

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
    """A page with one sentence, and a way on."""
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
    """A page that asks before something is done: ``action`` gets the fields, and ``sure``."""
    values = {"heading": title, "text": text, "action": action, "fields": fields, "back": back}
    return desk_of(request).renderer.page(request, "confirm.html", **values)


def not_found(request: Request, text: str = "There is no such page.") -> Response:
    """A page that says that something is not there."""
    return said(request, text, HTTPStatus.NOT_FOUND)


async def on_not_found(request: Request, error: Exception) -> Response:
    """There is no such address."""
    if request.scope.get("state", {}).get("session") is None:
        return PlainTextResponse("There is no such page.\n", HTTPStatus.NOT_FOUND)
    return not_found(request)


async def on_error(request: Request, error: Exception) -> Response:
    """The broker, the history or the audit log failed."""
    text = str(error) if isinstance(error, MatadorError) else "This took too long."
    if request.scope.get("state", {}).get("session") is None:
        return PlainTextResponse("This failed.\n", HTTPStatus.SERVICE_UNAVAILABLE)
    return said(request, text, HTTPStatus.SERVICE_UNAVAILABLE)
