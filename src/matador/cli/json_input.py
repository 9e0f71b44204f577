"""Reads JSON that people type: errors point at the place, and no key may be there twice."""

from __future__ import annotations

import json
from typing import Any, NoReturn

from matador.cli.output import UsageError

_AROUND = 40


def read_json(text: str, what: str) -> Any:
    """The value of a JSON text.

    Raises:
        UsageError: not JSON, with the place; or a key that one object has twice.
    """
    try:
        return json.loads(text, object_pairs_hook=_object, parse_constant=_refuse)
    except json.JSONDecodeError as error:
        raise UsageError(f"{what} is not JSON: {error.msg}, {_pointed(error)}") from None
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
            raise ValueError(f"the key {key!r} is there twice in one object")
        made[key] = value
    return made


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def _pointed(error: json.JSONDecodeError) -> str:
    """Where it is, and a picture of it."""
    line = error.doc.splitlines()[error.lineno - 1] if error.doc.strip() else ""
    at = error.colno - 1
    start = max(0, at - _AROUND)
    shown = line[start : at + _AROUND]
    place = f"line {error.lineno}, column {error.colno}"
    return f"{place}\n  {shown}\n  {' ' * (at - start)}^" if shown else place
