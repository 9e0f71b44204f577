"""Compression around another codec."""

from __future__ import annotations

import gzip
import zlib
from typing import Any

import msgspec
import pytest
import zstandard
from tests.support.envelopes import STAMP, make_raw, there_and_back, wire_headers

from matador.codec import CompressedCodec, HeaderCodec, JsonCodec, MessagePackCodec
from matador.codec.compressed import Algorithm
from matador.errors import ConfigurationError, DecodeError, MessageTooLargeError
from matador.model.envelope import ROOM_FOR_ERRORS

each_algorithm = pytest.mark.parametrize("algorithm", ["gzip", "zstd"])
LONG = make_raw(b'"' + b"x" * 5000 + b'"')


@each_algorithm
def test_a_long_body_shrinks_and_arrives(algorithm: Algorithm) -> None:
    codec = CompressedCodec(JsonCodec(), algorithm)
    encoded = codec.encode(LONG)
    assert len(encoded.body) < 1000
    assert encoded.headers["content-encoding"] == algorithm
    assert there_and_back(codec, LONG) == LONG


@each_algorithm
def test_a_short_body_is_left_alone(algorithm: Algorithm) -> None:
    codec = CompressedCodec(JsonCodec(), algorithm, threshold=1024)
    assert codec.encode(make_raw()) == JsonCodec().encode(make_raw())


@each_algorithm
def test_the_threshold_is_the_first_size_that_is_compressed(algorithm: Algorithm) -> None:
    size = len(JsonCodec().encode(make_raw()).body)
    at = CompressedCodec(JsonCodec(), algorithm, threshold=size).encode(make_raw())
    above = CompressedCodec(JsonCodec(), algorithm, threshold=size + 1).encode(make_raw())
    assert "content-encoding" in at.headers
    assert "content-encoding" not in above.headers


def test_either_algorithm_and_plain_bodies_are_read_whatever_the_codec_writes() -> None:
    for reader in (CompressedCodec(JsonCodec(), "gzip"), CompressedCodec(JsonCodec(), "zstd")):
        for writer in (
            CompressedCodec(JsonCodec(), "gzip"),
            CompressedCodec(JsonCodec(), "zstd"),
            JsonCodec(),
        ):
            encoded = writer.encode(LONG)
            assert reader.decode(encoded.body, {}, STAMP) == LONG


@each_algorithm
def test_headers_of_the_inner_codec_stay(algorithm: Algorithm) -> None:
    encoded = CompressedCodec(HeaderCodec(), algorithm, threshold=0).encode(LONG)
    assert encoded.headers["x-matador-event-key"] == "order.placed"
    assert encoded.headers["content-encoding"] == algorithm


def test_gzip_bytes_are_the_same_every_time() -> None:
    codec = CompressedCodec(JsonCodec(), "gzip")
    assert codec.encode(LONG) == codec.encode(LONG)
    assert codec.encode(LONG).body[4:8] == b"\0\0\0\0"  # no time in it


@each_algorithm
def test_nothing_is_inflated_beyond_the_limit(algorithm: Algorithm) -> None:
    bomb = CompressedCodec(JsonCodec(), algorithm).encode(make_raw(b'"' + b"x" * 10_000_000 + b'"'))
    assert len(bomb.body) < 20_000
    with pytest.raises(DecodeError, match="exceeds the limit of 66,536 bytes"):
        CompressedCodec(JsonCodec(), max_size=1000).decode(bomb.body, {}, STAMP)


@each_algorithm
def test_a_body_of_the_limit_and_the_room_for_errors_is_inflated(algorithm: Algorithm) -> None:
    long = make_raw(b'"' + b"x" * 2 * ROOM_FOR_ERRORS + b'"')
    limit = len(JsonCodec().encode(long).body) - ROOM_FOR_ERRORS
    body = CompressedCodec(JsonCodec(), algorithm).encode(long).body
    assert CompressedCodec(JsonCodec(), max_size=limit).decode(body, {}, STAMP) == long
    with pytest.raises(DecodeError, match="limit"):
        CompressedCodec(JsonCodec(), max_size=limit - 1).decode(body, {}, STAMP)


def test_what_could_not_be_inflated_is_not_sent_but_a_retry_of_it_is() -> None:
    size = len(JsonCodec().encode(LONG).body)
    assert CompressedCodec(JsonCodec(), max_size=size).encode(LONG)
    small = CompressedCodec(JsonCodec(), max_size=size - 1)
    with pytest.raises(MessageTooLargeError, match="before compression") as caught:
        small.encode(LONG)
    assert (caught.value.size, caught.value.limit) == (size, size - 1)
    fits = CompressedCodec(JsonCodec(), max_size=size)
    texts = {"first_error": "\x01" * 4000, "last_error": "\x01" * 4000}
    retried = msgspec.structs.replace(
        LONG, docket=msgspec.structs.replace(LONG.docket, attempts=2, **texts)
    )
    assert fits.decode(fits.encode(retried).body, {}, STAMP) == retried


def damaged_gzip() -> list[bytes]:
    whole = gzip.compress(JsonCodec().encode(LONG).body)
    wrong_sum = whole[:-8] + zlib.crc32(b"else").to_bytes(4, "little") + whole[-4:]
    return [whole[:-1], whole[:12], whole[:2], wrong_sum, b"\x1f\x8b" + b"\xff" * 50]


@pytest.mark.parametrize("body", damaged_gzip(), ids=len)
def test_damaged_gzip_is_a_decode_error(body: bytes) -> None:
    with pytest.raises(DecodeError, match="gzip"):
        CompressedCodec().decode(body, {}, STAMP)


def damaged_zstd() -> list[bytes]:
    whole = zstandard.compress(JsonCodec().encode(LONG).body)
    return [whole[:-1], whole[:8], whole[:4], whole[:4] + b"\xff" * 50]


@pytest.mark.parametrize("body", damaged_zstd(), ids=len)
def test_damaged_zstd_is_a_decode_error(body: bytes) -> None:
    with pytest.raises(DecodeError):
        CompressedCodec().decode(body, {}, STAMP)


def test_bytes_after_the_end_of_zstd_are_a_decode_error() -> None:
    body = zstandard.compress(JsonCodec().encode(LONG).body) + b"more"
    with pytest.raises(DecodeError):
        CompressedCodec().decode(body, {}, STAMP)


@pytest.mark.parametrize(
    "options", [{"algorithm": "rar"}, {"threshold": -1}, {"threshold": 1.5}, {"max_size": 0}]
)
def test_options_are_checked(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="CompressedCodec"):
        CompressedCodec(JsonCodec(), **options)


def test_payloads_are_left_to_the_inner_codec() -> None:
    inner = MessagePackCodec()
    assert CompressedCodec(inner).content_type == inner.content_type


def test_an_older_body_can_be_compressed_too() -> None:
    older = b'{"key":"user.created","targetSubscriber":"send-email","data":1}'
    envelope = CompressedCodec(HeaderCodec()).decode(gzip.compress(older), wire_headers(), STAMP)
    assert envelope.docket.event_key == "user.created"


@each_algorithm
def test_the_smallest_limits_are_allowed(algorithm: Algorithm) -> None:
    codec = CompressedCodec(JsonCodec(), algorithm, threshold=0, max_size=1)
    assert "content-encoding" not in JsonCodec().encode(make_raw()).headers
    with pytest.raises(MessageTooLargeError):
        codec.encode(make_raw())
