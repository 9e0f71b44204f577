"""Declaring events."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypedDict

import attrs
import msgspec
import pydantic
import pytest
from tests.support.payloads import KINDS, Kind

from matador.codec import JsonCodec
from matador.errors import ConfigurationError, InvalidEventError
from matador.model.event import event, event_type_of, is_event

each_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)


@each_kind
def test_the_declaration_lives_on_the_class_and_the_class_stays_what_it_was(kind: Kind) -> None:
    declared = event_type_of(kind.order)
    assert declared.payload is kind.order
    assert declared.key.startswith("order.")
    assert declared.description.startswith("An order as ")
    assert is_event(kind.order)
    assert kind.make() == kind.make()


def test_keys_are_the_key_and_the_aliases() -> None:
    @event("order.placed", description="x", aliases=["order.created", "order.new"])
    @dataclass
    class Placed:
        pass

    assert event_type_of(Placed).keys == ("order.placed", "order.created", "order.new")


def test_aliases_may_be_any_iterable() -> None:
    @event("a", description="x", aliases=(name for name in ("b", "c")))
    @dataclass
    class Placed:
        pass

    assert event_type_of(Placed).aliases == ("b", "c")


@each_kind
def test_a_subclass_of_an_event_is_not_an_event(kind: Kind) -> None:
    subclass = type("Sub", (), {}) if kind is KINDS["typeddict"] else type("Sub", (kind.order,), {})
    assert not is_event(subclass)
    with pytest.raises(InvalidEventError, match="Sub is not an event"):
        event_type_of(subclass)


def test_a_typed_dict_that_extends_an_event_is_not_an_event() -> None:
    @event("a", description="x")
    class Base(TypedDict):
        name: str

    class Extended(Base):
        more: str

    assert is_event(Base)
    assert not is_event(Extended)


def test_a_subclass_of_the_same_name_is_not_an_event() -> None:
    @event("a", description="x")
    @dataclass
    class Placed:
        name: str

    same_name = type("Placed", (Placed,), {"__qualname__": Placed.__qualname__})
    assert not is_event(same_name)


def test_a_subclass_can_be_an_event_of_its_own() -> None:
    @event("base", description="x")
    @dataclass
    class Base:
        name: str

    @event("sub", description="y")
    @dataclass
    class Sub(Base):
        more: str

    assert (event_type_of(Base).key, event_type_of(Sub).key) == ("base", "sub")


def slots_above() -> type[Any]:
    @dataclass(frozen=True, slots=True)
    @event("placed", description="x", aliases=["new"])
    class Placed:
        name: str

    return Placed


def slots_below() -> type[Any]:
    @event("placed", description="x", aliases=["new"])
    @dataclass(frozen=True, slots=True)
    class Placed:
        name: str

    return Placed


def attrs_above() -> type[Any]:
    @attrs.frozen
    @event("placed", description="x", aliases=["new"])
    class Placed:
        name: str

    return Placed


@pytest.mark.parametrize("make", [slots_above, slots_below, attrs_above])
def test_a_decorator_that_makes_a_new_class_may_stand_above_or_below(make: Any) -> None:
    placed = make()
    declared = event_type_of(placed)
    assert declared.payload is placed
    assert declared.keys == ("placed", "new")
    assert event_type_of(placed) is event_type_of(placed)
    codec = JsonCodec()
    raw = codec.encode_payload(declared, placed("x"))
    assert codec.decode_payload(declared, raw) == placed("x")


def test_the_mark_is_no_field_of_the_payload() -> None:
    codec = JsonCodec()

    @event("a", description="x")
    class Struct(msgspec.Struct):
        name: str

    @event("b", description="x")
    class Model(pydantic.BaseModel):
        name: str

    for payload in (Struct(name="x"), Model(name="x")):
        raw = codec.encode_payload(event_type_of(type(payload)), payload)
        assert bytes(raw) == b'{"name":"x"}'


@pytest.mark.parametrize("thing", [len, "text", 5, None], ids=repr)
def test_only_classes_can_be_events(thing: Any) -> None:
    with pytest.raises(ConfigurationError, match="must decorate a class"):
        event("a", description="x")(thing)


@pytest.mark.parametrize("thing", [int, dict, object, "text", 5, None], ids=repr)
def test_what_was_not_declared_is_not_an_event(thing: Any) -> None:
    assert not is_event(thing)
    with pytest.raises(InvalidEventError, match="@event"):
        event_type_of(thing)


def test_one_string_is_not_a_list_of_aliases() -> None:
    with pytest.raises(ConfigurationError, match=r"write aliases=\['order.created'\]"):
        event("order.placed", description="x", aliases="order.created")


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"key": 5, "description": "x"}, "key"),
        ({"key": "a", "description": None}, "description"),
        ({"key": "a", "description": "x", "aliases": [5]}, "alias"),
    ],
)
def test_keys_and_texts_must_be_strings(options: dict[str, Any], what: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{what} must be a string"):
        event(options.pop("key"), **options)


@pytest.mark.parametrize("metadata", [["a"], "a", 5])
def test_metadata_of_an_event_is_a_mapping_or_a_type(metadata: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"'order\.x': metadata must be a mapping or a"):
        event("order.x", description="An order.", metadata=metadata)
