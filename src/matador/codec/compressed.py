"""Compresses the output of another codec with gzip, or with zstd if it is installed."""

from __future__ import annotations

import gzip
import importlib
import io
import zlib
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, TypeAlias

import msgspec

from matador.codec.base import Codec, Encoded, RawEnvelope, Stamp
from matador.codec.json import JsonCodec
from matador.errors import (
    ConfigurationError,
    DecodeError,
    MessageTooLargeError,
    MissingExtraError,
)
from matador.model.envelope import ROOM_FOR_ERRORS
from matador.model.event import EventType
from matador.model.message import Headers
from matador.model.options import whole_number

Algorithm: TypeAlias = Literal["gzip", "zstd"]

ENCODING_HEADER = "content-encoding"
_GZIP = b"\x1f\x8b"
_ZSTD = b"\x28\xb5\x2f\xfd"


class CompressedCodec:
    """Compresses encoded bodies of at least ``threshold`` bytes.

    The body shows how it is compressed, so a worker with this codec reads compressed and plain
    messages: upgrade the workers first, then the senders. Bodies of more than ``max_size`` bytes
    before compression are neither sent nor decompressed.

    Example:
        >>> from matador import CompressedCodec, JsonCodec
        >>> codec = CompressedCodec(JsonCodec(), "gzip", threshold=1024)
    """

    __slots__ = ("_algorithm", "_compress", "_inner", "_max_size", "_threshold")

    def __init__(
        self,
        inner: Codec | None = None,
        algorithm: Algorithm = "gzip",
        *,
        threshold: int = 1024,
        max_size: int = 16 * 1024 * 1024,
    ) -> None:
        if algorithm not in ("gzip", "zstd"):
            raise ConfigurationError(
                f"CompressedCodec: algorithm must be 'gzip' or 'zstd', got {algorithm!r}"
            )
        self._inner: Codec = inner if inner is not None else JsonCodec()
        self._algorithm: Algorithm = algorithm
        self._threshold = whole_number(threshold, "CompressedCodec: threshold", minimum=0)
        self._max_size = whole_number(max_size, "CompressedCodec: max_size", minimum=1)
        self._compress: Callable[[bytes], bytes] = (
            _gzip if algorithm == "gzip" else _zstd_module().compress
        )

    def __reduce__(self) -> tuple[Any, ...]:
        limits = {"threshold": self._threshold, "max_size": self._max_size}
        return partial(type(self), self._inner, self._algorithm, **limits), ()

    def __repr__(self) -> str:
        return f"CompressedCodec({self._inner!r}, {self._algorithm!r})"

    @property
    def content_type(self) -> str:
        return self._inner.content_type

    def encode_payload(self, event: EventType, payload: Any) -> msgspec.Raw:
        return self._inner.encode_payload(event, payload)

    def decode_payload(self, event: EventType, raw: msgspec.Raw) -> Any:
        return self._inner.decode_payload(event, raw)

    def encode(self, envelope: RawEnvelope) -> Encoded:
        plain = self._inner.encode(envelope)
        size = len(plain.body)
        if size < self._threshold:
            return plain
        # A retry is not refused: it may be larger, because of its errors.
        if size > self._max_size and envelope.docket.last_error is None:
            raise MessageTooLargeError(size, self._max_size, what="message before compression")
        return Encoded(
            self._compress(plain.body), {**plain.headers, ENCODING_HEADER: self._algorithm}
        )

    def decode(self, body: bytes, headers: Headers, stamp: Stamp) -> RawEnvelope:
        limit = self._max_size + ROOM_FOR_ERRORS
        return self._inner.decode(inflate(body, limit), headers, stamp)


def inflate(body: bytes, max_size: int) -> bytes:
    """The decompressed body; a plain body is returned unchanged.

    Raises:
        DecodeError: it is damaged, or larger than ``max_size`` after decompression.
    """
    if body.startswith(_GZIP):
        return _inflate_gzip(body, max_size)
    if body.startswith(_ZSTD):
        return _inflate_zstd(body, max_size)
    return body


def _gzip(body: bytes) -> bytes:
    return gzip.compress(body, compresslevel=6, mtime=0)


def _inflate_gzip(body: bytes, max_size: int) -> bytes:
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(body)) as stream:
            plain = stream.read(max_size + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise DecodeError(f"damaged gzip: {error}") from error
    return _within(plain, max_size)


def _inflate_zstd(body: bytes, max_size: int) -> bytes:
    module = _zstd_module()
    try:
        return _within(module.inflate(body, max_size + 1), max_size)
    except module.error as error:
        raise DecodeError(f"damaged zstd: {error}") from error


def _within(plain: bytes, max_size: int) -> bytes:
    if len(plain) > max_size:
        raise DecodeError(f"the decompressed body exceeds the limit of {max_size:,} bytes")
    return plain


class _Zstd:
    """A common interface to the two zstd libraries."""

    def __init__(self, module: Any) -> None:
        self._module = module
        self.error: type[Exception] = module.ZstdError

    def compress(self, body: bytes) -> bytes:
        if hasattr(self._module, "ZstdCompressor") and hasattr(self._module, "FORMAT_ZSTD1"):
            return self._module.ZstdCompressor(level=3).compress(body)
        return self._module.compress(body, 3)

    def inflate(self, body: bytes, limit: int) -> bytes:
        if hasattr(self._module, "FORMAT_ZSTD1"):  # the zstandard package
            reader = self._module.ZstdDecompressor().stream_reader(
                io.BytesIO(body), read_across_frames=True
            )
            with reader as stream:
                return stream.read(limit)
        decompressor = self._module.ZstdDecompressor()
        plain = decompressor.decompress(body, max_length=limit)
        if decompressor.unused_data or (decompressor.needs_input and not decompressor.eof):
            raise self.error("it is truncated or has extra data")
        return plain


def _zstd_module() -> _Zstd:
    for name in ("compression.zstd", "zstandard"):  # the first exists since Python 3.14
        try:
            return _Zstd(importlib.import_module(name))
        except ImportError:
            continue
    raise MissingExtraError("zstd compression", "zstd")
