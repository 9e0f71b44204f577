"""Compressed messages: gzip, marked by a header, so that both kinds may be in one queue."""

from __future__ import annotations

import zlib

from matador.model.message import Delivery
from matador.runtime.messages import ENCODING

_GZIP = 16 + zlib.MAX_WBITS
_LEVEL = 6


def compressed(body: bytes) -> bytes:
    """The body as gzip."""
    made = zlib.compressobj(_LEVEL, zlib.DEFLATED, _GZIP)
    return made.compress(body) + made.flush()


def decompressed(delivery: Delivery, limit: int) -> tuple[bytes, str | None]:
    """The decompressed body of a message, or the raw body and the problem.

    Decompression stops after ``limit`` bytes, because a few kilobytes can expand to gigabytes.
    """
    packed, encoding = delivery.body, delivery.headers.get(ENCODING)
    if encoding is None or delivery.problem is not None:
        return packed, delivery.problem
    if encoding != "gzip":
        return packed, f"unknown content encoding {str(encoding)[:40]!r}, only gzip is known"
    try:
        unpacker = zlib.decompressobj(_GZIP)
        body = unpacker.decompress(packed, limit + 1)
    except zlib.error as error:
        return packed, f"it cannot be decompressed: {error}"
    if len(body) > limit:
        return packed, f"more than {limit} bytes when decompressed"
    if not unpacker.eof:
        return packed, "the compressed data ends too soon"
    if unpacker.unused_data:  # ignoring it would lose it without an error
        return packed, "the body has extra bytes after the compressed data"
    return body, None
