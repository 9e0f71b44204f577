"""Mistakes in declarations are found at the start, with the file and the line."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, TypedDict

import pytest

from matador import Context, Envelope, Schema, event, subscriber
from matador.errors import ConfigurationError, InvalidSchemaError

HERE = r"test_declarations\.py:\d+"


@event("order.placed", description="An order.")
@dataclass
class Placed:
    order_id: str


@event("order.paid", description="A payment.")
@dataclass
class Paid:
    order_id: str


@event("note.written", description="A note.")
class Note(TypedDict):
    text: str


@subscriber(description="Of placed orders.")
async def of_placed(envelope: Envelope[Placed]) -> None: ...


@subscriber(description="Of both.")
async def of_both(envelope: Envelope[Placed | Paid], ctx: Context) -> None: ...


@subscriber(description="Of all.")
def of_all(envelope: Envelope[Any]) -> None: ...


@subscriber(description="Does not say.")
def of_something(envelope: Any) -> None: ...


class Callable:
    async def __call__(self, envelope: Envelope[Placed]) -> None: ...


def test_a_callback_for_another_event_is_named_with_its_place() -> None:
    with pytest.raises(
        InvalidSchemaError,
        match=rf"'of-placed': its callback takes Envelope\[Placed\], not Envelope\[Paid\].*{HERE}",
    ):
        Schema({Paid: [of_placed]}).check()
    made = subscriber(description="x", name="object")(Callable())
    with pytest.raises(InvalidSchemaError, match=rf"'object': its callback takes.*{HERE}"):
        Schema({Paid: [made]}).check()


def test_callbacks_that_fit_or_do_not_say_are_fine() -> None:
    partial = subscriber(description="x", name="partial")(functools.partial(of_placed.callback))
    Schema({Placed: [of_placed, of_both, of_all, of_something, partial]}).check()
    Schema({Paid: [of_both, of_all, of_something], Note: [of_all]}).check()


def test_a_plain_class_is_no_payload() -> None:
    @event("plain", description="Nothing in it.")
    class Plain:
        order_id: str

    with pytest.raises(InvalidSchemaError, match=rf"Plain is a plain class.*{HERE}.*dataclass"):
        Schema({Plain: []}).check()


@pytest.mark.parametrize("kind", [int, dict, object])
def test_a_plain_class_is_no_type_for_metadata(kind: type[Any]) -> None:
    @event("noted", description="Something to note.", metadata=kind)
    @dataclass(frozen=True)
    class Noted:
        order_id: str

    said = f"metadata: {kind.__name__} is a plain class.*dataclass"
    with pytest.raises(InvalidSchemaError, match=said):
        Schema({Noted: []}).check()


def test_a_wrong_signature_is_named_with_its_place() -> None:
    with pytest.raises(ConfigurationError, match=rf"its callback takes nothing.*{HERE}"):

        @subscriber(description="x")
        async def none_at_all() -> None: ...

    with pytest.raises(ConfigurationError, match=rf"`yield`.*{HERE}"):

        @subscriber(description="x")
        def generates(envelope: Envelope[Placed]) -> Any:
            yield envelope
