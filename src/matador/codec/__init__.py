"""Envelopes to bytes and headers, and back. Pure: no I/O, no clock."""

from matador.codec.base import Codec, Encoded, Preparing, RawEnvelope, Stamp, Stencil
from matador.codec.compressed import CompressedCodec
from matador.codec.headers import HeaderCodec
from matador.codec.json import JsonCodec
from matador.codec.msgpack import MessagePackCodec

__all__ = [
    "Codec",
    "CompressedCodec",
    "Encoded",
    "HeaderCodec",
    "JsonCodec",
    "MessagePackCodec",
    "Preparing",
    "RawEnvelope",
    "Stamp",
    "Stencil",
]
