"""Generates a plausible payload for an event, from its payload type."""

from __future__ import annotations

from typing import Any, cast

from msgspec import inspect

from matador.cli.output import CommandError
from matador.model.event import EventType

_DEEPEST = 20
_TEXTS = {
    "datetime": "2026-01-01T12:00:00Z",
    "date": "2026-01-01",
    "time": "12:00:00Z",
    "timedelta": "PT1M",
    "duration": "PT1M",
    "uuid": "00000000-0000-4000-8000-000000000001",
    "email": "someone@example.com",
    "uri": "https://example.com/",
    "decimal": "1",
    "bytes": "AA==",
    "bytearray": "AA==",
    "memoryview": "AA==",
    "binary": "AA==",
}


def sample_payload(event: EventType) -> Any:
    """Plain data that fits the event's type, with every required field.

    Raises:
        CommandError: the type cannot be described.
    """
    payload: Any = event.payload
    try:
        if hasattr(payload, "model_json_schema"):  # pydantic's
            schema = payload.model_json_schema()
            return _value(schema, schema, event.key, 0)
        return _of_type(inspect.type_info(payload), event.key, 0)
    except (TypeError, ValueError, LookupError, NameError) as error:
        raise CommandError(
            f"cannot generate a payload for {event.key!r} ({error}): "
            f"define test_event in the module"
        ) from error


# -- from types as msgspec describes them ---------------------------------------------------------


def _of_type(node: inspect.Type, name: str, depth: int) -> Any:
    _check_depth(depth)
    match node:
        case inspect.StructType() | inspect.DataclassType() | inspect.TypedDictType():
            return _record(node, depth)
        case inspect.UnionType(types=types):
            choices = [one for one in types if not isinstance(one, inspect.NoneType)]
            return _of_type(choices[0], name, depth + 1)
        case inspect.TupleType(item_types=types):
            return [_of_type(one, name, depth + 1) for one in types]
        case inspect.CollectionType(item_type=item, min_length=least):
            return [_of_type(item, name, depth + 1) for _ in range(least or 0)]
        case inspect.DictType():
            return {}
        case inspect.EnumType(cls=cls):
            return next(iter(cls)).value
        case inspect.LiteralType(values=values):
            return values[0]
        case inspect.StrType(min_length=least, max_length=most):
            return _fitted(name, least, most)
        case inspect.IntType() | inspect.FloatType():
            return _within(
                least=node.ge if node.gt is None else node.gt + 1,
                most=node.le if node.lt is None else node.lt - 1,
                step=node.multiple_of,
            )
        case inspect.BoolType():
            return True
        case inspect.AnyType() | inspect.NoneType() | inspect.RawType():
            return None
        case _:
            kind = type(node).__name__.removesuffix("Type").lower()
            if kind not in _TEXTS:
                raise TypeError(f"{name!r} has an unknown type")
            return _TEXTS[kind]


def _record(
    node: inspect.StructType | inspect.DataclassType | inspect.TypedDictType, depth: int
) -> Any:
    made = {
        field.encode_name: _of_type(field.type, field.name, depth + 1)
        for field in node.fields
        if field.required
    }
    if isinstance(node, inspect.StructType):
        if node.tag_field is not None:
            made = {node.tag_field: node.tag, **made}
        return list(made.values()) if node.array_like else made
    return made


# -- from JSON Schema, which pydantic writes ------------------------------------------------------


def _value(schema: Any, root: dict[str, Any], name: str, depth: int) -> Any:
    _check_depth(depth)
    if not isinstance(schema, dict):  # `true`: any value
        return None
    node = cast("dict[str, Any]", schema)
    if "$ref" in node:
        target: Any = root
        for step in str(node["$ref"]).removeprefix("#/").split("/"):
            target = target[step]
        return _value(target, root, name, depth + 1)
    for key in ("const", "default"):
        if key in node:
            return node[key]
    if node.get("enum"):
        return node["enum"][0]
    for key in ("anyOf", "oneOf", "allOf"):
        if node.get(key):
            choices = [one for one in node[key] if one != {"type": "null"}] or node[key]
            return _value(choices[0], root, name, depth + 1)
    kind = node.get("type")
    if isinstance(kind, list):
        kind = cast("list[str]", kind)[0]
    match kind:
        case "object":
            return _object(node, root, depth)
        case "array":
            return _array(node, root, name, depth)
        case "string":
            return _text(node, name)
        case "integer" | "number":
            return _number(node)
        case "boolean":
            return True
        case _:
            return None


def _object(node: dict[str, Any], root: dict[str, Any], depth: int) -> dict[str, Any]:
    fields: dict[str, Any] = node.get("properties", {})
    return {
        name: _value(fields[name], root, name, depth + 1)
        for name in node.get("required", ())
        if name in fields
    }


def _array(node: dict[str, Any], root: dict[str, Any], name: str, depth: int) -> list[Any]:
    if node.get("prefixItems"):
        return [_value(one, root, name, depth + 1) for one in node["prefixItems"]]
    least = int(node.get("minItems", 0))
    return [_value(node.get("items", True), root, name, depth + 1) for _ in range(least)]


def _text(node: dict[str, Any], name: str) -> str:
    text = _TEXTS.get(str(node.get("format")).replace("-", ""), name)
    return _fitted(text, node.get("minLength"), node.get("maxLength"))


def _number(node: dict[str, Any]) -> float:
    above, below = node.get("exclusiveMinimum"), node.get("exclusiveMaximum")
    return _within(
        least=node.get("minimum") if above is None else above + 1,
        most=node.get("maximum") if below is None else below - 1,
        step=node.get("multipleOf"),
    )


# -- both -----------------------------------------------------------------------------------------


def _check_depth(depth: int) -> None:
    if depth > _DEEPEST:
        raise ValueError("its type is recursive")


def _fitted(text: str, least: int | None, most: int | None) -> str:
    return text.ljust(least or 0, "x")[:most]


def _within(*, least: float | None, most: float | None, step: float | None) -> float:
    """1, or the nearest number within the limits."""
    value = 1 if most is None else min(1, most)
    value = value if least is None else max(value, least)
    return value if not step else -(-value // step) * step
