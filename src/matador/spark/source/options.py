"""The options of the data source, and the queue, codec and event they name. No connections.

URLs may hold passwords, so they are never part of an error.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

import pyspark

from matador.codec.base import Codec
from matador.codec.headers import HeaderCodec
from matador.codec.json import JsonCodec
from matador.errors import ConfigurationError, ConnectionFailedError
from matador.loading import load_application
from matador.model.event import EventType, event_type_of
from matador.model.options import suggestion
from matador.model.topology import DEAD_LETTER_KINDS, Topology, dead_letter_name
from matador.spark.runtime.compat import HAS_READ_LIMITS
from matador.transports.base import LocalStorage, Transport
from matador.transports.urls import transport_from_url

# Options that Spark itself passes to every source or sink.
_SPARKS = {"checkpointlocation", "queryname"}
_NUMBERS = ("partitions", "max_rows", "max_files", "max_bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """What to read: a ``journal``, or a queue of ``url`` or ``app``.

    ``queue`` is a full name, or a short one with ``namespace`` or ``app``. ``event`` is the only
    event to read, by key (with ``app``) or as ``module:Class``. ``max_…`` limit a micro-batch of a
    stream. ``missing`` is for logs such as Kafka: ``fail`` or ``skip`` if messages were deleted
    before the stream has read them.
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
    missing: str = "fail"

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
        _exclude(
            options, "journal", ("url", "queue", "namespace", "partitions", "max_rows", "missing")
        )
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
    if options.get("missing", "fail") not in ("fail", "skip"):
        raise ConfigurationError(
            f"matador: missing must be 'fail' or 'skip', got {options['missing']!r}"
        )
    return ReadOptions(**options)


def check_limits(given: Mapping[str, str]) -> None:
    """Raise ``ConfigurationError`` if a limit of micro-batches is set that Spark does not keep."""
    limits = sorted({name.lower() for name in given} & {"max_rows", "max_files", "max_bytes"})
    if limits and not HAS_READ_LIMITS:
        raise ConfigurationError(
            f"matador: option {limits[0]!r} needs Spark 4.2 or newer; this is {pyspark.__version__}"
            ", where a micro-batch has all that is there"
        )


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


@dataclass(frozen=True, slots=True)
class Subject:
    """A queue to read. Made in each process: transports cannot be pickled."""

    transport: Transport
    queue: str
    codec: Codec


def subject_of(options: ReadOptions) -> Subject:
    """The queue that the options name."""
    assert options.queue is not None
    app = None if options.app is None else load_application(options.app).app
    queue = options.queue
    if options.namespace is not None:
        queue = f"{options.namespace}.{queue}"
    elif app is not None:
        queue = _full_name(app.topology, queue)
    if options.url is not None:
        transport = transport_from_url(options.url)
    else:
        assert app is not None
        transport = app.producer().transport
    if transport.capabilities.in_process:
        raise ConfigurationError(
            f"matador: {transport.name} exists in one process and cannot be read from another; "
            f"use a durable broker, or the journal: option('journal', folder)"
        )
    if isinstance(transport, LocalStorage) and transport.missing_storage is not None:
        # Connecting would create it.
        raise ConnectionFailedError(f"{transport.missing_storage} does not exist")
    if app is not None:
        return Subject(transport, queue, app.codec)
    headers = transport.capabilities.docket_in_headers
    return Subject(transport, queue, HeaderCodec() if headers else JsonCodec())


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


def _full_name(topology: Topology, queue: str) -> str:
    if topology.has_queue(queue):
        return topology.full_name(queue)
    for kind in DEAD_LETTER_KINDS:
        home = queue.removesuffix(f".{kind}")
        if home != queue and topology.has_queue(home):
            return dead_letter_name(topology.full_name(home), kind)
    return queue


def _imported(module: str, name: str) -> EventType:
    try:
        found: Any = importlib.import_module(module)
        for step in name.split("."):
            found = getattr(found, step)
    except (ImportError, AttributeError) as error:
        raise ConfigurationError(f"matador: cannot find event {module}:{name}: {error}") from error
    return event_type_of(found)
