"""Checks whether data of one JSON Schema can be read with another; reports where and why not.

Supports the keywords that msgspec and pydantic write. Other keywords are not compared.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

JsonSchema: TypeAlias = dict[str, Any]

_MOST = 100  # levels of a schema; one that refers to itself ends earlier
_BOUNDS = (
    # name, and whether a greater value accepts less
    ("minimum", True),
    ("exclusiveMinimum", True),
    ("minLength", True),
    ("minItems", True),
    ("minProperties", True),
    ("maximum", False),
    ("exclusiveMaximum", False),
    ("maxLength", False),
    ("maxItems", False),
    ("maxProperties", False),
)
_EXACT = ("format", "pattern", "multipleOf", "contentEncoding", "uniqueItems")
_TYPES: dict[Any, str] = {
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    type(None): "null",
}


@dataclass(frozen=True, slots=True)
class Difference:
    """A reason why data cannot be read: the path, such as ``$.lines[].sku``, and the change."""

    path: str
    text: str


class Comparison:
    """Compares schemas of two documents, of an old and of a new version."""

    def __init__(self, old: JsonSchema, new: JsonSchema) -> None:
        self._old, self._new = old, new

    def old_for_new(self, old: Any, new: Any) -> Iterator[Difference]:
        """The reasons why the new version cannot read data of the old one."""
        yield from _Direction(self._old, self._new, from_old=True).check(old, new, "$", 0)

    def new_for_old(self, old: Any, new: Any) -> Iterator[Difference]:
        """The reasons why the old version cannot read data of the new one."""
        yield from _Direction(self._new, self._old, from_old=False).check(new, old, "$", 0)


class _Direction:
    """Whether data that were written with one schema can be read with the other."""

    def __init__(self, writer: JsonSchema, reader: JsonSchema, *, from_old: bool) -> None:
        self._writer, self._reader = writer, reader
        self._from_old = from_old
        self._seen: set[tuple[str, str]] = set()

    def check(self, written: Any, read: Any, path: str, depth: int) -> Iterator[Difference]:
        pair = (_reference(written), _reference(read))
        if pair[0] and pair[1]:
            if pair in self._seen:
                return  # compared already, or being compared: the type refers to itself
            self._seen.add(pair)
        if depth > _MOST:
            return
        sources = _alternatives(self._writer, written)
        targets = _alternatives(self._reader, read)
        if any(not _constrains(one) for one in targets):
            return
        for source in sources:
            yield from self._one(source, targets, path, depth)

    def _one(
        self, source: JsonSchema, targets: Sequence[JsonSchema], path: str, depth: int
    ) -> Iterator[Difference]:
        """One alternative of the writer must be accepted by one of the reader's."""
        similar = [one for one in targets if _kind(one) == _kind(source)] or list(targets)
        refused: list[list[Difference]] = []
        for target in similar:
            seen = set(self._seen)
            problems = list(self._same(source, target, path, depth))
            if not problems:
                return
            self._seen = seen
            refused.append(problems)
        yield from min(refused, key=len)

    def _same(
        self, source: JsonSchema, target: JsonSchema, path: str, depth: int
    ) -> Iterator[Difference]:
        before, after = _kind(source), _kind(target)
        if before != after and not (before == "integer" and after == "number"):
            if after != "anything":
                yield Difference(path, self._text("the type {old} is now {new}", before, after))
            return
        yield from self._values(source, target, path)
        yield from self._limits(source, target, path)
        if after == "object":
            yield from self._fields(source, target, path, depth)
        elif after == "array":
            yield from self._items(source, target, path, depth)

    # -- texts: always from the old version to the new one ----------------------------------------

    def _text(self, template: str, written: Any, read: Any) -> str:
        old, new = (written, read) if self._from_old else (read, written)
        return template.format(old=old, new=new)

    def _say(self, path: str, from_old: str, from_new: str) -> Difference:
        return Difference(path, from_old if self._from_old else from_new)

    # -- values -----------------------------------------------------------------------------------

    def _values(self, source: JsonSchema, target: JsonSchema, path: str) -> Iterator[Difference]:
        allowed, used = _enum(target), _enum(source)
        if allowed is None:
            return
        if used is None:
            yield self._say(
                path, f"only {_listed(allowed)} are allowed now", "any value is allowed now"
            )
            return
        if lost := [one for one in used if one not in allowed]:
            values = _listed(lost)
            yield self._say(path, f"the value {values} was removed", f"the value {values} is new")

    def _limits(self, source: JsonSchema, target: JsonSchema, path: str) -> Iterator[Difference]:
        for name, greater_is_less in _BOUNDS:
            wanted, given = target.get(name), source.get(name)
            if not isinstance(wanted, int | float):
                continue
            enough = isinstance(given, int | float) and (
                given >= wanted if greater_is_less else given <= wanted
            )
            if not enough:
                none = "none"
                text = self._text(
                    f"{name} {{old}} is now {{new}}", none if given is None else given, wanted
                )
                yield Difference(path, text)
        for name in _EXACT:
            wanted, given = target.get(name), source.get(name)
            if wanted is not None and wanted is not False and wanted != given:
                given = "none" if given is None else given
                yield Difference(path, self._text(f"{name} {{old}} is now {{new}}", given, wanted))

    # -- objects and arrays -----------------------------------------------------------------------

    def _fields(
        self, source: JsonSchema, target: JsonSchema, path: str, depth: int
    ) -> Iterator[Difference]:
        has, wants = _mapping(source, "properties"), _mapping(target, "properties")
        always = set(_list(source, "required"))
        for name in _list(target, "required"):
            where = f"{path}.{name}"
            if name not in has and name not in always:
                yield self._say(where, "is a new required field", "was removed and is required")
            elif name not in always:
                yield self._say(where, "is required now", "is optional now")
        rest = target.get("additionalProperties", True)
        for name, schema in has.items():
            if name in wants:
                yield from self.check(schema, wants[name], f"{path}.{name}", depth + 1)
            elif rest is False:
                yield self._say(
                    f"{path}.{name}",
                    "was removed, and unknown fields are refused",
                    "is new, and unknown fields are refused",
                )
            elif isinstance(rest, dict) and rest:
                yield from self.check(schema, rest, f"{path}.{name}", depth + 1)
        other = source.get("additionalProperties")
        if isinstance(other, dict) and isinstance(rest, dict):
            yield from self.check(other, rest, f"{path}.*", depth + 1)
        elif not has and other is None and isinstance(rest, dict) and rest:
            yield from self.check({}, rest, f"{path}.*", depth + 1)

    def _items(
        self, source: JsonSchema, target: JsonSchema, path: str, depth: int
    ) -> Iterator[Difference]:
        has, wants = _list(source, "prefixItems"), _list(target, "prefixItems")
        for number, (one, other) in enumerate(zip(has, wants, strict=False)):
            yield from self.check(one, other, f"{path}[{number}]", depth + 1)
        one, other = source.get("items", {}), target.get("items", {})
        if one is not False and isinstance(other, dict):
            yield from self.check(one, other, f"{path}[]", depth + 1)


