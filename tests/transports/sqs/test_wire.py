"""How messages are written to SQS and read back."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matador.errors import MessageTooLargeError, UnstorableError
from matador.model.message import REASON_HEADER, Message, Properties
from matador.transports.sqs.wire import (
    LARGEST,
    Attributes,
    bare,
    copied,
    read,
    size_of,
    written,
)

LEGAL = re.compile("[\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]+")


def ours(attributes: Attributes) -> dict[str, Any]:
    return json.loads(attributes["matador"]["StringValue"])


def test_text_is_written_as_it_is_and_the_rest_in_one_attribute() -> None:
    message = Message("m-1", "q", '{"a":"é"}'.encode(), {"x": "1", "n": 2}, 0.0, 5, "key")
    entry = written(message)
    assert entry.body == '{"a":"é"}'
    assert list(entry.attributes) == ["matador"]
    assert ours(entry.attributes) == {
        "id": "m-1",
        "headers": {"x": "1", "n": 2},
        "priority": 5,
        "orderingKey": "key",
    }


@pytest.mark.parametrize(
    "body", [b"", b"\x00", b"\xff\xfe", "a\uffffb".encode(), bytes(range(256))]
)
def test_what_sqs_does_not_take_is_encoded(body: bytes) -> None:
    entry = written(Message("m", "q", body))
    assert LEGAL.fullmatch(entry.body)
    assert read(entry.body, entry.attributes).body == body


def test_the_attributes_of_a_job_are_native() -> None:
    headers = {"job.id": "j1", "job.name": "mail", "job.maxAttempts": 3, "job.createdAt": 1700}
    none = float("0")  # not the default's own object
    entry = written(Message("j1", "q", b'{"_jobData":1}', headers), later=none)
    assert entry.attributes == {
        "job.id": {"DataType": "String", "StringValue": "j1"},
        "job.name": {"DataType": "String", "StringValue": "mail"},
        "job.maxAttempts": {"DataType": "Number", "StringValue": "3"},
        "job.createdAt": {"DataType": "Number", "StringValue": "1700"},
    }
    content = read(entry.body, entry.attributes)
    assert content.headers == headers
    assert content.id == "j1"


@pytest.mark.parametrize(
    "odd", [{"job.id": ""}, {"job.maxAttempts": "3"}, {"job.name": "a\0b"}, {"job.id": 7}]
)
def test_odd_headers_of_a_job_are_kept_all_the_same(odd: dict[str, str | int]) -> None:
    entry = written(Message("m", "q", b"x", odd))
    assert read(entry.body, entry.attributes).headers == odd


def test_foreign_attributes_become_headers() -> None:
    attributes: Attributes = {
        "text": {"DataType": "String.json", "StringValue": "{}"},
        "whole": {"DataType": "Number.int", "StringValue": "-12"},
        "broken": {"DataType": "Number", "StringValue": "1.5"},
        "huge": {"DataType": "Number", "StringValue": "9" * 30},
        "bytes": {"DataType": "Binary", "BinaryValue": b"\x00\xff"},
        "nothing": {},
    }
    content = read("hello", attributes, "group")
    assert content.headers == {
        "text": "{}",
        "whole": -12,
        "broken": "1.5",
        "huge": "9" * 30,
        "bytes": "AP8=",
        "nothing": "",
    }
    assert (content.body, content.ordering_key, content.problem) == (b"hello", "group", None)


def test_a_foreign_message_is_copied_as_it_is_if_there_is_room() -> None:
    def attributes(count: int) -> Attributes:
        return {f"a{one}": {"DataType": "String", "StringValue": "x"} for one in range(count)}

    assert copied(attributes(10), delay=0.0, deliveries=0) == attributes(10)
    few = copied(attributes(9), delay=0.0, deliveries=1)
    assert few is not None
    assert len(few) == 10
    assert copied(attributes(10), delay=0.0, deliveries=1) is None


@pytest.mark.parametrize("text", ["{", "[]", '{"id":7}', '{"headers":{"a":[]}}', '{"delay":"x"}'])
def test_an_attribute_that_is_not_ours_is_a_problem_and_no_error(text: str) -> None:
    content = read("body", {"matador": {"DataType": "String", "StringValue": text}})
    assert content.body == b"body"
    assert content.problem is not None


def test_a_body_that_is_not_base64_is_a_problem_and_kept() -> None:
    marked = {"matador": {"DataType": "String", "StringValue": '{"encoding":"base64"}'}}
    content = read("not base64!", marked)
    assert content.body == b"not base64!"
    assert content.problem is not None


header_values = st.text(max_size=20) | st.integers(-(2**63), 2**63 - 1)
messages = st.builds(
    Message,
    id=st.text(max_size=20),
    queue=st.just("q"),
    body=st.binary(max_size=50) | st.text(max_size=50).map(lambda text: text.encode()),
    headers=st.dictionaries(st.text(max_size=10), header_values, max_size=5),
    priority=st.none() | st.integers(-(2**63), 2**63 - 1),
    ordering_key=st.none() | st.text(max_size=200),
    properties=st.none() | st.builds(Properties, reply_to=st.text(max_size=10)),
)


@given(messages, st.floats(0, 1e9))
def test_every_message_comes_back_as_it_was(message: Message, later: float) -> None:
    try:
        entry = written(message, later=later)
    except UnstorableError:
        text = repr(message).encode("utf-8", "surrogatepass")
        assert b"\xed" in text, "only lone surrogates cannot be written"
        return
    for attribute in entry.attributes.values():
        assert LEGAL.fullmatch(attribute["StringValue"])
    assert LEGAL.fullmatch(entry.body)
    content = read(entry.body, entry.attributes)
    assert content.problem is None
    assert (content.body, content.headers) == (message.body, message.headers)
    assert (content.priority, content.delay) == (message.priority, later)
    assert content.ordering_key == message.ordering_key
    assert content.properties == message.properties
    attributes = copied(entry.attributes, delay=0.0, deliveries=3)
    assert attributes is not None
    copy = read(entry.body, attributes)
    assert (copy.delay, copy.deliveries, copy.headers) == (0.0, 3, message.headers)


def test_headers_and_names_count_against_the_limit() -> None:
    assert size_of({"ab": {"DataType": "String", "StringValue": "é"}}) == 2 + 6 + 2
    room = LARGEST - written(Message("m", "q", b"")).size
    fitting = Message("m", "q", b"x" * (room - 100))
    assert written(fitting).size <= LARGEST
    with pytest.raises(MessageTooLargeError, match="262,144"):
        written(Message("m", "q", b"x" * (room - 100), {"h": "y" * 200}))


@pytest.mark.parametrize("reason", ["why", "", "x" * 300_000, "\udcff", "a\0b"])
@pytest.mark.parametrize("size", [10, LARGEST - 50, LARGEST])
def test_a_bare_dead_letter_fits_wherever_its_body_did(reason: str, size: int) -> None:
    entry = bare("x" * size, {}, REASON_HEADER, reason)
    assert entry.size <= LARGEST
    content = read(entry.body, entry.attributes)
    assert content.body == b"x" * size
    if size == 10 and reason == "why":
        assert content.headers == {REASON_HEADER: "why"}


@pytest.mark.parametrize(
    "message",
    [
        Message("half \ud800", "q", b"{}"),
        Message("1", "q", b"{}", properties=Properties(correlation_id="half \ud800")),
    ],
    ids=["id", "property"],
)
def test_what_cannot_be_written_is_refused_by_name(message: Message) -> None:
    """Anything else that is raised would fail the messages that are sent together with it."""
    with pytest.raises(UnstorableError, match="surrogates not allowed"):
        written(message)
