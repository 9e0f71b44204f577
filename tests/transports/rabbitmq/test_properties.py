"""Properties of any bytes are read: what is odd is left out, and nothing raises."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from struct import pack
from typing import Any, cast

import pika
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.raw_rabbitmq import VALUES, entry, field, long, nested, properties, short

from matador.transports.rabbitmq import frames as amqp
from matador.transports.rabbitmq import wire
from matador.transports.rabbitmq.frames import read_properties
from matador.transports.rabbitmq.wire import IncomingProperties

TEXT = field(b"text", b"S", long(b"kept"))
DEEP = 5_000


def read(*fields: bytes) -> tuple[dict[str, Any], str | None]:
    headers, _, _, _, problem = read_properties(properties(b"".join(fields)))
    return headers, problem


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        (b"t", b"\1", True),
        (b"b", b"\xff", -1),
        (b"B", b"\xff", 255),
        (b"s", b"\xff\xfe", -2),
        (b"u", b"\xff\xfe", 65534),
        (b"I", b"\xff\xff\xff\xfb", -5),
        (b"i", b"\xff\xff\xff\xfb", 4294967291),
        (b"l", pack(">q", -(1 << 63)), -(1 << 63)),
        (b"L", pack(">q", 5), 5),
        (b"S", long("ü".encode()), "ü"),
    ],
)
def test_texts_and_whole_numbers_are_read(kind: bytes, value: bytes, expected: object) -> None:
    assert read(field(b"n", kind, value), TEXT) == ({"n": expected, "text": "kept"}, None)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (b"f", pack(">f", float("nan"))),
        (b"d", pack(">d", float("inf"))),
        (b"D", b"\xff" * 5),
        (b"T", pack(">Q", 1_794_769_357_436)),
        (b"T", b"\xff" * 8),
        (b"V", b""),
        (b"x", long(b"\0\xff")),
        (b"A", long(b"I\0\0\0\1")),
        (b"F", long(field(b"a", b"V", b""))),
        (b"S", long(b"\xff")),
    ],
)
def test_what_is_odd_is_left_out_and_its_neighbours_are_read(kind: bytes, value: bytes) -> None:
    assert read(field(b"odd", kind, value), TEXT) == ({"text": "kept"}, None)


@pytest.mark.parametrize("kind", [b"F", b"A"])
def test_no_depth_is_too_deep(kind: bytes) -> None:
    assert read(field(b"x-death", kind, nested(DEEP, kind)), TEXT)[0]["text"] == "kept"
    assert read(field(b"odd", kind, nested(DEEP, kind)), TEXT) == ({"text": "kept"}, None)


def test_deaths_in_deaths_are_not_followed() -> None:
    value = b""
    for _ in range(3_000):
        value = long(b"F" + long(field(b"x-death", b"A", value or long(b""))))
    headers, problem = read(field(b"x-death", b"A", value))
    assert (headers, problem) == ({"x-death": [{}]}, None)


def test_names_that_are_no_text_are_left_out() -> None:
    numbers = field(b"\xff", b"I", b"\0\0\0\1") + field(b"x-matador-\xff", b"I", b"\0\0\0\1")
    assert read(field(b"\xff\xfe", b"S", long(b"x")), numbers, TEXT) == ({"text": "kept"}, None)


def test_of_two_fields_of_one_name_the_first_counts() -> None:
    # The broker writes its count over the first of that name; a sender may have sent two.
    mine = field(b"x-delivery-count", b"l", pack(">q", 4))
    forged = field(b"x-delivery-count", b"l", pack(">q", -100))
    assert IncomingProperties(properties(mine + forged), redelivered=True).deliveries == 4


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        (
            field(b"x-matador-subscriber", b"S", long(b"\xff")),
            "header 'x-matador-subscriber': not valid UTF-8",
        ),
        (field(b"new", b"?", b"1234"), "header 'new': unknown type '?'"),
        (field(b"cut", b"S", pack(">I", 99) + b"x"), "the headers end too soon"),
        (field(b"cut", b"I", b"\0"), "the headers end too soon"),
        (b"\xff", "the headers end too soon"),
    ],
)
def test_what_matters_is_a_problem(fields: bytes, problem: str) -> None:
    headers, found = read(TEXT, fields)
    assert found == problem
    assert headers["text"] == "kept"
    assert IncomingProperties(properties(TEXT + fields), redelivered=False).problem == problem


@pytest.mark.parametrize("given", [b"", b"\0", b"\x80\0", b"\x00\x40\0"])
def test_properties_that_end_too_soon_are_a_problem(given: bytes) -> None:
    assert IncomingProperties(given, redelivered=False).problem == "the properties end too soon"


def every_reader(given: bytes) -> None:
    incoming = IncomingProperties(given, redelivered=True)
    assert all(isinstance(value, str | int) for value in incoming.headers.values())
    assert 0 <= incoming.deliveries <= 1_000_000
    wire.id_of(given)
    for made in (
        wire.copy_of(given, 3, 1 << 30, "guest"),
        wire.raw_letter(given, "why", 5, 1 << 30, "guest"),
        wire.bare_letter(given, "why", 5),
    ):
        again = amqp.split_properties(made)
        assert again[amqp.DELIVERY_MODE] == b"\2"
        assert amqp.join_properties(again) == made, "whole, and nothing behind it"


@given(st.binary(max_size=200))
def test_any_bytes_are_read_and_copied(given: bytes) -> None:
    every_reader(given)
    every_reader(properties(given))


@given(st.integers(0, 1 << 32), st.data())
def test_spoiled_entries_are_read_and_copied(seed: int, data: st.DataObject) -> None:
    _, given, _ = entry(Random(seed))
    every_reader(given)
    if given:
        place = data.draw(st.integers(0, min(len(given) - 1, 500)))
        every_reader(given[:place] + data.draw(st.binary(max_size=3)) + given[place + 1 :])
        every_reader(given[:place])


# -- copies ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", [kind for kind in VALUES if kind != "an unknown type"])
def test_a_raw_letter_keeps_every_type_byte_for_byte(what: str) -> None:
    odd = field(b"x-odd", *VALUES[what](Random(1)))
    letter = wire.raw_letter(properties(TEXT + odd), "why", 5, 1 << 30, "guest")
    fields = amqp.split_table(amqp.split_properties(letter)[amqp.HEADERS])
    assert [one for name, one in fields if name in (b"text", b"x-odd")] == [TEXT, odd]


def test_what_follows_an_unknown_type_is_kept_too() -> None:
    odd = field(b"x-odd", b"?", b"1234") + TEXT
    letter = wire.raw_letter(properties(odd), "why", 5, 1 << 30, "guest")
    assert odd in letter


def decoded(given: bytes) -> Any:
    made = pika.BasicProperties()
    cast("Any", made).decode(given)
    return made


EVERY = {
    "content_type": short(b"text/plain"),
    "content_encoding": short(b"gzip"),
    "delivery_mode": b"\1",
    "priority": b"\7",
    "correlation_id": short(b"c"),
    "reply_to": short(b"r"),
    "expiration": short(b"5000"),
    "message_id": short(b"m"),
    "timestamp": pack(">Q", 1_794_769_357),
    "type": short(b"T"),
    "user_id": short(b"guest"),
    "app_id": short(b"a"),
    "cluster_id": short(b"cl"),
}


def test_a_raw_letter_keeps_all_properties_but_the_time_to_live() -> None:
    # Dead letters survive a restart, and do not run out, whatever the sender wanted.
    letter = decoded(wire.raw_letter(properties(TEXT, **EVERY), "why", 5, 1 << 30, "guest"))
    assert letter.headers == {"text": "kept", "x-matador-dead-letter-reason": "why"}
    assert (letter.delivery_mode, letter.expiration, letter.priority) == (2, None, 7)
    assert (letter.content_type, letter.content_encoding) == ("text/plain", "gzip")
    assert (letter.correlation_id, letter.reply_to, letter.message_id) == ("c", "r", "m")
    assert (letter.type, letter.app_id, letter.cluster_id) == ("T", "a", "cl")
    assert (letter.user_id, letter.timestamp) == ("guest", 1_794_769_357)


def test_a_copy_that_is_given_back_keeps_its_time_to_live() -> None:
    copy = decoded(wire.copy_of(properties(TEXT, **EVERY), 2, 1 << 30, "guest"))
    assert (copy.expiration, copy.delivery_mode) == ("5000", 2)
    assert copy.headers == {"text": "kept", "x-matador-deliveries": 2}


@pytest.mark.parametrize("copy", [wire.copy_of, wire.raw_letter])
def test_what_the_broker_would_refuse_or_do_again_is_left_out(copy: Callable[..., bytes]) -> None:
    to_others = field(b"CC", b"A", long(b"S" + long(b"elsewhere")))
    given = properties(to_others + TEXT, user_id=short(b"somebody"))
    arguments = ("why", 5) if copy is wire.raw_letter else (0,)
    made = decoded(copy(given, *arguments, 1 << 30, "guest"))
    assert made.user_id is None, "406 for whoever is somebody else"
    assert "CC" not in made.headers, "or it would go there once more"


def test_a_bare_letter_has_nothing_of_the_sender_but_the_type_of_the_body() -> None:
    letter = decoded(wire.bare_letter(properties(TEXT, **EVERY), "w" * 9_000, 1_794_769_357_436))
    assert (letter.content_type, letter.delivery_mode) == ("text/plain", 2)
    assert letter.timestamp == 1_794_769_357_436
    assert list(letter.headers) == ["x-matador-dead-letter-reason"]
    assert letter.message_id is letter.type is letter.user_id is letter.priority is None
    worst = properties(None, content_type=short(b"\xff" * 255))
    assert len(wire.bare_letter(worst, "😀" * 9_000, 5)) < 4096 - 20
