"""Messages as records, and back; and records that others have written."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matador.errors import MessageTooLargeError, UnstorableError
from matador.model.message import REASON_HEADER, Message, Properties
from matador.transports.kafka.wire import (
    Record,
    RecordHeaders,
    bare,
    delay_of,
    read,
    with_delay,
    with_reason,
    written,
)

_HEADERS = st.lists(st.tuples(st.text(), st.one_of(st.none(), st.binary())), max_size=8)
_OURS = ["x-matador-id", "x-matador-delay", "x-matador-priority", "x-matador-numbers"]


def test_a_message_comes_back_as_it_was() -> None:
    message = Message(
        "id-1",
        "shop.events",
        b"\x00body",
        {"text": "é", "number": -7, "digits": "42", "empty": ""},
        priority=3,
        ordering_key="k",
        properties=Properties(routing_key="a.b", expires_at=1.5),
    )
    found = read(written(message, "shop.events", delay=2.5))
    assert (found.id, found.body, found.headers) == ("id-1", b"\x00body", dict(message.headers))
    assert (found.priority, found.ordering_key, found.delay) == (3, "k", 2.5)
    assert found.properties == message.properties
    assert found.problem is None


@given(st.one_of(st.none(), st.binary()), st.one_of(st.none(), st.binary()), _HEADERS)
def test_reading_never_fails(
    value: bytes | None, key: bytes | None, headers: list[tuple[str, bytes | None]]
) -> None:
    record = Record("topic", value, key, headers)
    assert read(record).body == (value or b"")
    assert delay_of(record) >= 0


@given(st.sampled_from(_OURS), st.one_of(st.none(), st.binary()))
def test_our_own_headers_may_hold_anything(name: str, value: bytes | None) -> None:
    headers: RecordHeaders = [("plain", b"x"), (name, value)]
    found = read(Record("topic", b"", None, headers))
    assert found.headers == {"plain": "x"}
    assert 0 <= found.delay < float("inf")


@pytest.mark.parametrize(
    "odd",
    [
        {"id": "caf\udcff"},
        {"headers": {"a": "caf\udcff"}},
        {"headers": {"caf\udcff": "a"}},
        {"headers": {"a": 2**70}},
        {"headers": {"a": 1.5}},
        {"headers": {"a": True}},
        {"headers": {"x-matador-id": "mine"}},
        {"priority": 2**70},
        {"ordering_key": "caf\udcff"},
    ],
)
def test_what_cannot_be_written_is_refused_for_good(odd: dict[str, Any]) -> None:
    given: dict[str, Any] = {"id": "m", "queue": "q", "body": b"", **odd}
    with pytest.raises(UnstorableError):
        written(Message(**given), "q")


def test_a_message_over_the_limit_is_refused() -> None:
    with pytest.raises(MessageTooLargeError):
        written(Message("m", "q", b"x" * 1000), "q", limit=1000)


def test_a_dead_letter_keeps_a_foreign_record_as_it_is() -> None:
    headers: RecordHeaders = [("odd", b"\xff"), ("odd", None), (REASON_HEADER, b"old")]
    letter = with_reason(Record("q", None, b"\xff", headers), "q.undeliverable", "why")
    assert (letter.value, letter.key) == (None, b"\xff")
    assert letter.headers == [("odd", b"\xff"), ("odd", None), (REASON_HEADER, b"why")]


def test_a_bare_dead_letter_has_the_value_and_a_reason_that_fits() -> None:
    letter = bare(Record("q", b"v", b"k", [("a", b"b")]), "q.undeliverable", "\udcff" + "x" * 9000)
    assert (letter.value, letter.key, len(letter.headers)) == (b"v", None, 1)
    assert len(letter.headers[0][1] or b"") <= 1000


def test_what_is_left_of_a_delay_replaces_it() -> None:
    record = with_delay(written(Message("m", "q", b""), "q", delay=5.0), "q.delayed", 1.5, 3)
    assert delay_of(record) == 1.5
    assert record.partition == 3
    assert delay_of(with_delay(record, "q", 0.0)) == 0.0
