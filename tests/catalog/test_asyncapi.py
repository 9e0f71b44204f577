"""AsyncAPI documents: valid by AsyncAPI's own schema, whatever the payloads are."""

from __future__ import annotations

import json
from dataclasses import make_dataclass, replace
from pathlib import Path
from typing import Any

import jsonschema
import pydantic
import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st
from tests.support import payloads
from tests.support.payloads import DataclassOrder

from matador.catalog.asyncapi import asyncapi
from matador.catalog.contents import Catalogue, Kind, MessageType, Receiver, Wire
from matador.catalog.html_page import html_page
from matador.catalog.yaml_text import yaml_text
from matador.model.event import EventType, event_type_of, is_event

SCHEMA = Path(__file__).parents[1] / "support" / "asyncapi" / "3.0.0.json"
VALIDATOR: Any = jsonschema.Draft7Validator(json.loads(SCHEMA.read_text()))
EVENTS: list[EventType] = [
    event_type_of(one) for one in vars(payloads).values() if isinstance(one, type) and is_event(one)
]


def problems(document: Any) -> list[str]:
    plain = json.loads(json.dumps(document))  # what a reader of the file gets
    return [f"{one.json_path}: {one.message[:200]}" for one in VALIDATOR.iter_errors(plain)]


def catalogue(*messages: MessageType, address: str = "shop.events") -> Catalogue:
    receivers = tuple(Receiver("handle", "Handle it.", one, address) for one in messages)
    return Catalogue("shop", "1.0", messages, receivers)


def event(key: str, payload: Any) -> MessageType:
    return MessageType("event", key, "Something happened.", payload, wire="envelope")


def test_the_schema_is_that_of_asyncapi_and_finds_faults() -> None:
    document, _ = asyncapi(catalogue(event("a", DataclassOrder)))
    assert problems(document) == []
    for key in ("asyncapi", "info"):
        assert problems({name: one for name, one in document.items() if name != key})
    operations = {"x": {"action": "shout", "channel": {"$ref": "#/channels/shop.events"}}}
    assert problems({**document, "operations": operations})


@pytest.mark.parametrize("wire", ["envelope", "headers"])
@pytest.mark.parametrize("kind", EVENTS, ids=lambda one: one.key)
def test_every_kind_of_payload_is_described(kind: EventType, wire: Wire) -> None:
    message = MessageType("event", kind.key, kind.description, kind.payload, wire=wire)
    document, unknown = asyncapi(catalogue(message))
    assert unknown == []
    assert problems(document) == []
    text = json.dumps(document["components"])
    for field in ("order_id", "placed_at"):
        assert f'"{field}"' in text
    written = document["components"]["messages"][kind.key]
    assert ("headers" in written) == (wire == "headers")


@pytest.mark.parametrize("wire", ["envelope", "headers"])
@pytest.mark.parametrize("kind", EVENTS, ids=lambda one: one.key)
def test_every_kind_of_metadata_is_described(kind: EventType, wire: Wire) -> None:
    message = MessageType(
        "event", "a", "Something happened.", object, wire=wire, metadata=kind.payload
    )
    document, unknown = asyncapi(catalogue(message))
    assert unknown == []
    assert problems(document) == []
    fields = document["components"]["messages"]["a"]["payload"]["properties"]
    if wire == "envelope":
        docket, fields = fields["docket"]["allOf"][0], fields["docket"]["allOf"][1]["properties"]
        assert docket["$ref"].endswith("/matador.Docket")
    name = fields["metadata"]["$ref"].rpartition("/")[2]
    assert "placed_at" in document["components"]["schemas"][name]["properties"]


@pytest.mark.parametrize("kind", ["job", "command", "message"])
def test_replies_and_messages_of_other_kinds(kind: Kind) -> None:
    message = MessageType(kind, "maths/ADD", "Add.", dict[str, int])
    reply = MessageType("reply", "maths/ADD", "The sum.", int)
    receiver = Receiver("add", "Add numbers.", message, "maths", reply=reply)
    document, _ = asyncapi(Catalogue("t", "1", (message,), (receiver,)))
    assert problems(document) == []
    (operation,) = document["operations"].values()
    assert operation["action"] == "receive"
    named = operation["reply"]["messages"][0]["$ref"].rpartition("/")[2]
    assert document["components"]["messages"][named]["payload"] == {"type": "integer"}


