"""What is read: which transport, queue, codec and event the options mean. No connection is made."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

from pyspark.sql.types import StructType

from matador.codec.base import Codec
from matador.codec.headers import HeaderCodec
from matador.codec.json import JsonCodec
from matador.errors import ConfigurationError, ConnectionFailedError
from matador.events.app import Matador
from matador.events.loading import load_application
from matador.model.event import EventType, event_type_of
from matador.model.topology import DEAD_LETTER_KINDS, Topology, dead_letter_name
from matador.spark.source.columns import arrow_schema
from matador.spark.source.options import ReadOptions
from matador.spark.source.rows import Shape
from matador.spark.source.typed import TypedColumn
from matador.spark.types import struct_of
from matador.transports.base import Transport
from matador.transports.sqlite import SqliteTransport
from matador.transports.urls import transport_from_url


@dataclass(frozen=True, slots=True)
class Subject:
    """A queue to be read. Made where it is needed: a transport does not travel."""

    transport: Transport
    queue: str
    codec: Codec


def subject_of(options: ReadOptions) -> Subject:
    """The queue that is meant.

    Raises:
        ConfigurationError: the URL or the application is none.
        ConnectionFailedError: there is no such database file.
        UnsupportedError: a broker that lives in another process.
    """
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
            f"matador: {transport.name} lives in one process and cannot be read from another; "
            f"use a durable broker, or the journal: option('journal', folder)"
        )
    if isinstance(transport, SqliteTransport) and not transport.path.exists():
        # Connecting would make it.
        raise ConnectionFailedError(f"there is no database {transport.path}")
    return Subject(transport, queue, _codec(app, transport))


def event_of(options: ReadOptions) -> EventType | None:
    """The event that was named, or None.

    Raises:
        ConfigurationError: it cannot be found.
        EventNotRegisteredError: the schema of the application has no such event.
    """
    if options.event is None:
        return None
    module, colon, name = options.event.partition(":")
    if colon:
        return _imported(module, name)
    if options.app is None:
        raise ConfigurationError(
            f"matador: where is event {options.event!r} declared? give option('app', "
            f"'module:attribute'), or the event itself as 'module:Class'"
        )
    return load_application(options.app).app.schema.event(options.event)


def struct_of_event(event: EventType | None) -> StructType | None:
    """The columns of the payload of the event that was named."""
    return None if event is None else struct_of(event)


def shape_of(event: EventType | None, chosen: StructType) -> Shape:
    """What the batches of a read look like."""
    if event is None:
        return Shape(arrow_schema(chosen))
    return Shape(arrow_schema(chosen), frozenset(event.keys), TypedColumn(struct_of(event)))


def _full_name(topology: Topology, queue: str) -> str:
    if topology.has_queue(queue):
        return topology.full_name(queue)
    for kind in DEAD_LETTER_KINDS:
        home = queue.removesuffix(f".{kind}")
        if home != queue and topology.has_queue(home):
            return dead_letter_name(topology.full_name(home), kind)
    return queue


def _codec(app: Matador | None, transport: Transport) -> Codec:
    if app is not None:
        return app.codec
    return HeaderCodec() if transport.capabilities.docket_in_headers else JsonCodec()


def _imported(module: str, name: str) -> EventType:
    try:
        found: Any = importlib.import_module(module)
        for step in name.split("."):
            found = getattr(found, step)
    except (ImportError, AttributeError) as error:
        raise ConfigurationError(
            f"matador: event {module}:{name} cannot be found: {error}"
        ) from error
    return event_type_of(found)
