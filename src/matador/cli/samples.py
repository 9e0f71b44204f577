"""Makes up a plausible payload for an event, from the type of its payload."""

from __future__ import annotations

from typing import Any, cast

import msgspec

from matador.cli.output import CommandError
from matador.model.event import EventType

_DEEPEST = 20
_FORMATS = {
    "date-time": "2026-01-01T12:00:00Z",
    "date": "2026-01-01",
    "time": "12:00:00",
    "duration": "PT1M",
    "uuid": "00000000-0000-4000-8000-000000000001",
    "email": "someone@example.com",
    "uri": "https://example.com/",
    "decimal": "1",
    "binary": "AA==",
}


def sample_payload(event: EventType) -> Any:
    """Plain data that should fit the event's type: every required field, as simple as can be.

    Raises:
        CommandError: the type is not one that can be described.
    """
    payload: Any = event.payload
    try:
        if hasattr(payload, "model_json_schema"):
            schema = payload.model_json_schema()
        else:
            schema = msgspec.json.schema(payload)
        return _value(schema, schema, event.key, 0)
    except (TypeError, ValueError, LookupError, NameError) as error:
        raise CommandError(
            f"cannot make up a payload for {event.key!r} ({error}): "
            f"give the module a test_event of its own"
        ) from error


def _value(schema: Any, root: dict[str, Any], name: str, depth: int) -> Any:
    if depth > _DEEPEST:
        raise ValueError("its type contains itself")
    if not isinstance(schema, dict):  # `true`: anything goes
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
    text = _FORMATS.get(str(node.get("format")), name)
    text += "x" * (int(node.get("minLength", 0)) - len(text))
    return text[: node.get("maxLength")]


def _number(node: dict[str, Any]) -> float:
    if "exclusiveMinimum" in node:
        return node["exclusiveMinimum"] + 1
    least = node.get("minimum", 1)
    most = node.get("maximum", node.get("exclusiveMaximum", least + 1) - 1)
    value = min(max(least, 1), max(most, least))
    step = node.get("multipleOf")
    return value if not step else -(-value // step) * step
