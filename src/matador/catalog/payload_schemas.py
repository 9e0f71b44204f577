"""JSON Schemas of payload types, with the types they refer to as components.

msgspec knows dataclasses, structs, attrs classes and TypedDicts. Pydantic models describe
themselves, which works without importing pydantic.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeAlias, cast

import msgspec

JsonSchema: TypeAlias = dict[str, Any]

REFERENCE = "#/components/schemas/"
_BY_NAME, _BY_MODEL = REFERENCE + "{name}", REFERENCE + "{model}"  # msgspec's, pydantic's


class PayloadSchemas:
    """Collects the schemas of types. Types with the same name get different names.

    Example:
        >>> schemas = PayloadSchemas()
        >>> schemas.of(OrderPlaced)
        {'$ref': '#/components/schemas/OrderPlaced'}
        >>> schemas.components["OrderPlaced"]["required"]
        ['order_id', 'amount']
    """

    def __init__(self) -> None:
        self.components: dict[str, JsonSchema] = {}
        self.problems: list[str] = []

    def of(self, kind: Any) -> JsonSchema:
        """The schema of a type, usually a reference to a component.

        A type that has no JSON Schema accepts everything here, and is one of the ``problems``.
        """
        if kind is Any or kind is object:
            return {}
        if kind is None or kind is type(None):
            return {"type": "null"}
        inner: dict[str, JsonSchema] = {}

        def pydantic_schema(found: type[Any]) -> JsonSchema:
            describe = getattr(found, "model_json_schema", None)
            if not callable(describe):
                raise NotImplementedError(f"{found!r} has no JSON Schema")
            schema = cast("JsonSchema", describe(ref_template=_BY_MODEL, mode="validation"))
            inner.update(schema.pop("$defs", {}))
            # A recursive model is only a reference to its own definition.
            if set(schema) != {"$ref"}:
                inner[found.__name__] = schema
                return {"$ref": REFERENCE + found.__name__}
            return schema

        try:
            (schema,), components = msgspec.json.schema_components(
                [kind], schema_hook=pydantic_schema, ref_template=_BY_NAME
            )
        except Exception as error:  # noqa: BLE001 - a model's own methods may raise anything
            name = getattr(kind, "__name__", repr(kind))
            self.problems.append(f"{name} has no JSON Schema: {error}")
            return {"description": f"The Python type {name}."}
        return self._merge(schema, {**inner, **components})

    def _merge(self, schema: JsonSchema, components: Mapping[str, JsonSchema]) -> JsonSchema:
        """The schema with references to components that are now among ours."""
        names = {name: self._free_name(name, one) for name, one in components.items()}
        if any(name != new for name, new in names.items()):
            schema = _renamed(schema, names)
            components = {name: _renamed(one, names) for name, one in components.items()}
        for name, one in components.items():
            self.components[names[name]] = one
        return schema

    def _free_name(self, name: str, schema: JsonSchema) -> str:
        plain = "".join(one if one.isalnum() or one in "._-" else "_" for one in name) or "Payload"
        number, free = 1, plain
        while free in self.components and _text(self.components[free]) != _text(schema):
            number += 1
            free = f"{plain}{number}"
        return free


def _text(schema: JsonSchema) -> str:
    return json.dumps(schema, sort_keys=True, default=str)


def _renamed(value: Any, names: Mapping[str, str]) -> Any:
    """The value with the references in it changed to other names."""
    if isinstance(value, dict):
        found = cast("dict[str, Any]", value)
        return {
            key: _reference(one, names) if key == "$ref" else _renamed(one, names)
            for key, one in found.items()
        }
    if isinstance(value, list):
        return [_renamed(one, names) for one in cast("list[Any]", value)]
    return value


def _reference(value: Any, names: Mapping[str, str]) -> Any:
    if not isinstance(value, str) or not value.startswith(REFERENCE):
        return _renamed(value, names)  # a property that is called $ref
    name = value.removeprefix(REFERENCE)
    return REFERENCE + names.get(name, name)
