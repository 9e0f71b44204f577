"""Reads the events that people type: a key and JSON, a file, or stdin.

JSON errors point at the place, and duplicate keys are refused.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, NoReturn, cast

import typer

from matador.cli.completion import names_of
from matador.cli.output import UsageError
from matador.model.options import suggestion

_AROUND = 40
_FIELDS = ("event_key", "data", "before", "options")
_OPTIONS = ("delay", "delay_ms", "correlation_id", "metadata", "priority", "ordering_key")


@dataclass(frozen=True, slots=True)
class EventInput:
    """An event to send; ``options`` are keyword arguments of ``Matador.send``."""

    key: str
    data: Any
    options: dict[str, Any]


EventArgument = Annotated[
    str,
    typer.Argument(
        metavar="EVENT",
        help="The event's key; or a .json file with the whole event (- for stdin).",
        show_default=False,
        autocompletion=names_of("events"),
    ),
]
PayloadArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="JSON",
        help="The payload as JSON, or a file with it (- for stdin).",
        show_default=False,
    ),
]


def event_input(
    event: str, data: str | None, given: dict[str, Any], command: str = "send"
) -> EventInput:
    """The event to send, from the arguments of a command. ``given`` options override a file's.

    Raises:
        UsageError: it cannot be read.
    """
    if data is not None:
        if data.endswith(".json"):
            return EventInput(event, read_json(_file(data), data), given)
        return EventInput(event, read_data(data, "the payload"), given)
    if event == "-":
        given_event = read_event(read_json_object(_stdin(), "stdin"), "stdin")
    elif event.endswith(".json") or Path(event).is_file():
        given_event = read_event(read_json_object(_file(event), event), event)
    else:
        raise UsageError(
            f"the payload is missing: write matador {command} APP {event} '{{…}}', or give a .json "
            f"file"
        )
    return replace(given_event, options={**given_event.options, **given})


def read_event(document: dict[str, Any], what: str) -> EventInput:
    """An event as it is written in files and in ``test_event``.

    Raises:
        UsageError: a field is missing, unknown or of the wrong type.
    """
    fields = _known(document, _FIELDS, what)
    key = fields.get("event_key")
    if not isinstance(key, str) or "data" not in fields:
        raise UsageError(f'{what} must have "event_key" (a string) and "data"')
    given: Any = fields.get("options") or {}
    if not isinstance(given, dict):
        raise UsageError(f'{what}: "options" must be an object')
    options = _known(cast("dict[str, Any]", given), _OPTIONS, f"{what}: options")
    delay_ms = options.pop("delay_ms", None)
    if isinstance(delay_ms, int | float):
        options.setdefault("delay", delay_ms / 1000)
    if fields.get("before") is not None:
        options["before"] = fields["before"]
    return EventInput(key, fields["data"], options)


def _known(given: dict[str, Any], names: Sequence[str], what: str) -> dict[str, Any]:
    """The fields under their names; the names of other languages (``eventKey``) are accepted."""
    made: dict[str, Any] = {}
    for field, value in given.items():
        name = re.sub("([A-Z])", r"_\1", str(field)).lower()
        if name not in names:
            raise UsageError(f"{what}: unknown field {field!r}{suggestion(name, names)}")
        made[name] = value
    return made


def _stdin() -> str:
    try:
        return sys.stdin.buffer.read().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"stdin is not UTF-8: {error}") from None


def _file(name: str) -> str:
    try:
        return Path(name).read_text("utf-8-sig")  # some editors begin a file with a BOM
    except FileNotFoundError:
        raise UsageError(f"the file {name} does not exist") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"the file {name} cannot be read: {error}") from None


# -- JSON -----------------------------------------------------------------------------------------


def read_data(given: str, what: str) -> Any:
    """The value of an argument that is JSON, or ``-`` for JSON on stdin.

    Raises:
        UsageError: see ``read_json``.
    """
    return read_json(_stdin(), "stdin") if given == "-" else read_json(given, what)


def read_json(text: str, what: str) -> Any:
    """The value of a JSON text.

    Raises:
        UsageError: invalid JSON, with the place; or a duplicate key.
    """
    try:
        return json.loads(text, object_pairs_hook=_object, parse_constant=_refuse)
    except json.JSONDecodeError as error:
        raise UsageError(f"{what} is not valid JSON: {error.msg}, {_pointed(error)}") from None
    except RecursionError:
        raise UsageError(f"{what} is nested too deeply") from None
    except ValueError as error:
        raise UsageError(f"{what}: {error}") from None


def read_json_object(text: str, what: str) -> dict[str, Any]:
    """The JSON object of a text.

    Raises:
        UsageError: see ``read_json``; or not an object.
    """
    value = read_json(text, what)
    if not isinstance(value, dict):
        raise UsageError(f'{what} must be a JSON object: {{"field": value}}')
    return value  # pyright: ignore[reportUnknownVariableType] - of Any


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for key, value in pairs:
        if key in made:
            raise ValueError(f"duplicate key {key!r}")
        made[key] = value
    return made


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not valid JSON")


def _pointed(error: json.JSONDecodeError) -> str:
    """The place of the error, with the line and a marker."""
    line = error.doc.splitlines()[error.lineno - 1] if error.doc.strip() else ""
    at = error.colno - 1
    start = max(0, at - _AROUND)
    shown = line[start : at + _AROUND]
    place = f"line {error.lineno}, column {error.colno}"
    return f"{place}\n  {shown}\n  {' ' * (at - start)}^" if shown else place
