"""The columns of a message, and record batches with them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pyspark.sql.types import StructField, StructType

from matador.errors import ConfigurationError
from matador.model.options import suggestion
from matador.spark.runtime.arrow import RecordBatch, pa, struct_type
from matador.spark.runtime.arrow import Schema as ArrowSchema

_INSTANT = pa.timestamp("us", tz="UTC")
_TEXT = pa.string()

COLUMNS: dict[str, Any] = {
    "position": _TEXT,
    "id": _TEXT,
    "queue": _TEXT,
    "state": _TEXT,
    "stored_at": _INSTANT,
    "due_at": _INSTANT,
    "event_key": _TEXT,
    "subscriber": _TEXT,
    "attempts": pa.int32(),
    "created_at": _INSTANT,
    "scheduled_for": _INSTANT,
    "correlation_id": _TEXT,
    "importance": _TEXT,
    "metadata": pa.map_(_TEXT, _TEXT),
    "first_error": _TEXT,
    "last_error": _TEXT,
    "reason": _TEXT,
    "delivery_count": pa.int32(),
    "priority": pa.int32(),
    "ordering_key": _TEXT,
    "data_json": _TEXT,
    "before_json": _TEXT,
    "raw": pa.binary(),
    "decode_error": _TEXT,
}
"""Every column of a message except ``data``. All may be null: undecodable bytes have few."""

DATA = "data"

Column = Callable[[], Sequence[Any]]
"""Makes the values of a column when they are needed."""


def full_schema(data: StructType | None) -> StructType:
    """All columns, with the typed ``data`` if there is one."""
    columns = struct_type(pa.schema(list(COLUMNS.items())))
    return columns if data is None else columns.add(StructField(DATA, data))


def check_chosen(chosen: StructType, full: StructType) -> None:
    """Check the columns that a query wants.

    Raises:
        ConfigurationError: a column is unknown, or of another type.
    """
    known = {field.name: field.dataType for field in full}
    for field in chosen:
        if field.name not in known:
            hint = suggestion(field.name, known)
            if field.name == DATA:
                hint = "; it needs an event: option('event', 'order.placed')"
            raise ConfigurationError(f"matador: unknown column {field.name!r}{hint}")
        if field.dataType != known[field.name]:
            raise ConfigurationError(
                f"matador: column {field.name!r} is {known[field.name].simpleString()}, "
                f"not {field.dataType.simpleString()}"
            )


def batch_of(columns: Mapping[str, Column], schema: ArrowSchema, length: int) -> RecordBatch:
    """A record batch with the columns of a schema; missing ones are null."""
    arrays: list[Any] = []
    for field in schema:
        make = columns.get(field.name)
        if make is None:
            arrays.append(pa.nulls(length, field.type))
            continue
        values = make()
        arrays.append(values if isinstance(values, pa.Array) else pa.array(values, field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def default_parts() -> int:
    """The default number of partitions: the processors of this machine."""
    return max(2, os.cpu_count() or 2)
