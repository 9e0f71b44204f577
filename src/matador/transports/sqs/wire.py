"""Encodes messages for SQS, and decodes them.

The body is the body of the message if it is text that SQS accepts, otherwise base64. Everything
else is in one message attribute, ``matador``: a JSON object with ``id``, ``headers``, ``priority``,
``orderingKey``, ``encoding`` (``base64`` or ``empty``; SQS does not accept an empty body),
``delay``, in seconds from the time it was sent, and ``deliveries``, the number of deliveries before
a copy. Empty fields are left out. SQS allows ten attributes, so headers share this one. The four
headers of a job do not: ``job.id``, ``job.name``, ``job.maxAttempts`` and ``job.createdAt`` are
attributes of their own, which other programs read and write.

Foreign messages are read, too: every attribute is a header. Whole numbers are numbers, binary
values base64.
"""

from __future__ import annotations

import json
import re
from base64 import b64decode, b64encode
from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

import msgspec

from matador.errors import MessageTooLargeError, UnstorableError
from matador.model.message import Headers, Message, Properties
from matador.transports.kit.properties import headers_with_properties, split_properties

LARGEST = 262_144
"""Bytes of a message, its attributes counted, and of a batch."""

LONGEST_DELAY = 900
"""Seconds for which SQS delays a message of a standard queue."""

_OURS = "matador"
_JOB = {
    "job.id": "String",
    "job.name": "String",
    "job.maxAttempts": "Number",
    "job.createdAt": "Number",
}
_ILLEGAL = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_WHOLE = re.compile(r"-?[0-9]{1,18}", re.ASCII)
_EMPTY = "-"
_MOST_ATTRIBUTES = 10

Attributes: TypeAlias = Mapping[str, Mapping[str, Any]]
"""Message attributes as botocore has them."""


class SqsEntry(msgspec.Struct, frozen=True):
    """A message as SQS stores it.

    ``delay``: whole seconds; ``group``, ``deduplication``: for FIFO queues only.
    """

    body: str
    attributes: Attributes
    delay: int = 0
    group: str | None = None
    deduplication: str | None = None

    @property
    def size(self) -> int:
        """Bytes, as SQS counts them."""
        return len(self.body.encode()) + size_of(self.attributes)

    def parameters(self, id_: str) -> dict[str, Any]:
        """The entry of a batch."""
        found: dict[str, Any] = {"Id": id_, "MessageBody": self.body}
        if self.attributes:
            found["MessageAttributes"] = self.attributes
        if self.delay:
            found["DelaySeconds"] = self.delay
        if self.group is not None:
            found["MessageGroupId"] = self.group
            found["MessageDeduplicationId"] = self.deduplication
        return found


class SqsContent(msgspec.Struct, frozen=True):
    """The message in an entry; ``delay``: seconds from sending until it is due."""

    body: bytes
    headers: Headers
    id: str = ""
    priority: int | None = None
    ordering_key: str | None = None
    delay: float = 0.0
    deliveries: int = 0
    problem: str | None = None
    properties: Properties | None = None


class _Envelope(msgspec.Struct, omit_defaults=True, rename="camel"):
    id: str = ""
    headers: dict[str, str | int] = {}
    priority: int | None = None
    ordering_key: str | None = None
    encoding: Literal["text", "base64", "empty"] = "text"
    delay: float | None = None
    deliveries: int = 0


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(_Envelope).decode
_UNREADABLE = (msgspec.MsgspecError, ValueError, RecursionError)


def size_of(attributes: Attributes) -> int:
    """Bytes of message attributes: their names, types and values count."""
    size = 0
    for name, value in attributes.items():
        size += len(name.encode()) + len(str(value.get("DataType", "")).encode())
        size += len(str(value.get("StringValue", "")).encode()) + len(value.get("BinaryValue", b""))
    return size


def written(message: Message, *, later: float = 0.0) -> SqsEntry:
    """The entry for a message, without the fields that depend on the queue.

    ``later``: the delay in seconds that receivers must enforce, because SQS does not.

    Raises:
        UnstorableError: a part of it cannot be encoded.
        MessageTooLargeError: it is larger than SQS allows.
    """
    try:
        entry = _written(message, later)
        size = entry.size
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise UnstorableError(
            f"message {message.id[:40]!r} cannot be encoded: {type(error).__name__}: {error}"
        ) from error
    if size > LARGEST:
        raise MessageTooLargeError(size, LARGEST, why=" (SQS counts headers and encoding, too)")
    return entry


