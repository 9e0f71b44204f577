"""Finds data that a format would change: msgspec writes NaN as null, and the key 1 as "1"."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, cast

import msgspec
from msgspec import inspect

from matador.errors import InvalidEventError
from matador.model.envelope import Docket
from matador.model.text import lone_surrogate

SIMPLE = frozenset({str, int, bool, type(None)})
"""Types of values that no format changes."""

_RECORD_MARKS = ("__struct_fields__", "__dataclass_fields__", "__attrs_attrs__")
_MAYBE_NOT_FINITE = re.compile(rb"\xcb[\x7f\xff][\xf0-\xff]")  # NaN or infinite in MessagePack
_WITH_KEYS = (
    inspect.DictType
    | inspect.FrozenDictType
    | inspect.AnyType
    | inspect.CustomType
    | inspect.RawType
)
_to_msgpack = msgspec.msgpack.Encoder().encode


def metadata_problem(metadata: Mapping[Any, Any], *, nested: bool) -> str | None:
    """A description of metadata that encoding would change, or None.

    With ``nested``, all numbers must be finite and all keys must be strings, as in JSON. Without
    it, only the keys of the metadata itself are checked.
    """
    for key, value in metadata.items():
        if not isinstance(key, str):
            return f"the key {key!r} is not a string"
        if nested and type(value) not in SIMPLE:
            found = next(_problems(value, f"$.{key}", any_keys=False), None)
            if found is not None:
                return found
    return None


def unwritable(
    docket: Docket, problem: str | Exception, metadata: Mapping[Any, Any] | None = None
) -> InvalidEventError:
    """The error for a docket or metadata that cannot be encoded; names the key in the metadata."""
    key = None
    if isinstance(problem, Exception):
        key = unencodable_key(docket.metadata if metadata is None else metadata)
    if isinstance(problem, UnicodeEncodeError):
        problem = f"a text {lone_surrogate(problem.object)}"
    if key is not None:
        return InvalidEventError(
            f"event {docket.event_key!r}: metadata[{key!r}] cannot be encoded: {problem}"
        )
    return InvalidEventError(
        f"event {docket.event_key!r}: its metadata or docket cannot be encoded: {problem}"
    )


def unencodable_key(metadata: Mapping[Any, Any]) -> Any:
    """The first key of metadata that cannot be encoded with its value, or None."""
    for encode in (msgspec.json.encode, _to_msgpack):
        for key, value in metadata.items():
            try:
                encode({key: value})
            except (TypeError, ValueError, OverflowError, RecursionError):
                return key
    return None


def may_have_keys(payload: type[Any]) -> bool:
    """Whether a payload of this type may contain arbitrary keys below its own fields.

    In mappings, and in nested records, because msgspec also accepts a mapping in their place.
    """
    nodes = list(_nodes(payload))
    return (
        any(isinstance(node, _WITH_KEYS) for node in nodes)
        or sum(hasattr(node, "fields") for node in nodes) > 1
    )


def has_raw_parts(payload: type[Any]) -> bool:
    """Whether a payload of this type may contain raw JSON, which is not decoded."""
    return any(isinstance(node, inspect.RawType) for node in _nodes(payload))


def has_room_for_null(payload: type[Any]) -> bool:
    """Whether null may replace a number in a payload of this type. If so, NaN is lost without an
    error."""
    for node in _nodes(payload):
        if isinstance(node, inspect.AnyType | inspect.CustomType):
            return True
        if isinstance(node, inspect.UnionType):
            choices = {type(one) for one in node.types}
            if {inspect.FloatType, inspect.NoneType} <= choices:
                return True
    return False


def _nodes(payload: type[Any]) -> Iterator[inspect.Type]:
    """The type and all types in it. Recursive types may appear twice."""
    waiting: list[Any] = [inspect.type_info(payload)]
    seen: set[int] = set()
    while waiting:
        node = waiting.pop()
        if isinstance(node, tuple):
            waiting.extend(cast("tuple[Any, ...]", node))
        elif isinstance(node, inspect.Type | inspect.Field):
            if isinstance(node, inspect.Type):
                yield node
            if id(node) not in seen:
                seen.add(id(node))
                waiting.extend(getattr(node, name) for name in node.__struct_fields__)


def not_finite(payload: Any) -> str | None:
    """The part of a payload (other than pydantic) that JSON cannot represent, or None."""
    try:
        packed = _to_msgpack(payload)
        if _MAYBE_NOT_FINITE.search(packed) is None:
            return None
    except (OverflowError, UnicodeEncodeError):
        pass  # an integer too large for MessagePack but not for JSON, or a lone surrogate
    except (TypeError, ValueError, RecursionError):
        return None  # it cannot be encoded at all
    return not_finite_in(msgspec.to_builtins(payload))


def not_finite_in(plain: Any) -> str | None:
    """The part of plain data that JSON cannot represent, or None."""
    return next(_problems(plain, "$", any_keys=True), None)


def lost_in_msgpack(payload: Any) -> str | None:
    """Where a payload contains a lone surrogate, which no format can represent, or None."""
    plain = msgspec.to_builtins(payload)
    return next(_problems(plain, "$", any_keys=True, finite=False), None)


def lost_as_text(plain: Any) -> str | None:
    """The part of plain data that is lost when all keys become text, or None."""
    problems = _problems(plain, "$", any_keys=True, finite=False, keys_as_text=True)
    return next(problems, None)


def same_key(key: str) -> str:
    """The error text for a mapping with two keys that have the same text."""
    return f"two keys of one mapping are both {key!a} as text"


def _problems(
    value: Any, where: str, *, any_keys: bool, finite: bool = True, keys_as_text: bool = False
) -> Iterator[str]:
    # It is not recursive, because it was encoded before, at least up to its lone surrogate.
    waiting: list[tuple[Any, str]] = [(value, where)]
    while waiting:
        value, where = waiting.pop()
        if isinstance(value, float):
            if finite and value - value != 0.0:  # only NaN and the infinities
                yield f"{value} cannot be encoded as JSON - at `{where}`"
        elif isinstance(value, str):
            if not value.isascii() and (half := lone_surrogate(value)) is not None:
                yield f"the text {half} - at `{where}`"
        elif isinstance(value, dict):
            texts = [str(key) for key in cast("dict[Any, Any]", value)] if keys_as_text else []
            if len(set(texts)) < len(texts):
                twice = next(one for one in texts if texts.count(one) > 1)
                yield f"{same_key(twice)} - at `{where}`"
            for key, inner in cast("dict[Any, Any]", value).items():
                if not any_keys and not isinstance(key, str):
                    yield f"the key {key!r} is not a string - at `{where}`"
                if isinstance(key, str) and (half := lone_surrogate(key)) is not None:
                    yield f"the key {key!a} {half} - at `{where}`"
                waiting.append((inner, f"{where}.{key}"))
        elif isinstance(value, list | tuple | set | frozenset):
            elements = cast("Iterable[Any]", value)
            waiting.extend((inner, f"{where}[{at}]") for at, inner in enumerate(elements))
        elif any(hasattr(value, mark) for mark in _RECORD_MARKS):
            waiting.append((msgspec.to_builtins(value), where))
