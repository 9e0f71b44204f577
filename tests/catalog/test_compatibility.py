"""Which changes of payloads break readers or writers, and which do not."""

from __future__ import annotations

from dataclasses import dataclass, make_dataclass
from enum import Enum
from typing import Annotated, Any, Literal

import msgspec
import pydantic
import pytest

from matador.catalog.asyncapi import Document, asyncapi
from matador.catalog.compatibility import Change, Side, compare
from matador.catalog.contents import Catalogue, MessageType, Receiver
from matador.errors import ConfigurationError


def document(*messages: MessageType, subscribers: tuple[str, ...] = ("handle",)) -> Document:
    receivers = tuple(Receiver(name, "d", one, "q") for one in messages for name in subscribers)
    return asyncapi(Catalogue("shop", "1", messages, receivers))[0]


def event(payload: Any, key: str = "order.placed", *aliases: str) -> MessageType:
    return MessageType("event", key, "d", payload, aliases, "envelope")


def changes(old: Any, new: Any) -> list[tuple[str, str, tuple[str, ...]]]:
    found = compare(document(event(old)), document(event(new))).changes
    return [(one.path, one.text, one.breaks) for one in found]


def order(**fields: Any) -> type[Any]:
    return make_dataclass("Order", list(fields.items()))


class Color(Enum):
    RED = "red"
    BLUE = "blue"


class Red(Enum):
    RED = "red"


@dataclass
class Line:
    sku: str


@dataclass
class OtherLine:
    sku: int


@dataclass
class WithDefault:
    id: str
    note: str = ""


@dataclass
class Nested:
    lines: list[Line]


@dataclass
class OtherNested:
    lines: list[OtherLine]


class Strict(msgspec.Struct, forbid_unknown_fields=True):
    id: str


class StrictMore(msgspec.Struct, forbid_unknown_fields=True):
    id: str
    note: str = ""


class Model(pydantic.BaseModel):
    id: str
    amount: int = pydantic.Field(ge=0)


class NarrowModel(pydantic.BaseModel):
    id: str
    amount: int = pydantic.Field(ge=10)


class Tree(msgspec.Struct):
    value: int
    children: list[Tree] = []


class OtherTree(msgspec.Struct):
    value: str
    children: list[OtherTree] = []


READERS: tuple[Side, ...] = ("readers",)
WRITERS: tuple[Side, ...] = ("writers",)
BOTH: tuple[Side, ...] = ("readers", "writers")


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (
            order(id=str, amount=int),
            order(id=str),
            [("$.amount", "was removed and is required", READERS)],
        ),
        (order(id=str), order(id=str, x=int), [("$.x", "is a new required field", WRITERS)]),
        (
            order(id=str, customer=str),
            order(id=str, client=str),
            [
                ("$.customer", "was removed and is required", READERS),
                ("$.client", "is a new required field", WRITERS),
            ],
        ),
        (order(id=str), order(id=int), [("$.id", "the type string is now integer", BOTH)]),
        (order(n=int), order(n=float), [("$.n", "the type integer is now number", READERS)]),
        (order(n=float), order(n=int), [("$.n", "the type number is now integer", WRITERS)]),
        (order(id=str), order(id=str | None), [("$.id", "the type string is now null", READERS)]),
        (order(id=str | None), order(id=str), [("$.id", "the type null is now string", WRITERS)]),
        (order(id=str | int), order(id=str), [("$.id", "the type integer is now string", WRITERS)]),
        (order(c=Color), order(c=Red), [("$.c", 'the value "blue" was removed', WRITERS)]),
        (order(c=Red), order(c=Color), [("$.c", 'the value "blue" is new', READERS)]),
        (order(c=str), order(c=Red), [("$.c", 'only "red" are allowed now', WRITERS)]),
        (
            order(c=Literal[1, 2]),
            order(c=Literal[1]),
            [("$.c", "the value 2 was removed", WRITERS)],
        ),
        (Nested, OtherNested, [("$.lines[].sku", "the type string is now integer", BOTH)]),
        (
            order(m=dict[str, int]),
            order(m=dict[str, str]),
            [("$.m.*", "the type integer is now string", BOTH)],
        ),
        (
            order(m=Any),
            order(m=int),
            [("$.m", "the type anything is now integer", WRITERS)],
        ),
        (
            order(n=Annotated[int, msgspec.Meta(le=10)]),
            order(n=Annotated[int, msgspec.Meta(le=5)]),
            [("$.n", "maximum 10 is now 5", WRITERS)],
        ),
        (Model, NarrowModel, [("$.amount", "minimum 0 is now 10", WRITERS)]),
        (WithDefault, order(id=str, note=str), [("$.note", "is required now", WRITERS)]),
        (order(id=str, note=str), WithDefault, [("$.note", "is optional now", READERS)]),
        (
            Strict,
            StrictMore,
            [("$.note", "is new, and unknown fields are refused", READERS)],
        ),
        (Tree, OtherTree, [("$.value", "the type integer is now string", BOTH)]),
        (
            order(t=tuple[int, str]),
            order(t=tuple[int, int]),
            [("$.t[1]", "the type string is now integer", BOTH)],
        ),
    ],
)
def test_incompatible_changes(old: Any, new: Any, expected: list[Any]) -> None:
    assert changes(old, new) == expected


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (Model, Model),
        (Tree, Tree),
        (order(id=str), WithDefault),  # a new field with a default
        (WithDefault, order(id=str)),  # which is removed again
        (order(l=list[Line]), order(l=tuple[Line, ...])),
        (order(a=str, b=int), order(b=int, a=str)),
    ],
)
def test_compatible_changes(old: Any, new: Any) -> None:
    assert changes(old, new) == []