def test_a_subscriber_elsewhere_is_sent_to_and_not_received() -> None:
    message = MessageType("event", "order.placed", "An order.", DataclassOrder)
    here = Receiver("charge", "Charge.", message, "shop.billing", details={"idempotent": "yes"})
    there = Receiver("ship", "Ship.", message, "shop.parcels", elsewhere=True)
    document, _ = asyncapi(Catalogue("shop", "1", (message,), (here, there)))
    assert problems(document) == []
    actions = {name: one["action"] for name, one in document["operations"].items()}
    assert actions == {
        "handle.order.placed.charge": "receive",
        "send.order.placed.shop.billing": "send",
        "send.order.placed.shop.parcels": "send",
    }
    send = document["operations"]["send.order.placed.shop.parcels"]
    assert send["x-matador-handled-elsewhere"] == ["ship"]
    assert document["operations"]["handle.order.placed.charge"]["x-matador-idempotent"] == "yes"


def test_different_types_of_one_name_stay_apart_and_the_same_type_is_there_once() -> None:
    one = make_dataclass("Line", [("sku", str)])
    other = make_dataclass("Line", [("number", int)])
    with_one, with_other = (
        make_dataclass("One", [("line", one)]),
        make_dataclass("Two", [("line", other)]),
    )
    kinds = (with_one, with_other, with_one)
    messages = [event(f"e{number}", kind) for number, kind in enumerate(kinds)]
    document, _ = asyncapi(catalogue(*messages))
    schemas = document["components"]["schemas"]
    assert set(schemas) == {"One", "Two", "Line", "Line2", "matador.Docket"}
    assert schemas["One"]["properties"]["line"] == {"$ref": "#/components/schemas/Line"}
    assert schemas["Two"]["properties"]["line"] == {"$ref": "#/components/schemas/Line2"}
    assert list(schemas["Line2"]["properties"]) == ["number"]


class Node(pydantic.BaseModel):
    value: int
    children: list[Node] = []


def test_a_model_that_refers_to_itself() -> None:
    document, unknown = asyncapi(catalogue(event("tree", Node)))
    assert (unknown, problems(document)) == ([], [])
    assert document["components"]["schemas"]["Node"]["properties"]["children"]["items"] == {
        "$ref": "#/components/schemas/Node"
    }
    assert "children" in html_page(document)


def test_a_type_without_a_schema_is_named_and_accepts_everything() -> None:
    class Odd:
        pass

    document, unknown = asyncapi(catalogue(MessageType("job", "q/j", "d", Odd)))
    assert len(unknown) == 1
    assert "Odd" in unknown[0]
    assert problems(document) == []


names = st.text(min_size=1, max_size=30).filter(lambda text: text.isprintable())


@given(st.lists(names, min_size=1, max_size=4, unique=True), names)
def test_any_names_give_a_valid_document_in_which_nothing_is_lost(
    keys: list[str], address: str
) -> None:
    messages = [event(key, dict[str, Any]) for key in keys]
    document, _ = asyncapi(catalogue(*messages, address=address))
    assert problems(document) == []
    written = document["components"]["messages"].values()
    assert [one["x-matador-key"] for one in written] == keys
    assert len([one for one in document["operations"].values() if one["action"] == "send"]) == len(
        keys
    )


def test_the_page_shows_everything_and_texts_stay_texts() -> None:
    hostile = "<script>alert(1)</script>"
    message = MessageType(
        "event", f"order.{hostile}", hostile, DataclassOrder, (hostile,), "envelope"
    )
    receiver = Receiver(hostile, hostile, message, hostile, details={"note": hostile})
    document, _ = asyncapi(replace(catalogue(message), receivers=(receiver,)))
    page = html_page(document)
    assert "<script" not in page
    assert page.count("&lt;script&gt;") >= 6
    for field in ("order_id", "lines[].sku", "Required"):
        assert field in page


data = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
)


@given(data)
@example({"": None, "\u2028": "\u2029\x85"})
def test_yaml_is_read_as_it_was_written(value: Any) -> None:
    plain = json.loads(json.dumps(value, allow_nan=False)) if _finite(value) else None
    # YAML 1.1, which PyYAML reads, takes 1e16 for a text.
    assert yaml.safe_load(yaml_text(_no_floats(plain))) == _no_floats(plain)


def _finite(value: Any) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except ValueError:
        return False
    return True


def _no_floats(value: Any) -> Any:
    if isinstance(value, float):
        return int(value)
    if isinstance(value, list):
        return [_no_floats(one) for one in value]  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, dict):
        return {key: _no_floats(one) for key, one in value.items()}  # pyright: ignore[reportUnknownVariableType]
    return value
