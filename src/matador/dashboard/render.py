"""Renders templates. All text is escaped; invisible characters are made visible."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse

from matador.charts.markup import Html, element, printable
from matador.charts.svg import duration
from matador.dashboard.guard import session_of

FOLDER = Path(__file__).parent
_LONGEST_PAYLOAD = 256 * 1024
_UNITS = (("d", 86_400), ("h", 3600), ("min", 60), ("s", 1))


def _finalize(value: Any) -> Any:
    if isinstance(value, str) and not hasattr(value, "__html__"):
        return printable(value)
    return "" if value is None else value


def age(seconds: float | None) -> str:
    """A duration, such as ``5 min``."""
    if seconds is None:
        return "–"
    for unit, size in _UNITS:
        if seconds >= size:
            return f"{int(seconds // size)} {unit}"
    return "0 s"


def ago(moment: float | None) -> str:
    """The time since a moment, such as ``5 min ago``."""
    return "–" if moment is None else f"{age(max(0.0, time.time() - moment))} ago"


def when(moment: float | datetime | None) -> Html | str:
    """A time, in the time zone of this machine, which it names."""
    if moment is None:
        return "–"
    try:
        given = moment if isinstance(moment, datetime) else datetime.fromtimestamp(moment, UTC)
        local = given.astimezone()
    except (OverflowError, ValueError, OSError):
        return "–"  # a record may hold any number
    shown = f"{local:%Y-%m-%d %H:%M:%S} {local.tzname()}"
    return element("time", shown, datetime=local.isoformat(timespec="seconds"))


def plural(number: int, noun: str) -> str:
    """A number with its noun."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def query(values: dict[str, str]) -> str:
    """The query of an address. A half of a character cannot be in one: it becomes a ``?``."""
    return urlencode(values, errors="replace")


def short(name: str | None) -> str | None:
    """The name of a type without its module."""
    return name and name.rpartition(".")[2]


def pretty(value: Any) -> str:
    """A value as indented JSON, cut if it is very long."""
    try:
        text = json.dumps(value, indent=2, ensure_ascii=False, default=str)
    except (ValueError, TypeError, RecursionError) as error:
        return f"(cannot be shown: {error})"
    if len(text) > _LONGEST_PAYLOAD:
        return text[:_LONGEST_PAYLOAD] + f"\n… {len(text) - _LONGEST_PAYLOAD:,} more characters"
    return text


class Renderer:
    """The templates of the dashboard."""

    def __init__(self, title: str, *, needs_login: bool) -> None:
        self._environment = Environment(
            loader=FileSystemLoader(FOLDER / "templates"),
            autoescape=True,
            undefined=StrictUndefined,
            finalize=_finalize,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        known: dict[str, Any] = {
            "title": title,
            "needs_login": needs_login,
            "age": age,
            "ago": ago,
            "when": when,
            "plural": plural,
            "pretty": pretty,
            "short": short,
            "duration": duration,
        }
        self._environment.globals.update(known)
        self._environment.filters["urlencode"] = query

    def text(self, template: str, **values: Any) -> str:
        """A rendered template."""
        return self._environment.get_template(template).render(**values)

    def page(
        self, request: Request, template: str, code: int = HTTPStatus.OK, /, **values: Any
    ) -> HTMLResponse:
        """A complete page for a logged-in user."""
        session = session_of(request)
        return HTMLResponse(
            self.text(
                template,
                path=request.url.path,
                csrf=session.csrf,
                role=session.role,
                user=session.name,
                operator=session.role == "operator",
                **values,
            ),
            code,
        )