def _written(message: Message, later: float) -> SqsEntry:
    body, encoding = _written_body(message.body)
    attributes: dict[str, Mapping[str, Any]] = {}
    headers: dict[str, str | int] = {}
    for name, value in headers_with_properties(message).items():
        if not isinstance(value, str | int) or isinstance(value, bool):  # pyright: ignore[reportUnnecessaryIsInstance] - users
            raise UnstorableError(f"the header {name[:40]!r} is neither a text nor a whole number")
        if name in _JOB and (native := _native(_JOB[name], value)) is not None:
            attributes[name] = native
        else:
            headers[name] = value
    id_ = "" if message.id == message.headers.get("job.id") else message.id
    envelope = _Envelope(
        id_, headers, message.priority, message.ordering_key, encoding, later or None
    )
    return SqsEntry(body, attributes | _attribute(envelope))


def copied(attributes: Attributes, *, delay: float, deliveries: int) -> Attributes | None:
    """The attributes of a copy with another delay, and with the deliveries before it. None: a
    foreign message has no room for them."""
    envelope, problem = _read_envelope(attributes)
    if (envelope.delay or 0.0, envelope.deliveries) == (delay, deliveries):
        return attributes
    envelope.delay, envelope.deliveries = delay or None, deliveries
    rest = {name: value for name, value in attributes.items() if name != _OURS}
    if problem is not None or len(rest) >= _MOST_ATTRIBUTES:
        return None
    return rest | _attribute(envelope)


def _attribute(envelope: _Envelope) -> dict[str, Mapping[str, Any]]:
    text = _encode(envelope).decode()
    if _ILLEGAL.search(text):
        text = json.dumps(json.loads(text), separators=(",", ":"))
    return {} if text == "{}" else {_OURS: {"DataType": "String", "StringValue": text}}


def bare(body: str, attributes: Attributes, reason_header: str, reason: str) -> SqsEntry:
    """A dead letter that fits wherever ``body`` did: only the attribute of the encoding is kept,
    and the reason is truncated to fit."""
    encoding = _read_envelope(attributes)[0].encoding
    clean = _ILLEGAL.sub("?", reason.encode("utf-8", "replace").decode())
    for kept in (clean, clean[:100], None):
        headers: dict[str, str | int] = {} if kept is None else {reason_header: kept}
        entry = SqsEntry(body, _attribute(_Envelope(headers=headers, encoding=encoding)))
        if entry.size <= LARGEST:
            break
    return entry


def read(body: str, attributes: Attributes, group: str | None = None) -> SqsContent:
    """The message in an entry, foreign ones included. Never fails."""
    envelope, problem = _read_envelope(attributes)
    headers: dict[str, str | int] = {
        name: _read_value(value) for name, value in attributes.items() if name != _OURS
    }
    headers |= envelope.headers
    sent, properties, unread = split_properties(headers)
    raw = body.encode("utf-8", "surrogatepass")
    if envelope.encoding == "empty":
        raw = b""
    elif envelope.encoding == "base64":
        try:
            raw = b64decode(body, validate=True)
        except ValueError:
            problem = "the body is not base64, as the attribute matador says"
    return SqsContent(
        raw,
        sent,
        envelope.id or str(headers.get("job.id", "")),
        envelope.priority,
        envelope.ordering_key if _OURS in attributes else group,
        envelope.delay or 0.0,
        envelope.deliveries,
        problem or unread,
        properties,
    )


def _read_envelope(attributes: Attributes) -> tuple[_Envelope, str | None]:
    ours = attributes.get(_OURS)
    if ours is None:
        return _Envelope(), None
    try:
        envelope = _decode(str(ours.get("StringValue", "")))
        if not 0.0 <= (envelope.delay or 0.0) < float("inf"):
            envelope.delay = None
        envelope.deliveries = min(max(0, envelope.deliveries), 1_000_000)
    except _UNREADABLE:
        return _Envelope(), f"the attribute {_OURS} cannot be read"
    return envelope, None


def _written_body(body: bytes) -> tuple[str, Literal["text", "base64", "empty"]]:
    if not body:
        return _EMPTY, "empty"
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return b64encode(body).decode(), "base64"
    if _ILLEGAL.search(text):
        return b64encode(body).decode(), "base64"
    return text, "text"


def _native(kind: str, value: str | int) -> dict[str, str] | None:
    """The attribute for a header; None if SQS would reject or change it."""
    if kind == "Number":
        fits = isinstance(value, int) and _WHOLE.fullmatch(str(value))
    else:
        fits = isinstance(value, str) and value and not _ILLEGAL.search(value)
    return {"DataType": kind, "StringValue": str(value)} if fits else None


def _read_value(value: Mapping[str, Any]) -> str | int:
    binary = value.get("BinaryValue")
    if isinstance(binary, bytes):
        return b64encode(binary).decode()
    text = str(value.get("StringValue", ""))
    if str(value.get("DataType", "")).startswith("Number") and _WHOLE.fullmatch(text):
        return int(text)
    return text
