"""What a format cannot carry, found before it is lost: msgspec writes NaN as null, and 1 as "1"."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, cast

import msgspec
from msgspec import inspect

from matador.errors import InvalidEventError
from matador.model.envelope import Docket

SIMPLE = frozenset({str, int, bool, type(None)})
"""Types of values that every format carries as they are."""

_RECORD_MARKS = ("__struct_fields__", "__dataclass_fields__", "__attrs_attrs__")
_MAYBE_NOT_FINITE = re.compile(rb"\xcb[\x7f\xff][\xf0-\xff]")  # NaN or infinite in MessagePack
_to_msgpack = msgspec.msgpack.Encoder().encode


def metadata_problem(metadata: Mapping[Any, Any], *, nested: bool) -> str | None:
    """What keeps metadata that was encoded from arriving as it was sent, or None.

    With ``nested`` all of it must be what JSON can say: finite numbers, keys that are strings.
    Without, only its own keys are looked at.
    """
    for key, value in metadata.items():
        if not isinstance(key, str):
            return f"the key {key!r} is not a string"
        if nested and type(value) not in SIMPLE:
            found = next(_problems(value, f"$.{key}", any_keys=False), None)
            if found is not None:
                return found
    return None


def unwritable(docket: Docket, problem: str) -> InvalidEventError:
    """The error for a docket, or metadata in it, that cannot be written."""
    return InvalidEventError(
        f"event {docket.event_key!r}: its metadata or docket cannot be written: {problem}"
    )


def has_room_for_null(payload: type[Any]) -> bool:
    """May a null stand where a payload of that type had a number? Then a NaN is lost unseen."""
    waiting: list[Any] = [inspect.type_info(payload)]
    seen: set[int] = set()
    while waiting:
        node = waiting.pop()
        if isinstance(node, tuple):
            waiting.extend(cast("tuple[Any, ...]", node))
        elif isinstance(node, inspect.Type | inspect.Field) and id(node) not in seen:
            seen.add(id(node))  # types may contain themselves
            if isinstance(node, inspect.AnyType | inspect.CustomType):
                return True
            if isinstance(node, inspect.UnionType):
                choices = {type(one) for one in node.types}
                if {inspect.FloatType, inspect.NoneType} <= choices:
                    return True
            waiting.extend(getattr(node, name) for name in node.__struct_fields__)
    return False


def not_finite(payload: Any) -> str | None:
    """Where a payload that msgspec can write has a NaN or an infinity, or None."""
    try:
        packed = _to_msgpack(payload)
        if _MAYBE_NOT_FINITE.search(packed) is None:
            return None
    except OverflowError:  # a whole number that JSON can carry, and MessagePack cannot
        pass
    except (TypeError, ValueError, RecursionError):
        return None  # it cannot be written at all
    return not_finite_in(msgspec.to_builtins(payload))


def not_finite_in(plain: Any) -> str | None:
    """Where plain data has a NaN or an infinity, or None."""
    return next(_problems(plain, "$", any_keys=True), None)


def _problems(value: Any, where: str, *, any_keys: bool) -> Iterator[str]:
    # It was encoded before, so it does not contain itself.
    waiting: list[tuple[Any, str]] = [(value, where)]
    while waiting:
        value, where = waiting.pop()
        if isinstance(value, float):
            if value - value != 0.0:  # only NaN and the infinities
                yield f"{value} cannot be written as JSON - at `{where}`"
        elif isinstance(value, dict):
            for key, inner in cast("dict[Any, Any]", value).items():
                if not any_keys and not isinstance(key, str):
                    yield f"the key {key!r} is not a string - at `{where}`"
                waiting.append((inner, f"{where}.{key}"))
        elif isinstance(value, list | tuple | set | frozenset):
            elements = cast("Iterable[Any]", value)
            waiting.extend((inner, f"{where}[{at}]") for at, inner in enumerate(elements))
        elif any(hasattr(value, mark) for mark in _RECORD_MARKS):
            waiting.append((msgspec.to_builtins(value), where))
