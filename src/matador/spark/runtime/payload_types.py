"""Payload types as Spark types: the columns of an event are derived from its class.

msgspec describes dataclasses, structs, attrs classes and TypedDicts; pydantic models describe
themselves, without importing pydantic here. The names are those on the wire. Every column may
be null: an event that was recorded before a field was added lacks it.

What JSON writes as text stays text (UUID, time, timedelta). What has no single shape is kept as
JSON in a string column: ``Any``, unions of different types, elements of a tuple of different types,
and recursive types. Strings in such a column have no quotes, as ``from_json`` leaves them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Union, cast, get_args, get_origin

import msgspec
from msgspec import NODEFAULT, inspect
from pyspark.sql import types

from matador.codec.as_json import as_json
from matador.errors import InvalidEventError
from matador.model.event import EventType

JSON_OPTIONS: Final = {"timeZone": "UTC"}
"""Options for ``from_json``: a time without a zone is UTC, whatever the session's time zone."""

DEFAULT: Final = "default"
"""The key of a field's default in the metadata of its column."""

_TEXT: Final = types.StringType()

_SIMPLE: Final[dict[type[inspect.Type], types.DataType]] = {
    inspect.BoolType: types.BooleanType(),
    inspect.IntType: types.LongType(),
    inspect.FloatType: types.DoubleType(),
    inspect.StrType: _TEXT,
    inspect.BytesType: types.BinaryType(),
    inspect.ByteArrayType: types.BinaryType(),
    inspect.MemoryViewType: types.BinaryType(),
    inspect.DateTimeType: types.TimestampType(),
    inspect.DateType: types.DateType(),
    inspect.DecimalType: types.DecimalType(38, 18),
}

# Pydantic classes that stand for a time in annotations but are not one.
_PYDANTIC_TIMES: Final[dict[str, types.DataType]] = {
    "AwareDatetime": types.TimestampType(),
    "NaiveDatetime": types.TimestampType(),
    "PastDatetime": types.TimestampType(),
    "FutureDatetime": types.TimestampType(),
    "PastDate": types.DateType(),
    "FutureDate": types.DateType(),
}

_SEQUENCES = (
    inspect.ListType,
    inspect.SetType,
    inspect.FrozenSetType,
    inspect.VarTupleType,
    inspect.CollectionType,
)


def struct_of(event: EventType | type[Any], *, defaults: bool = False) -> types.StructType:
    """The columns of an event's payload, for ``from_json(data_json, struct, JSON_OPTIONS)``.

    With ``defaults``, fields that have a default carry it in their metadata, as plain data, under
    ``DEFAULT``; one that differs from call to call (a time, a new id) is left out.

    Raises:
        InvalidEventError: the payload is not a JSON object, or its type cannot be inspected.
    """
    payload = event.payload if isinstance(event, EventType) else event
    try:
        found = _Reader(hasattr(payload, "__pydantic_validator__"), defaults).annotation(payload)
    except (TypeError, NameError) as error:
        raise InvalidEventError(f"{payload.__name__} has no columns: {error}") from error
    if not isinstance(found, types.StructType):
        raise InvalidEventError(
            f"{payload.__name__} is not encoded as a JSON object, so it has no columns; "
            "use the column data_json instead"
        )
    return found


