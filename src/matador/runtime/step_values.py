"""Step results as bytes and back: the same value with the same types, or an error on the first run.

Plain JSON data is stored as it is. A record (dataclass, msgspec, attrs, pydantic) is stored with
the name of its class and decoded by its type. What JSON does not have (tuples, sets, times,
decimals, bytes, other keys, records inside of lists) is marked: ``{"#tuple": [1, 2]}``.

Each stored value is decoded and compared at once, because a changed type would otherwise only fail
in the next attempt. Write access to a store must not allow running code here, so only classes that
are already loaded are found; nothing is imported.
"""

from __future__ import annotations

import base64
import dataclasses
import enum
import sys
from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import cached_property
from math import isfinite
from types import ModuleType
from typing import Any, cast
from uuid import UUID
from zoneinfo import ZoneInfo

import msgspec

_MARKED = "#"
"""The type of a stored value that contains marks."""

_PLAIN = (str, int, bool, type(None))

_PYDANTIC = (
    "__dict__",
    "__pydantic_fields_set__",
    "__pydantic_extra__",
    "__pydantic_private__",
)
"""The state of a pydantic model, which has no plain fields."""


class _Stored(msgspec.Struct, frozen=True, omit_defaults=True):
    value: msgspec.Raw
    type: str | None = None


def dump_value(value: Any) -> bytes:
    """A value as bytes, from which ``load_value`` makes an equal value of the same types.

    Raises:
        Exception: it cannot be stored. Code of its classes may raise anything.
    """
    if _is_record(cast("type[Any]", type(value))):
        stored = _typed(value)
        if stored is not None:
            return msgspec.json.encode(stored)
    marked = _mark(value)
    type_ = None if _same(marked, value) else _MARKED
    stored = msgspec.json.encode(_Stored(msgspec.Raw(msgspec.json.encode(marked)), type_))
    if not _same(load_value(stored), value):
        raise ValueError("decoding would return a different value")
    return stored


def load_value(stored: bytes) -> Any:
    """A value from the bytes of ``dump_value``.

    Raises:
        Exception: the bytes are damaged, or a class is not loaded.
    """
    found = msgspec.json.decode(stored, type=_Stored)
    if found.type is None:
        return msgspec.json.decode(found.value)
    if found.type == _MARKED:
        return _unmark(msgspec.json.decode(found.value))
    return _load_record(found.type, bytes(found.value))


# -- records --------------------------------------------------------------------------------------


def _typed(value: Any) -> _Stored | None:
    """A record as JSON that its type decodes to the same record; None if there is no such JSON."""
    name = _full_name(cast("type[Any]", type(value)))
    _find_type(name)
    try:
        if hasattr(value, "__pydantic_serializer__"):
            # Fields that were not set must stay unset after decoding.
            to_json = value.__pydantic_serializer__.to_json
            raw: bytes = to_json(value, exclude_unset=True, warnings=False)
        else:
            raw = msgspec.json.encode(value)
        if _same(_load_record(name, raw), value):
            return _Stored(msgspec.Raw(raw), name)
    except Exception:  # noqa: BLE001 - validators, converters and __post_init__ may raise anything
        return None
    return None


def _load_record(name: str, raw: bytes) -> Any:
    type_ = _find_type(name)
    validator = getattr(type_, "__pydantic_validator__", None)
    if validator is not None:
        return validator.validate_json(raw)
    return msgspec.json.decode(raw, type=type_)


def _find_type(name: str, fits: Callable[[type[Any]], bool] | None = None) -> type[Any]:
    """The loaded record class with that name. Runs no code: no import, no ``__getattr__``.

    Raises:
        LookupError: no loaded module has such a class.
    """
    module_name, _, path = name.partition(":")
    found: Any = sys.modules.get(module_name)
    for part in path.split("."):
        home = isinstance(found, ModuleType | type)
        found = object.__getattribute__(found, "__dict__").get(part) if home else None
    fits = fits or _is_record
    if not isinstance(found, type) or not fits(found) or _full_name(found) != name:
        raise LookupError(
            f"class {name} is not loaded; define it at the top of a module that is imported with "
            f"the subscriber"
        )
    return cast("type[Any]", found)


