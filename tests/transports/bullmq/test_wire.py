"""Messages as job data and back, without losing a byte; names, ids and priorities."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from matador.model.message import Message, Properties
from matador.transports.bullmq.wire import bull_priority, letters_of, our_priority, read, written

HEADERS = st.dictionaries(st.text(), st.text() | st.integers(-(2**53), 2**53))
VALUES = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@given(body=st.binary() | st.text().map(str.encode), headers=HEADERS)
def test_any_body_comes_back_byte_by_byte(body: bytes, headers: dict[str, str | int]) -> None:
    message = Message("m-1", "q", body, headers, priority=3, ordering_key="k")
    data = written(message)
    json.loads(data)
    content = read(data.encode(), "matador")
    assert content.body == body
    assert content.headers == headers
    assert (content.id, content.priority, content.ordering_key) == ("m-1", 3, "k")


@settings(max_examples=40)
@given(VALUES)
def test_json_is_seen_as_it_is(value: object) -> None:
    body = json.dumps({"value": value}, indent=1).encode()
    data = written(Message("m-1", "q", body))
    assert json.loads(data)["_jobData"] == {"value": value}
    assert read(data.encode(), "matador").body == body


@pytest.mark.parametrize(
    "data", [b'{"a":1}', b"[1]", b'"text"', b"7", b"", b"\xff{", b'{"_metadata":1}']
)
def test_what_is_not_wrapped_is_its_own_data(data: bytes) -> None:
    content = read(data, "order")
    assert (content.body, content.headers) == (data, {"x-bullmq-name": "order"})


def test_metadata_of_somebody_else_are_headers() -> None:
    data = b'{"_jobData":{"a":1},"_metadata":{"tenant":"x","n":3,"deep":{},"yes":true}}'
    content = read(data, "matador")
    assert (content.body, content.headers) == (b'{"a":1}', {"tenant": "x", "n": 3})


@pytest.mark.parametrize("metadata", [b"3", b'{"headers":7,"t":"x"}', b'{"encoding":"base64"}'])
def test_odd_metadata_are_no_reason_to_fail(metadata: bytes) -> None:
    data = b'{"_jobData":{"a":1},"_metadata":' + metadata + b"}"
    assert read(data, "n").body == b'{"a":1}'


@given(st.integers(-5, 3_000_000))
def test_priorities_stay_in_the_range_of_bullmq(priority: int) -> None:
    assert 1 <= bull_priority(priority) < bull_priority(None) == 2_097_152
    assert our_priority(0) is our_priority(2_097_152) is None
    assert bull_priority(our_priority(17)) == 17


def test_dead_letters_are_told_by_their_name() -> None:
    assert letters_of("shop.events.undeliverable") == ("shop.events", "undeliverable")
    assert letters_of("shop.events") is letters_of(".unhandled") is None


def test_properties_travel_beside_the_headers() -> None:
    properties = Properties(reply_to="replies.7", correlation_id="c-1", expires_at=1.5)
    message = Message("1", "q", b"{}", {"h": 1}, properties=properties)
    found = read(written(message).encode(), "matador")
    assert (found.headers, found.properties, found.problem) == ({"h": 1}, properties, None)
    plain = written(Message("1", "q", b"{}", {"h": 1}))
    assert plain == '{"_jobData":{},"_metadata":{"id":"1","headers":{"h":1}}}'