class _Reader:
    """Inspects one payload type; keeps track of the classes it is inside of."""

    def __init__(self, pydantic: bool, defaults: bool) -> None:
        # pydantic writes bytes as text, msgspec as base64.
        self._bytes: types.DataType = _TEXT if pydantic else types.BinaryType()
        self._defaults = defaults
        self._inside: list[object] = []

    def annotation(self, annotation: object) -> types.DataType:
        """The Spark type of a class or of the annotation of a field."""
        if hasattr(annotation, "__pydantic_fields__"):
            return self._model(cast("type[Any]", annotation))
        return self._type(inspect.type_info(annotation))

    def _loosely(self, annotation: Any) -> types.DataType:
        """The same for a field of a pydantic model, of any type that pydantic knows."""
        origin, args = get_origin(annotation), get_args(annotation)
        if origin is Annotated:
            return self._loosely(args[0])
        if origin in (Union, UnionType):
            return _union([self._loosely(one) for one in args if one is not NoneType])
        if isinstance(origin, type) and issubclass(origin, Mapping) and len(args) == 2:
            return types.MapType(_TEXT, self._loosely(args[1]))
        if isinstance(origin, type) and issubclass(origin, Iterable):
            if len(args) == 1 or args[1:] == (...,):
                return types.ArrayType(self._loosely(args[0]))
            return types.ArrayType(_common([self._loosely(one) for one in args]))
        try:
            return self.annotation(annotation)
        except TypeError:  # a type that only pydantic knows
            return _TEXT

    def _type(self, node: inspect.Type) -> types.DataType:
        if isinstance(node, inspect.Metadata):
            return self._type(node.type)
        simple = _SIMPLE.get(type(node))
        if simple is not None:
            return self._bytes if isinstance(simple, types.BinaryType) else simple
        if isinstance(node, _SEQUENCES):
            return types.ArrayType(self._type(node.item_type))
        values: inspect.Type | None = getattr(node, "value_type", None)
        if values is not None:
            return types.MapType(_TEXT, self._type(values))  # the keys of JSON are strings
        if isinstance(node, inspect.UnionType):
            choices = [one for one in node.types if not isinstance(one, inspect.NoneType)]
            return _union([self._type(one) for one in choices])
        if isinstance(node, inspect.LiteralType):
            return _type_of_values(node.values)
        if isinstance(node, inspect.EnumType):
            return _type_of_values(one.value for one in node.cls)
        if isinstance(node, inspect.TupleType):
            return types.ArrayType(_common([self._type(one) for one in node.item_types]))
        return self._record(node)

    def _record(self, node: inspect.Type) -> types.DataType:
        cls = getattr(node, "cls", None)
        if hasattr(cls, "__pydantic_fields__"):
            return self._model(cast("type[Any]", cls))
        if isinstance(node, inspect.CustomType):
            return _PYDANTIC_TIMES.get(getattr(cls, "__name__", ""), _TEXT)
        fields: tuple[inspect.Field, ...] | None = getattr(node, "fields", None)
        if fields is None:  # Any, Raw, Ext, UUID, time, timedelta, None alone
            return _TEXT
        if cls in self._inside:
            return _TEXT
        self._inside.append(cls)
        columns = [
            self._column(one.encode_name, self._type(one.type), one.default, one.default_factory)
            for one in fields
        ]
        self._inside.pop()
        if isinstance(node, inspect.TypedDictType):  # msgspec sorts these by name
            declared = list(node.cls.__annotations__)
            columns.sort(key=lambda one: declared.index(one.name))
        if isinstance(node, inspect.NamedTupleType) or getattr(node, "array_like", False):
            return types.ArrayType(_common([one.dataType for one in columns]))
        if isinstance(node, inspect.StructType) and node.tag_field is not None:
            columns.insert(0, types.StructField(node.tag_field, _type_of_values([node.tag])))
        return self._struct(columns)

    def _model(self, model: type[Any]) -> types.DataType:
        if model in self._inside:
            return _TEXT
        self._inside.append(model)
        fields: dict[str, Any] = model.__pydantic_fields__
        columns: list[types.StructField] = []
        for name, info in fields.items():
            if info.exclude is not True:
                written = info.serialization_alias or info.alias or name
                # Read under another name than it is written, a field may only seem to be missing.
                known = (info.validation_alias or name) == written
                default = (info.default, info.default_factory) if known else (NODEFAULT, None)
                columns.append(self._column(written, self._loosely(info.annotation), *default))
        self._inside.pop()
        if getattr(model, "__pydantic_root_model__", False):
            return columns[0].dataType
        return self._struct(columns)

    def _column(
        self, name: str, kind: types.DataType, default: Any, factory: Any
    ) -> types.StructField:
        found = _plain_default(default, factory) if self._defaults else None
        return types.StructField(name, kind, metadata=None if found is None else {DEFAULT: found})

    def _struct(self, columns: list[types.StructField]) -> types.DataType:
        # Parquet cannot store a struct without fields.
        return types.StructType(columns) if columns or not self._inside else _TEXT


def _plain_default(default: Any, factory: Any) -> Any:
    """A default as plain data; None if there is none, or none that is the same every time."""
    try:
        made = [as_json(factory() if callable(factory) else default) for _ in range(2)]
    except Exception:  # noqa: BLE001 - a marker for "no default", or a factory that needs more
        return None
    return msgspec.json.decode(made[0]) if made[0] == made[1] else None


def _union(choices: list[types.DataType]) -> types.DataType:
    structs = [one for one in choices if isinstance(one, types.StructType)]
    if len(choices) > 1 and len(structs) == len(choices):
        return _merged(structs)
    return _common(choices)


def _type_of_values(values: Iterable[object]) -> types.DataType:
    known = (bool, types.BooleanType()), (int, types.LongType()), (float, types.DoubleType())
    return _common(
        [
            next((kind for python, kind in known if isinstance(value, python)), _TEXT)
            for value in values
            if value is not None
        ]
    )


def _common(choices: list[types.DataType]) -> types.DataType:
    """The type that holds all the choices unchanged, or text."""
    if choices and all(one == choices[0] for one in choices):
        return choices[0]
    if choices and all(isinstance(one, types.LongType | types.DoubleType) for one in choices):
        return types.DoubleType()
    return _TEXT


def _merged(structs: list[types.StructType]) -> types.DataType:
    """One struct with the fields of all: the column of a union of records."""
    columns: dict[str, types.DataType] = {}
    for struct in structs:
        for column in struct.fields:
            known = columns.setdefault(column.name, column.dataType)
            columns[column.name] = _common([known, column.dataType])
    return types.StructType([types.StructField(name, kind) for name, kind in columns.items()])