def _is_enum(type_: type[Any]) -> bool:
    return issubclass(type_, enum.Enum)


def _is_record(type_: type[Any]) -> bool:
    """Whether it is a dataclass, or a class of msgspec, attrs or pydantic."""
    return (
        dataclasses.is_dataclass(type_)
        or issubclass(type_, msgspec.Struct)
        or hasattr(type_, "__attrs_attrs__")
        or hasattr(type_, "__pydantic_validator__")
    )


def _full_name(type_: type[Any]) -> str:
    return f"{type_.__module__}:{type_.__qualname__}"


def _field_names(type_: type[Any]) -> list[str]:
    if issubclass(type_, msgspec.Struct):
        return list(type_.__struct_fields__)
    if dataclasses.is_dataclass(type_):
        return [field.name for field in dataclasses.fields(type_)]
    if hasattr(type_, "__attrs_attrs__"):
        return [field.name for field in cast("Any", type_).__attrs_attrs__]
    return list(_PYDANTIC)


def _unknown_attributes(value: Any) -> set[str]:
    """The attributes of a record besides its fields and cached properties."""
    type_ = cast("type[Any]", type(value))
    more = set(getattr(value, "__dict__", {})) - set(_field_names(type_))
    return {one for one in more if not isinstance(getattr(type_, one, None), cached_property)}


def _rebuilt(name: str, fields: Mapping[str, Any]) -> Any:
    """A record with exactly these fields, created without calling its constructor."""
    type_ = _find_type(name)
    own: set[str] = set(getattr(type_, "__pydantic_fields__", ()))
    if set(fields) != set(_field_names(type_)) or not own <= set(fields.get("__dict__", own)):
        raise ValueError(f"class {name} has other fields now")
    if issubclass(type_, msgspec.Struct):
        made: Any = type_(**fields)
        for field, value in fields.items():
            msgspec.structs.force_setattr(made, field, value)
        return made
    made = object.__new__(type_)
    for field, value in fields.items():
        object.__setattr__(made, field, value)
    return made


# -- marks ----------------------------------------------------------------------------------------


def _mark(value: Any) -> Any:
    """A value as JSON data with marks."""
    type_ = cast("type[Any]", type(value))
    if type_ in _PLAIN:
        return value
    if type_ is float:
        if not isfinite(value):
            raise ValueError(f"{value} cannot be written as JSON")
        return value
    if type_ is list:
        return [_mark(one) for one in value]
    if type_ is dict:
        looks_marked = len(value) == 1 and str(next(iter(value))).startswith(_MARKED)
        if not looks_marked and all(type(key) is str for key in value):
            return {key: _mark(one) for key, one in value.items()}
        return {"#dict": [[_mark(key), _mark(one)] for key, one in value.items()]}
    if (simple := _SIMPLE.get(type_)) is not None:
        mark, write, _ = simple
        return {mark: write(value)}
    if isinstance(value, enum.Enum):
        if value.name not in _find_type(_full_name(type_), _is_enum).__members__:
            raise ValueError(f"{value} has no name")  # a combination of flags
        return {"#enum": [_full_name(type_), value.name]}
    if _is_record(type_):
        typed = _typed(value)
        if typed is not None:
            return {"#record": [typed.type, msgspec.json.decode(typed.value)]}
        fields = {name: _mark(getattr(value, name)) for name in _field_names(type_)}
        return {"#fields": [_full_name(type_), fields]}
    raise TypeError(f"objects of the type {type_.__qualname__} cannot be written as JSON")