def test_a_payload_of_another_kind_with_the_same_fields_is_compatible() -> None:
    class Struct(msgspec.Struct):
        id: str
        note: str = ""

    class Pydantic(pydantic.BaseModel):
        id: str
        note: str = ""

    assert changes(WithDefault, Struct) == []
    assert changes(Struct, Pydantic) == []


def test_removed_events_and_subscribers() -> None:
    old = document(event(WithDefault), event(Line, "line.added"), subscribers=("a", "b"))
    new = document(event(WithDefault), subscribers=("a",))
    assert [str(one) for one in compare(old, new).changes] == [
        (
            "event order.placed: the subscriber b was removed; messages for it become dead "
            "letters (breaks writers)"
        ),
        "event line.added: was removed (breaks readers and writers)",
    ]
    assert compare(new, old).changes == ()  # new events and subscribers are compatible


def test_an_event_with_a_new_name_is_known_by_its_alias() -> None:
    old = document(event(WithDefault, "order.created"))
    compared = compare(old, document(event(WithDefault, "order.placed", "order.created")))
    assert compared.changes == ()
    assert "order.created is order.placed now" in compared.notes[0]
    broken = compare(old, document(event(Line, "order.placed", "order.created")))
    assert (
        Change("event order.created", "$.id", "was removed and is required", READERS)
        in broken.changes
    )


def test_replies_are_compared_too() -> None:
    def with_reply(kind: Any) -> Document:
        message = MessageType("command", "maths/ADD", "Add.", WithDefault)
        reply = MessageType("reply", "maths/ADD", "The sum.", kind)
        receiver = Receiver("add", "Add.", message, "maths", reply=reply)
        return asyncapi(Catalogue("t", "1", (message,), (receiver,)))[0]

    (change,) = compare(with_reply(int), with_reply(str)).changes
    assert (change.message, change.path) == ("reply maths/ADD", "$")


@pytest.mark.parametrize(
    "odd", [{}, {"components": []}, {"components": {"messages": {"a": {}}}}, {"components": None}]
)
def test_a_document_of_somebody_else_is_refused(odd: Any) -> None:
    with pytest.raises(ConfigurationError, match="matador docs"):
        compare(odd, document(event(Line)))


@pytest.mark.parametrize(
    "payload",
    [
        {"$ref": "#/components/schemas/Loop"},
        {"$ref": "#/nowhere"},
        {"$ref": 5},
        {"anyOf": [5, None]},
        {"type": ["string", 5], "enum": "x"},
        {"properties": 5, "required": {"a": 1}},
        True,
        None,
        "text",
    ],
)
def test_an_odd_schema_does_not_stop_the_comparison(payload: Any) -> None:
    old = document(event(WithDefault))
    old["components"]["schemas"]["Loop"] = {"$ref": "#/components/schemas/Loop"}
    old["components"]["messages"]["order.placed"]["payload"] = {"properties": {"data": payload}}
    compare(old, document(event(WithDefault)))
    compare(document(event(WithDefault)), old)
