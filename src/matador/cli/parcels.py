"""Events to be sent, as people give them: a key and JSON, a file, or stdin."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from matador.cli.json_input import read_json, read_json_object
from matador.cli.output import UsageError
from matador.model.options import suggestion

_FIELDS = {
    "eventKey": "event_key",
    "event_key": "event_key",
    "data": "data",
    "before": "before",
    "options": "options",
}
_OPTIONS = {
    "delay": "delay",
    "delayMs": "delay_ms",
    "delay_ms": "delay_ms",
    "correlationId": "correlation_id",
    "correlation_id": "correlation_id",
    "metadata": "metadata",
    "priority": "priority",
    "orderingKey": "ordering_key",
    "ordering_key": "ordering_key",
}


@dataclass(frozen=True, slots=True)
class Parcel:
    """An event to be sent; ``options`` are keywords of ``Matador.send``."""

    key: str
    data: Any
    options: dict[str, Any]


def parcel_of(event: str, data: str | None, given: dict[str, Any]) -> Parcel:
    """What is to be sent, from the arguments of a command; its options win over a file's.

    Raises:
        UsageError: it cannot be read.
    """
    if data is not None:
        text, what = (_stdin(), "stdin") if data == "-" else (data, "the payload")
        return Parcel(event, read_json(text, what), given)
    if event == "-":
        parcel = read_parcel(read_json_object(_stdin(), "stdin"), "stdin")
    elif event.endswith(".json") or Path(event).is_file():
        parcel = read_parcel(read_json_object(_file(event), event), event)
    else:
        raise UsageError(
            f"the payload is missing: matador send APP {event} '{{…}}', or name a .json file"
        )
    return replace(parcel, options={**parcel.options, **given})


def read_parcel(document: dict[str, Any], what: str) -> Parcel:
    """An event from its document, as files and ``test_event`` have it.

    Raises:
        UsageError: something is missing, unknown or not what it must be.
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
    return Parcel(key, fields["data"], options)


def _known(given: dict[str, Any], names: dict[str, str], what: str) -> dict[str, Any]:
    for name in given:
        if name not in names:
            raise UsageError(f"{what}: unknown field {name!r}{suggestion(str(name), names)}")
    return {names[name]: value for name, value in given.items()}


def _stdin() -> str:
    try:
        return sys.stdin.buffer.read().decode()
    except UnicodeDecodeError as error:
        raise UsageError(f"stdin is not UTF-8: {error}") from None


def _file(name: str) -> str:
    try:
        return Path(name).read_text("utf-8")
    except FileNotFoundError:
        raise UsageError(f"the file {name} does not exist") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"the file {name} cannot be read: {error}") from None
