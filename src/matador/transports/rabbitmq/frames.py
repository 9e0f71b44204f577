"""AMQP 0-9-1 frames that are sent once per message, encoded and decoded by hand. No I/O here.

Publishing, delivering and acknowledging are several times cheaper this way than through the client
library's objects. Everything that happens once per connection or queue goes through the library.
"""

from __future__ import annotations

from struct import Struct

from matador.transports.rabbitmq.properties import short_text

METHOD, HEADER, BODY = 1, 2, 3
FRAME_END = b"\xce"
OVERHEAD = 8  # bytes of a frame around its payload

BASIC = 60
PUBLISH, RETURN, DELIVER, GET, GET_OK, GET_EMPTY, ACK, NACK = 40, 50, 60, 70, 71, 72, 80, 120

_START = Struct(">BHI")
_METHOD_START = Struct(">HH")
_ACK = Struct(">BHIHHQBB")
_CONTENT = Struct(">HHQ")
_TAG = Struct(">Q")

frame_start = _START.unpack_from
method_of = _METHOD_START.unpack_from


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    """One whole frame."""
    return _START.pack(kind, channel, len(payload)) + payload + FRAME_END


def publish_frame(channel: int, exchange: str, key: str, *, mandatory: bool) -> bytes:
    """``basic.publish``: where a message goes."""
    method = _METHOD_START.pack(BASIC, PUBLISH) + b"\0\0"
    flags = b"\1" if mandatory else b"\0"
    return frame(METHOD, channel, method + short_text(exchange) + short_text(key) + flags)


def content_frames(channel: int, properties: bytes, body: bytes, frame_max: int) -> bytes:
    """The header and the body of a message."""
    size = len(body)
    header = _CONTENT.pack(BASIC, 0, size) + properties
    start = _START.pack(HEADER, channel, len(header)) + header + FRAME_END
    most = frame_max - OVERHEAD
    if size <= most:
        if not size:
            return start
        return start + _START.pack(BODY, channel, size) + body + FRAME_END
    pieces = [start]
    pieces += [frame(BODY, channel, body[at : at + most]) for at in range(0, size, most)]
    return b"".join(pieces)


def ack_frame(channel: int, tag: int, *, multiple: bool) -> bytes:
    """``basic.ack``."""
    return _ACK.pack(METHOD, channel, 13, BASIC, ACK, tag, multiple, 0xCE)


def requeue_frame(channel: int, tag: int) -> bytes:
    """``basic.nack`` that returns one delivery to its queue."""
    return _ACK.pack(METHOD, channel, 13, BASIC, NACK, tag, 2, 0xCE)


def get_frame(channel: int, queue: str) -> bytes:
    """``basic.get`` of a message that must be acknowledged."""
    method = _METHOD_START.pack(BASIC, GET) + b"\0\0"
    return frame(METHOD, channel, method + short_text(queue) + b"\0")


def read_confirm(buffer: bytes, at: int) -> tuple[int, bool]:
    """The tag and the ``multiple`` of an ack or nack; ``at``: after class and method."""
    return _TAG.unpack_from(buffer, at)[0], bool(buffer[at + 8] & 1)


def read_deliver(buffer: bytes, at: int) -> tuple[int, bool, bytes, bytes]:
    """The tag, ``redelivered``, exchange and routing key of a message that was pushed."""
    return read_get_ok(buffer, at + 1 + buffer[at])  # after the consumer's tag


def read_get_ok(buffer: bytes, at: int) -> tuple[int, bool, bytes, bytes]:
    """The tag, ``redelivered``, exchange and routing key of a message that was asked for."""
    key = at + 10 + buffer[at + 9]  # after the exchange
    exchange, routing_key = buffer[at + 10 : key], buffer[key + 1 : key + 1 + buffer[key]]
    return _TAG.unpack_from(buffer, at)[0], bool(buffer[at + 8]), exchange, routing_key


def read_return(buffer: bytes, at: int) -> tuple[str, str]:
    """Why a message came back, and its routing key."""
    texts: list[str] = []
    at += 2  # after the reply code
    for _ in range(3):  # the reason, the exchange, the key
        size = buffer[at]
        texts.append(str(buffer[at + 1 : at + 1 + size], "utf-8", "replace"))
        at += 1 + size
    return texts[0], texts[2]


def body_size(buffer: bytes, at: int) -> int:
    """The size of the body that a header frame announces."""
    size: int = _TAG.unpack_from(buffer, at + 4)[0]
    return size