def _reference(schema: Any) -> str:
    return str(cast("JsonSchema", schema).get("$ref", "")) if isinstance(schema, dict) else ""


def _alternatives(
    document: JsonSchema, schema: Any, within: frozenset[str] = frozenset()
) -> list[JsonSchema]:
    """A schema as a list of alternatives without references; ``{}`` accepts everything."""
    if not isinstance(schema, dict) or len(within) > _MOST:
        return [{}]
    found = cast("JsonSchema", schema)
    if isinstance(reference := found.get("$ref"), str):
        if reference in within:  # it only refers to itself
            return [{}]
        return _alternatives(document, _resolved(document, reference), within | {reference})
    for word in ("anyOf", "oneOf"):
        if choices := _list(found, word):
            return [one for choice in choices for one in _alternatives(document, choice, within)]
    if parts := _list(found, "allOf"):
        merged: JsonSchema = {key: value for key, value in found.items() if key != "allOf"}
        for part in parts:
            for one in _alternatives(document, part, within)[:1]:
                merged |= one
        return [merged]
    kinds = found.get("type")
    if isinstance(kinds, list):
        return [{**found, "type": one} for one in cast("list[Any]", kinds)]
    return [found]


def _resolved(document: JsonSchema, reference: str) -> Any:
    here: Any = document
    for step in reference.removeprefix("#/").split("/"):
        name = step.replace("~1", "/").replace("~0", "~")
        here = cast("JsonSchema", here).get(name, {}) if isinstance(here, dict) else {}
    return here


def _constrains(schema: JsonSchema) -> bool:
    return _kind(schema) != "anything" or bool(schema.get("properties"))


def _kind(schema: JsonSchema) -> str:
    """The type of the values."""
    kind = schema.get("type")
    if isinstance(kind, str):
        return kind
    values = _enum(schema)
    kinds = {_TYPES.get(one.__class__, "object") for one in values or ()}
    if len(kinds) == 1:
        return kinds.pop()
    return "object" if "properties" in schema else "anything"


def _enum(schema: JsonSchema) -> list[Any] | None:
    if "const" in schema:
        return [schema["const"]]
    values = schema.get("enum")
    return cast("list[Any]", values) if isinstance(values, list) else None


def _mapping(schema: JsonSchema, name: str) -> JsonSchema:
    found = schema.get(name)
    return cast("JsonSchema", found) if isinstance(found, dict) else {}


def _list(schema: JsonSchema, name: str) -> list[Any]:
    found = schema.get(name)
    return cast("list[Any]", found) if isinstance(found, list) else []


def _listed(values: Sequence[Any]) -> str:
    return ", ".join(json.dumps(one) for one in values)
