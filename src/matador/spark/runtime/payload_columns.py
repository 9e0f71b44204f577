"""Payloads as typed columns: plain JSON values converted to a Spark type.

The same rules as ``from_json``: what does not fit is null, what has no single shape is JSON text.
Runs in Python because a data source has to return finished columns, and ``from_json`` knows no
defaults.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime
from decimal import Context, Decimal, InvalidOperation
from typing import Any, TypeAlias, cast

import msgspec
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sql
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    LongType,
    MapType,
    StructType,
    TimestampType,
)

from matador.model.event import EventType
from matador.spark.runtime.arrow import Array, arrow_schema, pa
from matador.spark.runtime.payload_types import DEFAULT, JSON_OPTIONS, struct_of

Fit: TypeAlias = Callable[[Any], Any]

_LEAST, _MOST = -(2**63), 2**63 - 1
_WIDE = Context(prec=76)  # a decimal column has 38 digits; nothing may be rounded before

_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


def with_payload(rows: DataFrame, event: EventType) -> DataFrame:
    """Rows of the ``events`` table with the payload as a struct: ``data``, and ``before``.

    A field that is missing has the default of its class, as subscribers see it.
    """
    struct = struct_of(event)
    filled = struct_of(event, defaults=True)

    def decode(json: Array) -> Array:
        kind = arrow_schema(StructType().add("data", struct)).field(0).type
        return TypedColumn(filled).make(json.to_pylist(), kind)

    decode.__annotations__ = {"json": pa.Array, "return": pa.Array}  # Spark goes by these
    untyped: Any = sql

    def column(json: str) -> Column:
        if filled == struct:  # without defaults the JVM can do it alone
            return sql.from_json(json, struct, JSON_OPTIONS)
        return untyped.arrow_udf(decode, struct)(json)

    return rows.withColumns({"data": column("data_json"), "before": column("before_json")})


class TypedColumn:
    """Makes the column ``data`` out of JSON texts; a missing field has its default.

    ``struct`` is made by ``struct_of(event, defaults=True)``.
    """

    def __init__(self, struct: StructType) -> None:
        self._fit = _fit(struct)

    def make(self, payloads: Sequence[bytes | str | None], kind: Any) -> Array:
        """The payloads as an Arrow array of the type ``kind``."""
        return pa.array([self._value(payload) for payload in payloads], kind)

    def _value(self, payload: bytes | str | None) -> Any:
        if payload is None:
            return None
        try:
            return self._fit(_decode(payload))
        except (msgspec.DecodeError, RecursionError):
            return None


def _fit(kind: DataType) -> Fit:
    """A function that converts a JSON value to a type."""
    if isinstance(kind, StructType):
        fields = [(one.name, _fit(one.dataType), one.metadata.get(DEFAULT)) for one in kind]
        return _struct([(name, fit, fit(default)) for name, fit, default in fields])
    if isinstance(kind, ArrayType):
        return _list(_fit(kind.elementType))
    if isinstance(kind, MapType):
        return _map(_fit(kind.valueType))
    if isinstance(kind, DecimalType):
        return _decimal(kind)
    return _SIMPLE.get(type(kind), _text)


def _struct(fields: list[tuple[str, Fit, Any]]) -> Fit:
    def fit(value: Any) -> Any:
        if not isinstance(value, dict):
            return None
        given = cast("dict[str, Any]", value)
        return {
            name: fit(given[name]) if name in given else default for name, fit, default in fields
        }

    return fit


def _list(item: Fit) -> Fit:
    def fit(value: Any) -> Any:
        return [item(one) for one in cast("list[Any]", value)] if isinstance(value, list) else None

    return fit


def _map(item: Fit) -> Fit:
    def fit(value: Any) -> Any:
        if not isinstance(value, dict):
            return None
        return [(key, item(one)) for key, one in cast("dict[str, Any]", value).items()]

    return fit


def _decimal(kind: DecimalType) -> Fit:
    unit = Decimal(1).scaleb(-kind.scale)
    limit = Decimal(10) ** (kind.precision - kind.scale)

    def fit(value: Any) -> Any:
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            return None
        try:
            number = Decimal(str(value))
            return number.quantize(unit, context=_WIDE) if abs(number) < limit else None
        except InvalidOperation:
            return None

    return fit


def _text(value: Any) -> Any:
    return value if value is None or isinstance(value, str) else _encode(value).decode()


def _bool(value: Any) -> Any:
    return value if isinstance(value, bool) else None


def _long(value: Any) -> Any:
    fits = isinstance(value, int) and not isinstance(value, bool) and _LEAST <= value <= _MOST
    return value if fits else None


def _double(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:
        return None


def _binary(value: Any) -> Any:
    try:
        return base64.b64decode(value, validate=True) if isinstance(value, str) else None
    except (binascii.Error, ValueError):
        return None


def _timestamp(value: Any) -> Any:
    try:
        moment = datetime.fromisoformat(value) if isinstance(value, str) else None
    except ValueError:
        return None
    return moment.replace(tzinfo=UTC) if moment and moment.tzinfo is None else moment


def _date(value: Any) -> Any:
    try:
        return date.fromisoformat(value) if isinstance(value, str) else None
    except ValueError:
        return None


_SIMPLE: dict[type[DataType], Fit] = {
    BooleanType: _bool,
    LongType: _long,
    DoubleType: _double,
    BinaryType: _binary,
    TimestampType: _timestamp,
    DateType: _date,
}
