"""Frames made by hand are those that pika makes, and are read as pika reads them."""

from __future__ import annotations

from typing import Any, cast

import pika
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pika import spec
from pika.frame import Body, Method, decode_frame

from matador.transports.rabbitmq import frames
from matador.transports.rabbitmq.frames import (
    read_properties,
    short_text,
    write_properties,
    write_table,
)

NAMES = st.text(max_size=40).filter(lambda name: len(name.encode()) < 256)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=200)
VALUES = TEXTS | st.booleans() | st.integers(-(1 << 63), (1 << 63) - 1)
TABLES = st.dictionaries(NAMES, VALUES, max_size=8)


def marshalled(method: Any) -> bytes:
    return cast("bytes", cast("Any", Method(7, method)).marshal())


def test_publish_ack_nack_and_get_are_as_pika_makes_them() -> None:
    assert frames.publish_frame(7, "x", "k", mandatory=True) == marshalled(
        spec.Basic.Publish(exchange="x", routing_key="k", mandatory=True)
    )
    assert frames.ack_frame(7, 1 << 40, multiple=True) == marshalled(
        spec.Basic.Ack(1 << 40, multiple=True)
    )
    assert frames.requeue_frame(7, 3) == marshalled(
        spec.Basic.Nack(3, multiple=False, requeue=True)
    )
    assert frames.get_frame(7, "q") == marshalled(spec.Basic.Get(queue="q", no_ack=False))


@given(TABLES, TEXTS.filter(lambda text: len(text.encode()) < 256), st.none() | st.integers(0, 9))
def test_properties_are_read_as_they_were_written(
    table: dict[str, Any], message_id: str, priority: int | None
) -> None:
    written = write_properties(
        headers=write_table(table),
        message_id=message_id,
        timestamp=1794769357436,
        content_type=short_text("application/json"),
        priority=priority,
    )
    by_pika = pika.BasicProperties()
    cast("Any", by_pika).decode(written)
    assert by_pika.headers == table
    assert (by_pika.message_id, by_pika.priority) == (message_id, priority)
    assert (by_pika.content_type, by_pika.delivery_mode) == ("application/json", 2)
    assert by_pika.timestamp == 1794769357436
    assert read_properties(written) == (table, priority, message_id, 1794769357436, None)


@given(st.binary(max_size=300), st.integers(20, 64))
def test_a_body_is_cut_to_the_size_of_frames(body: bytes, frame_max: int) -> None:
    data = frames.content_frames(7, b"\0\0", body, frame_max)
    pieces: list[bytes] = []
    sizes: list[int] = []
    while data:
        size, frame = cast("tuple[int, Any]", decode_frame(data))
        if isinstance(frame, Body):
            pieces.append(frame.fragment)
            sizes.append(size)
        else:
            assert frame.body_size == len(body)
        data = data[size:]
    assert b"".join(pieces) == body
    assert all(size <= frame_max for size in sizes)


@pytest.mark.parametrize("value", [1 << 63, -(1 << 63) - 1])
def test_a_number_that_does_not_fit_is_refused(value: int) -> None:
    with pytest.raises(ValueError, match="does not fit"):
        write_table({"n": value})


def test_a_name_that_is_too_long_is_refused() -> None:
    with pytest.raises(ValueError, match="at most 255"):
        short_text("ü" * 128)
