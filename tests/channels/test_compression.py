"""Compressed messages: read whatever arrives, and never unpack more than allowed."""

from __future__ import annotations

import gzip

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matador.channels.compression import ENCODING, compressed, decompressed
from matador.model.message import Delivery
from matador.testing import make_delivery


def arrived(body: bytes, encoding: str | int = "gzip") -> Delivery:
    return make_delivery(body, headers={ENCODING: encoding})


@given(st.binary(max_size=1000))
def test_what_is_compressed_is_read_back(body: bytes) -> None:
    packed, headers = compressed(body, {"mine": "yes"})
    assert headers == {"mine": "yes", ENCODING: "gzip"}
    assert gzip.decompress(packed) == body, "any program can read it"
    assert decompressed(arrived(packed), 1000).body == body


def test_a_plain_message_stays_as_it_is() -> None:
    delivery = make_delivery(b"{}")
    assert decompressed(delivery, 10) is delivery


@pytest.mark.parametrize(
    ("body", "encoding", "problem"),
    [
        (b"{}", "gzip", "cannot be decompressed"),
        (b"", "gzip", "ends too soon"),
        (gzip.compress(b"x" * 50, mtime=0)[:-9], "gzip", "ends too soon"),
        (gzip.compress(b"{}", mtime=0) + b"{}", "gzip", "something follows"),
        (gzip.compress(b"{}", mtime=0) * 2, "gzip", "something follows"),
        (gzip.compress(b"x" * 101, mtime=0), "gzip", "more than 100 bytes"),
        (gzip.compress(b"\0" * 50_000_000, mtime=0), "gzip", "more than 100 bytes"),
        (b"{}", "br", "unknown content encoding 'br'"),
        (b"{}", 7, "unknown content encoding '7'"),
    ],
    ids=["no gzip", "empty", "cut", "more", "twice", "too large", "bomb", "unknown", "no text"],
)
def test_what_cannot_be_read_is_a_problem(body: bytes, encoding: str | int, problem: str) -> None:
    delivery = arrived(body, encoding)
    found = decompressed(delivery, 100)
    assert problem in (found.problem or "")
    assert found.body == body, "kept as it arrived"


@given(st.binary(max_size=200))
def test_reading_never_raises(body: bytes) -> None:
    decompressed(arrived(body), 100)
