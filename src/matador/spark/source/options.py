"""The options of the data source. URLs may hold passwords, so they are never part of an error."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from matador.errors import ConfigurationError
from matador.loading import load_application
from matador.model.event import EventType, event_type_of
from matador.model.options import suggestion

# Options that Spark itself passes to every source or sink.
_SPARKS = {"checkpointlocation", "queryname"}
_NUMBERS = ("partitions", "max_rows", "max_files", "max_bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """What to read: a ``journal``, or a queue of ``url`` or ``app``.

    ``queue`` is a full name, or a short one with ``namespace`` or ``app``. ``event`` is the only
    event to read, by key (with ``app``) or as ``module:Class``. ``max_…`` limit a micro-batch of a
    stream.
    """

    url: str | None = None
    queue: str | None = None
    namespace: str | None = None
    journal: str | None = None
    app: str | None = None
    event: str | None = None
    partitions: int | None = None
    max_rows: int = 10_000
    max_files: int | None = None
    max_bytes: int | None = None

    def __repr__(self) -> str:
        # Spark may show a reader in a plan or in an error.
        where = f"journal={self.journal!r}" if self.journal else f"queue={self.queue!r}"
        return f"ReadOptions({where}, event={self.event!r})"


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """What to publish, and with which application; ``event`` unless there is an ``event_key``.

    A second write of the same ``write_id`` publishes nothing twice.
    """

    app: str
    event: str | None = None
    write_id: str | None = None


def read_options(given: Mapping[str, str]) -> ReadOptions:
    """The options of a read, checked."""
    options = _known(given, ReadOptions)
    if "journal" in options:
        _exclude(options, "journal", ("url", "queue", "namespace", "partitions", "max_rows"))
    elif "queue" not in options:
        raise ConfigurationError(
            "matador: nothing to read; set option('journal', folder), or option('url', …) and "
            "option('queue', …)"
        )
    elif "url" not in options and "app" not in options:
        raise ConfigurationError(
            "matador: no broker; set option('url', 'sqlite:///shop.db'), or option('app', …)"
        )
    else:
        _exclude(options, "queue", ("max_files", "max_bytes"))
    for name in _NUMBERS:
        if name in options:
            options[name] = _number(name, options[name])
    return ReadOptions(**options)


def write_options(given: Mapping[str, str]) -> WriteOptions:
    """The options of a write, checked."""
    options = _known(given, WriteOptions)
    if "app" not in options:
        raise ConfigurationError(
            "matador: no application, whose schema names the receivers; set option('app', "
            "'module:attribute')"
        )
    return WriteOptions(**options)


def _known(given: Mapping[str, str], kind: type[Any]) -> dict[str, Any]:
    known = [field.name for field in fields(kind)]
    options: dict[str, Any] = {}
    for name, value in given.items():
        if name.lower() in known:
            options[name.lower()] = value
        elif name.lower() == "path":
            raise ConfigurationError(
                "matador: load() and save() take no path; "
                "set option('journal', folder), or option('url', …) and option('queue', …)"
            )
        elif name.lower() not in _SPARKS:
            raise ConfigurationError(
                f"matador: unknown option {name!r}{suggestion(name.lower(), known)} "
                f"(known: {', '.join(known)})"
            )
    return options


def _exclude(options: Mapping[str, str], with_: str, names: Iterable[str]) -> None:
    for name in names:
        if name in options:
            raise ConfigurationError(f"matador: option {name!r} cannot be combined with {with_!r}")


def _number(name: str, value: str) -> int:
    if not value.isdecimal() or int(value) < 1:
        raise ConfigurationError(f"matador: {name} must be a positive whole number, got {value!r}")
    return int(value)


def event_of(options: ReadOptions) -> EventType | None:
    """The event that the options name, or None."""
    if options.event is None:
        return None
    module, colon, name = options.event.partition(":")
    if colon:
        return _imported(module, name)
    if options.app is None:
        raise ConfigurationError(
            f"matador: cannot find event {options.event!r}; set option('app', "
            f"'module:attribute'), or name its class: 'module:Class'"
        )
    return load_application(options.app).app.schema.event(options.event)


def _imported(module: str, name: str) -> EventType:
    try:
        found: Any = importlib.import_module(module)
        for step in name.split("."):
            found = getattr(found, step)
    except (ImportError, AttributeError) as error:
        raise ConfigurationError(f"matador: cannot find event {module}:{name}: {error}") from error
    return event_type_of(found)
