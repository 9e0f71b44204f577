"""Payloads as typed columns: plain JSON values converted to a Spark type.

The same rules as ``from_json``: what does not fit is null, what has no single shape is JSON text.
Runs in Python because a data source has to return finished columns, and ``from_json`` knows no
defaults.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, date, datetime
from decimal import Context, Decimal, InvalidOperation
from functools import partial
from typing import Any, TypeAlias

import msgspec
from pyspark.sql import Column, DataFrame, types
from pyspark.sql import functions as sql

from matador.model.event import EventType
from matador.spark.runtime.arrow import Array, pa
from matador.spark.runtime.compat import column_function
from matador.spark.runtime.payload_types import DEFAULT, JSON_OPTIONS, struct_of

Fit: TypeAlias = Callable[[Any], Any]

# Untyped, so that the type checker keeps the content of JSON values as Any.
_OBJECT: Any = dict
_LIST: Any = list

_LEAST, _MOST = -(2**63), 2**63 - 1
_WIDE = Context(prec=76)  # a decimal column has 38 digits; nothing may be rounded before

_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


def with_payload(rows: DataFrame, event: EventType, *, unfit: bool = False) -> DataFrame:
    """Rows of the ``events`` table with the payload as a struct: ``data``, and ``before``.

    A field that is missing has the default of its class, as subscribers see it. With ``unfit``, a
    column of that name lists the fields that are null because their value does not fit; those of
    ``before`` as ``before.amount``.
    """
    struct = struct_of(event)
    filled = struct_of(event, defaults=True)

    def column(json: str) -> Column:
        if filled == struct:  # without defaults the JVM can do it alone
            return sql.from_json(json, struct, JSON_OPTIONS)
        return column_function(lambda: TypedColumn(filled).value, struct)(json)

    found = {"data": column("data_json"), "before": column("before_json")}
    if unfit:  # costs nothing unless it is used
        names = types.ArrayType(types.StringType())
        misfits = column_function(lambda: Misfits(filled).of_both, names, columns=2)
        found["unfit"] = misfits("data_json", "before_json")
    return rows.withColumns(found)


class TypedColumn:
    """Makes a typed column out of JSON texts, for ``struct_of(event, defaults=True)``."""

    def __init__(self, struct: types.StructType) -> None:
        self._fit = _fit(struct)

    def make(self, payloads: Sequence[bytes | str | None], kind: Any) -> Array:
        """The payloads as an Arrow array of the type ``kind``."""
        return pa.array([self.value(payload) for payload in payloads], kind)

    def value(self, payload: bytes | str | None) -> Any:
        """The payload as a value for Arrow; None if it is not readable."""
        if payload is None:
            return None
        try:
            return self._fit(_decode(payload))
        except (msgspec.DecodeError, RecursionError):
            return None


class Misfits:
    """Finds the values of a payload that its columns cannot hold, and that are null there."""

    def __init__(self, struct: types.StructType) -> None:
        self._struct = struct

    def column(
        self, data: Sequence[bytes | str | None], before: Sequence[bytes | str | None]
    ) -> Array:
        """The names for each row, as an Arrow array: of the payload, and of the one before."""
        names = [self.of_both(*both) for both in zip(data, before, strict=True)]
        return pa.array(names, pa.list_(pa.string()))

    def of_both(self, payload: bytes | str | None, before: bytes | str | None) -> list[str]:
        """The names for the payload, and for the one before."""
        return [*self.of(payload), *map(_of_before, self.of(before))]

    def of(self, payload: bytes | str | None) -> list[str]:
        """The names of the fields, such as ``lines[].quantity``; usually none.

        ``data`` is the whole payload.
        """
        if payload is None:
            return []
        try:
            return [*dict.fromkeys(_misfits(self._struct, _decode(payload), ""))]
        except (msgspec.DecodeError, RecursionError):
            return ["data"]


def _of_before(name: str) -> str:
    return "before" if name == "data" else f"before.{name}"


def _misfits(kind: types.DataType, value: Any, path: str) -> Iterator[str]:
    if value is None:
        return
    if isinstance(kind, types.StructType) and isinstance(value, _OBJECT):
        for one in kind:
            yield from _misfits(one.dataType, value.get(one.name), f"{path}.{one.name}".lstrip("."))
    elif isinstance(kind, types.ArrayType) and isinstance(value, _LIST):
        for item in value:
            yield from _misfits(kind.elementType, item, f"{path}[]")
    elif isinstance(kind, types.MapType) and isinstance(value, _OBJECT):
        for item in value.values():
            yield from _misfits(kind.valueType, item, f"{path}[]")
    elif _fit(kind)(value) is None:
        yield path or "data"


def _fit(kind: types.DataType) -> Fit:
    """A function that converts a JSON value to a type; what does not fit becomes None."""
    if isinstance(kind, types.StructType):
        makers = [(one.name, _fit(one.dataType), one.metadata.get(DEFAULT)) for one in kind]
        fields = [(name, fit, fit(default)) for name, fit, default in makers]
        return lambda value: (
            {name: fit(value[name]) if name in value else default for name, fit, default in fields}
            if isinstance(value, _OBJECT)
            else None
        )
    if isinstance(kind, types.ArrayType):
        item = _fit(kind.elementType)
        return lambda value: [item(one) for one in value] if isinstance(value, _LIST) else None
    if isinstance(kind, types.MapType):
        item = _fit(kind.valueType)
        return lambda value: (
            [(key, item(one)) for key, one in value.items()] if isinstance(value, _OBJECT) else None
        )
    if isinstance(kind, types.DecimalType):
        return _checked(_decimal(kind), str, int, float)
    return _SIMPLE.get(type(kind), _text)


def _checked(convert: Fit, *kinds: type[Any]) -> Fit:
    """A conversion of values of these types only; bool is not int."""

    def fit(value: Any) -> Any:
        if type(value) not in kinds:
            return None
        try:
            return convert(value)
        except (ValueError, OverflowError, InvalidOperation):
            return None

    return fit


def _decimal(kind: types.DecimalType) -> Fit:
    unit = Decimal(1).scaleb(-kind.scale)
    limit = Decimal(10) ** (kind.precision - kind.scale)

    def convert(value: Any) -> Any:
        number = Decimal(str(value))
        return number.quantize(unit, context=_WIDE) if abs(number) < limit else None

    return convert


def _text(value: Any) -> Any:
    return value if value is None or isinstance(value, str) else _encode(value).decode()


def _timestamp(value: str) -> datetime:
    moment = datetime.fromisoformat(value)
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment


_SIMPLE: dict[type[types.DataType], Fit] = {
    types.BooleanType: _checked(bool, bool),
    types.LongType: _checked(lambda value: value if _LEAST <= value <= _MOST else None, int),
    types.DoubleType: _checked(float, int, float),
    types.BinaryType: _checked(partial(base64.b64decode, validate=True), str),
    types.TimestampType: _checked(_timestamp, str),
    types.DateType: _checked(date.fromisoformat, str),
}
