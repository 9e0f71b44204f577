"""A message as the data of a job, and back: ``{"_jobData": …, "_metadata": …}``.

``_jobData`` is the body. One that is a JSON object or array stands there as it is, byte by byte,
so that a worker in another language sees its fields. Text stands there as a JSON string with
``"encoding": "text"`` in the metadata, any other bytes in base64 with ``"encoding": "base64"``.
``_metadata`` has also ``id``, ``headers``, ``priority`` and ``orderingKey``; what is empty is left
out. Every body comes back as the same bytes, unless somebody else has written the job anew.

A job without that wrapping is its own data: the body is its JSON. Metadata of somebody else's
come as headers where they are text or whole numbers. The name of a foreign job is in the header
``x-bullmq-name``; a message with that header is added under that name.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from typing import Any, Literal, cast

import msgspec

from matador.model.message import Headers, Message

NAME_HEADER = "x-bullmq-name"
DEFAULT_NAME = "matador"

_OURS = ("id", "headers", "priority", "orderingKey", "encoding")


class _Metadata(msgspec.Struct, omit_defaults=True, rename="camel"):
    id: str = ""
    headers: dict[str, str | int] = {}
    priority: int | None = None
    ordering_key: str | None = None
    encoding: Literal["json", "text", "base64"] = "json"


class _Data(msgspec.Struct):
    body: msgspec.Raw = msgspec.field(name="_jobData")
    metadata: msgspec.Raw = msgspec.field(default=msgspec.Raw(b"{}"), name="_metadata")


class Content(msgspec.Struct, frozen=True):
    """What a job carries."""

    body: bytes
    headers: Headers
    id: str = ""
    priority: int | None = None
    ordering_key: str | None = None
    problem: str | None = None


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(_Data).decode
_decode_metadata = msgspec.json.Decoder(_Metadata).decode
_decode_any = msgspec.json.Decoder().decode
_decode_text = msgspec.json.Decoder(str).decode


def written(message: Message) -> str:
    """The data of the job for a message, as JSON.

    Raises:
        TypeError, ValueError, OverflowError, RecursionError: headers that cannot be written.
    """
    body = message.body
    metadata = _Metadata(message.id, dict(message.headers), message.priority, message.ordering_key)
    if _is_json(body):
        content = body
    else:
        try:
            content, metadata.encoding = _encode(body.decode()), "text"
        except UnicodeDecodeError:
            content, metadata.encoding = _encode(b64encode(body).decode()), "base64"
    return b"".join((b'{"_jobData":', content, b',"_metadata":', _encode(metadata), b"}")).decode()


# What decoding raises; the last of them for what is nested too deep.
UNREADABLE = (msgspec.MsgspecError, ValueError, RecursionError)


def read(data: bytes, name: str) -> Content:
    """What a job carries. Never fails: what is not understood is the body as it is."""
    try:
        wrapped = _decode(data)
    except UNREADABLE:
        return Content(data, {NAME_HEADER: name})
    body = bytes(wrapped.body)
    headers: Headers = {} if name == DEFAULT_NAME else {NAME_HEADER: name}
    try:
        metadata = _decode_metadata(wrapped.metadata)
    except UNREADABLE:
        return Content(body, {**_foreign(wrapped.metadata), **headers})
    try:
        if metadata.encoding == "text":
            body = _decode_text(body).encode()
        elif metadata.encoding == "base64":
            body = b64decode(_decode_text(body), validate=True)
    except UNREADABLE:
        problem = f"_jobData: not {metadata.encoding}, as its metadata say"
        return Content(body, {**metadata.headers, **headers}, metadata.id, problem=problem)
    foreign = {} if metadata.id else _foreign(wrapped.metadata)
    return Content(
        body,
        {**foreign, **metadata.headers, **headers},
        metadata.id,
        metadata.priority,
        metadata.ordering_key,
    )


def _is_json(body: bytes) -> bool:
    """Is it an object or array, with nothing around it that would be lost?"""
    if body[:1] + body[-1:] not in (b"{}", b"[]"):
        return False
    try:
        body.decode()
        _decode_any(body)
    except UNREADABLE:
        return False
    return True


def _foreign(metadata: msgspec.Raw) -> dict[str, str | int]:
    """Metadata that are not ours, as headers."""
    try:
        found = _decode_any(metadata)
    except UNREADABLE:
        return {}
    if not isinstance(found, dict):
        return {}
    return {
        name: value
        for name, value in cast("dict[str, Any]", found).items()
        if name not in _OURS and isinstance(value, str | int) and not isinstance(value, bool)
    }
