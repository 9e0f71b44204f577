"""How a message is written as a BullMQ job, and read back; names, ids and priorities, too.

The data of a job are ``{"_jobData": …, "_metadata": …}``. ``_jobData`` is the body. A JSON object
or array is written as it is, byte by byte, so that a worker in another language sees its fields;
text as a JSON string with ``"encoding": "text"`` in the metadata, any other bytes in base64 with
``"encoding": "base64"``. ``_metadata`` also has ``id``, ``headers``, ``priority`` and
``orderingKey``; empty ones are left out. Every body comes back as the same bytes, unless another
program has rewritten the job.

The name of a job is the key of its event, the command of a request, or the routing key of what was
published, so that people can find it. That is in the data, too: names of our own jobs are not read.

A job without that wrapping is its own data: the body is its JSON. Metadata of others become headers
if they are text or whole numbers. The name of a foreign job is in the header ``x-bullmq-name``; a
message with that header is added under that name.
"""

from __future__ import annotations

import contextlib
from base64 import b64decode, b64encode
from typing import Any, Literal, cast

import msgspec

from matador.model.message import Headers, Message, Properties
from matador.model.topology import DEAD_LETTER_KINDS, DeadLetterKind
from matador.transports.kit.properties import headers_with_properties, split_properties

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


class JobContent(msgspec.Struct, frozen=True):
    """The message in a job."""

    body: bytes
    headers: Headers
    id: str = ""
    priority: int | None = None
    ordering_key: str | None = None
    problem: str | None = None
    properties: Properties | None = None


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
    metadata = _Metadata(
        message.id, dict(headers_with_properties(message)), message.priority, message.ordering_key
    )
    if _is_json(body):
        content = body
    else:
        try:
            content, metadata.encoding = _encode(body.decode()), "text"
        except UnicodeDecodeError:
            content, metadata.encoding = _encode(b64encode(body).decode()), "base64"
    return b"".join((b'{"_jobData":', content, b',"_metadata":', _encode(metadata), b"}")).decode()


# What decoding raises; the last one for data that are nested too deep.
UNREADABLE = (msgspec.MsgspecError, ValueError, RecursionError)


def read(data: bytes, name: str) -> JobContent:
    """The message in a job. Never fails: unknown data become the body as they are."""
    try:
        wrapped = _decode(data)
    except UNREADABLE:
        return JobContent(data, {NAME_HEADER: name})
    body = bytes(wrapped.body)
    headers: Headers = {} if name == DEFAULT_NAME else {NAME_HEADER: name}
    try:
        metadata = _decode_metadata(wrapped.metadata)
    except UNREADABLE:
        return JobContent(body, {**_foreign(wrapped.metadata), **headers})
    if metadata.id:
        headers = {}
    try:
        if metadata.encoding == "text":
            body = _decode_text(body).encode()
        elif metadata.encoding == "base64":
            body = b64decode(_decode_text(body), validate=True)
    except UNREADABLE:
        problem = f"_jobData: not {metadata.encoding}, as its metadata say"
        return JobContent(body, {**metadata.headers, **headers}, metadata.id, problem=problem)
    foreign = {} if metadata.id else _foreign(wrapped.metadata)
    sent, properties, problem = split_properties(metadata.headers)
    return JobContent(
        body,
        {**foreign, **sent, **headers},
        metadata.id,
        metadata.priority,
        metadata.ordering_key,
        problem,
        properties,
    )


def _is_json(body: bytes) -> bool:
    """Whether it is an object or array, with nothing around it that would be lost."""
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


# -- names, ids, priorities ------------------------------------------------------------------------

_HEX = "hex~"  # before ids that are not UTF-8

KEYS = (
    *("wait", "paused", "active", "delayed", "prioritized", "completed", "failed", "meta", "id"),
    *("events", "marker", "stalled", "stalled-check", "limiter", "pc", "repeat"),
    "waiting-children",
)
"""Keys of BullMQ beside the jobs of a queue: a job with such an id would overwrite one."""

LOWEST = 2_097_152
"""BullMQ's last priority; its first is 1. Without one (0) a job comes before all that have one."""


def name_of(message: Message) -> str:
    """The name of the job for a message.

    Example:
        >>> name_of(Message("m-1", "shop.events", b"{}", name="order.placed"))
        'order.placed'
    """
    given, properties = message.headers.get(NAME_HEADER) or message.name, message.properties
    if not given and properties is not None:
        given = properties.type or properties.routing_key
    return str(given or DEFAULT_NAME)


def bull_name(queue: str) -> str:
    """The name of a BullMQ queue. BullMQ allows no colon, and ours no percent sign.

    Example:
        >>> bull_name("Owner:orders")
        'Owner%3Aorders'
    """
    return queue.replace(":", "%3A")


def job_id(message_id: str) -> str:
    """The id of the job for a message: the message's own if BullMQ allows it; '': BullMQ chooses.

    Whole numbers are BullMQ's own ids, and a colon would make part of a key.

    Example:
        >>> job_id("m-1"), job_id("42"), job_id("a:b")
        ('m-1', '', '')
    """
    if ":" in message_id or message_id.lstrip("-").isdecimal() or message_id in KEYS:
        return ""
    return "" if message_id.startswith(_HEX) else message_id


def id_text(id_: bytes) -> str:
    """The id of a job as text, from which ``id_bytes`` makes the same bytes.

    Example:
        >>> id_text(b"m-1"), id_text(b"\\xff")
        ('m-1', 'hex~ff')
    """
    with contextlib.suppress(UnicodeDecodeError):
        if not (text := id_.decode()).startswith(_HEX):
            return text
    return _HEX + id_.hex()


def id_bytes(id_: str) -> bytes:
    """The id of a job as the server knows it: the opposite of ``id_text``."""
    return bytes.fromhex(id_[len(_HEX) :]) if id_.startswith(_HEX) else id_.encode()


def bull_priority(priority: int | None) -> int:
    """BullMQ's number for a priority of ours, where a higher one comes first.

    Example:
        >>> bull_priority(9) < bull_priority(1) < bull_priority(None)
        True
    """
    if priority is None:
        return LOWEST
    return min(max(LOWEST - 1 - priority, 1), LOWEST - 1)


def our_priority(number: int) -> int | None:
    """The priority of a job that another program has added."""
    return None if number in (0, LOWEST) else LOWEST - 1 - number


def letters_of(queue: str) -> tuple[str, DeadLetterKind] | None:
    """The queue and the kind, if this is the name of a dead-letter queue.

    Example:
        >>> letters_of("shop.events.unhandled")
        ('shop.events', 'unhandled')
    """
    for kind in DEAD_LETTER_KINDS:
        base = queue.removesuffix(f".{kind}")
        if base and base != queue:
            return base, kind
    return None
