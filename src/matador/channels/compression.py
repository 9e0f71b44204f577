"""Compressed messages: gzip, marked by a header, so that both kinds may be in one queue."""

from __future__ import annotations

import zlib

import msgspec

from matador.model.message import Delivery, Headers, Message

ENCODING = "content-encoding"
"""The header of a compressed message; its value is ``gzip``."""

_GZIP = 16 + zlib.MAX_WBITS
_LEVEL = 6


def compressed(body: bytes, headers: Headers) -> tuple[bytes, Headers]:
    """The body as gzip, and the headers that say so."""
    made = zlib.compressobj(_LEVEL, zlib.DEFLATED, _GZIP)
    return made.compress(body) + made.flush(), {**headers, ENCODING: "gzip"}


def plain_body(message: Message) -> bytes:
    """The body of a message of ours before it was compressed."""
    if ENCODING not in message.headers:
        return message.body
    return zlib.decompress(message.body, _GZIP)


def plain_headers(headers: Headers) -> Headers:
    """The headers of a message that is not compressed."""
    if ENCODING not in headers:
        return headers
    return {name: value for name, value in headers.items() if name != ENCODING}


def decompressed(delivery: Delivery, limit: int) -> Delivery:
    """The delivery with its plain body. One that cannot be read has a ``problem``.

    A body of more than ``limit`` bytes is not unpacked any further: a few kilobytes can hold
    gigabytes.
    """
    encoding = delivery.headers.get(ENCODING)
    if encoding is None or delivery.problem is not None:
        return delivery
    problem = None
    if encoding != "gzip":
        problem = f"unknown content encoding {str(encoding)[:40]!r}, only gzip is known"
    else:
        try:
            unpacker = zlib.decompressobj(_GZIP)
            body = unpacker.decompress(delivery.body, limit + 1)
            if len(body) > limit:
                problem = f"more than {limit} bytes when decompressed"
            elif not unpacker.eof:
                problem = "the compressed data ends too soon"
            elif unpacker.unused_data:  # read without it, it would be lost unnoticed
                problem = "something follows the compressed data"
            else:
                return msgspec.structs.replace(delivery, body=body)
        except zlib.error as error:
            problem = f"it cannot be decompressed: {error}"
    return msgspec.structs.replace(delivery, problem=problem)