def _unmark(value: Any) -> Any:
    if isinstance(value, list):
        return [_unmark(one) for one in cast("list[Any]", value)]
    if not isinstance(value, dict):
        return value
    data = cast("dict[str, Any]", value)
    mark = next(iter(data)) if len(data) == 1 else ""
    if not mark.startswith(_MARKED):
        return {key: _unmark(one) for key, one in data.items()}
    inner = data[mark]
    match mark:
        case "#dict":
            return {_unmark(key): _unmark(one) for key, one in inner}
        case "#enum":
            name, member = inner
            return cast("Any", _find_type(name, _is_enum)).__members__[member]
        case "#record":
            name, fields = inner
            return _load_record(name, msgspec.json.encode(fields))
        case "#fields":
            name, fields = inner
            return _rebuilt(name, {key: _unmark(one) for key, one in fields.items()})
        case _:
            return _READ[mark](inner)


def _write_datetime(value: datetime) -> list[Any]:
    zone = value.tzinfo
    if isinstance(zone, ZoneInfo) and zone.key:
        return [value.replace(tzinfo=None).isoformat(), zone.key, value.fold]
    return [value.isoformat(), None, value.fold]


def _read_datetime(stored: list[Any]) -> datetime:
    text, zone, fold = stored
    value = datetime.fromisoformat(text)
    return value.replace(tzinfo=value.tzinfo if zone is None else ZoneInfo(zone), fold=fold)


def _write_time(value: time) -> list[Any]:
    return [value.isoformat(), value.fold]


def _elements(value: Any) -> list[Any]:
    return [_mark(one) for one in value]


def _base64(value: bytes | bytearray) -> str:
    return base64.b64encode(value).decode()


def _unbase64(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


_SIMPLE: dict[type[Any], tuple[str, Callable[[Any], Any], Callable[[Any], Any]]] = {
    tuple: ("#tuple", _elements, lambda inner: tuple(map(_unmark, inner))),
    set: ("#set", _elements, lambda inner: set(map(_unmark, inner))),
    frozenset: ("#frozenset", _elements, lambda inner: frozenset(map(_unmark, inner))),
    datetime: ("#datetime", _write_datetime, _read_datetime),
    date: ("#date", date.isoformat, date.fromisoformat),
    time: ("#time", _write_time, lambda inner: time.fromisoformat(inner[0]).replace(fold=inner[1])),
    timedelta: (
        "#timedelta",
        lambda value: [value.days, value.seconds, value.microseconds],
        lambda inner: timedelta(inner[0], inner[1], inner[2]),
    ),
    Decimal: ("#decimal", str, Decimal),
    UUID: ("#uuid", str, UUID),
    bytes: ("#bytes", _base64, _unbase64),
    bytearray: ("#bytearray", _base64, lambda text: bytearray(_unbase64(text))),
}
_READ = {mark: read for mark, _, read in _SIMPLE.values()}


# -- comparing ------------------------------------------------------------------------------------


def _same(one: Any, other: Any) -> bool:
    """Whether two values are equal and have the same types. User-defined ``==`` is not called."""
    type_ = cast("type[Any]", type(one))
    if type_ is not type(other):
        return False
    if type_ in _PLAIN:
        return bool(one == other)
    if issubclass(type_, list | tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    if issubclass(type_, dict):
        return len(one) == len(other) and all(
            _same(pair, of_other) for pair, of_other in zip(one.items(), other.items(), strict=True)
        )
    if issubclass(type_, set | frozenset):
        found = {item: item for item in other}
        return len(one) == len(other) and all(
            item in found and _same(item, found[item]) for item in one
        )
    if issubclass(type_, enum.Enum):
        return one is other
    if _is_record(type_):
        missing = object()
        names = {*_field_names(type_), *_unknown_attributes(one), *_unknown_attributes(other)}
        return all(
            _same(getattr(one, name, missing), getattr(other, name, missing)) for name in names
        )
    if type_ in _SIMPLE or type_ is float:
        return repr(one) == repr(other)  # time zones, trailing zeros and the sign of zero, too
    return bool(one == other)
