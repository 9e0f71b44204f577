"""Writes messages as records of Kafka, and reads records of any program.

The value of a record is the body, and its key is the ordering key. Each header of a message is a
header of the record, in UTF-8. Whole numbers are decimal digits, and ``x-matador-numbers`` lists
their headers. ``x-matador-id``, ``x-matador-priority`` and ``x-matador-delay`` (seconds after the
record was stored) hold the rest. Empty values are left out.

In records of other programs, a value or a header that is null is read as empty, a header that is
not UTF-8 is read as base64, and the last one of several headers with the same name counts.
"""

from __future__ import annotations

import math
from base64 import b64encode
from collections.abc import Sequence
from typing import Any, TypeAlias

import msgspec
from confluent_kafka import Message as KafkaMessage

from matador.errors import MatadorError, MessageTooLargeError, UnstorableError
from matador.model.message import (
    REASON_HEADER,
    Delivery,
    Headers,
    Message,
    Properties,
    Receipt,
)
from matador.transports.kit.properties import (
    PROPERTIES_HEADER,
    headers_with_properties,
    split_properties,
)

ID_HEADER = "x-matador-id"
DELAY_HEADER = "x-matador-delay"
_PRIORITY = "x-matador-priority"
_NUMBERS = "x-matador-numbers"
ROUTING_KEY_HEADER = "x-matador-routing-key"
_ORDERING_KEY = "x-matador-ordering-key"
_PUBLISHED = frozenset((ROUTING_KEY_HEADER, _ORDERING_KEY, DELAY_HEADER))
_RESERVED = frozenset((ID_HEADER, _PRIORITY, _NUMBERS)) | _PUBLISHED
_MAX_INT = 2**63
_MAX_DELAY = 100 * 366 * 86_400.0
_MAX_REASON = 1000
_MAX_CUT_VALUE = 500_000  # bytes of a value that is too large
_NO_HEADERS: Headers = {}
_EMPTY_SIZE = 70  # bytes, of a record without key, value and headers
_PLAIN_SIZE = _EMPTY_SIZE + len(ID_HEADER) + 4

RecordHeaders: TypeAlias = list[tuple[str, bytes | None]]


class Record(msgspec.Struct, frozen=True, gc=False):
    """A record to store.

    Attributes:
        partition: -1 to choose it by the key, or at random.
        located: the report says where the record is stored.
    """

    topic: str
    value: bytes | None
    key: bytes | None
    headers: RecordHeaders
    partition: int = -1
    located: bool = False

    @property
    def size(self) -> int:
        """Bytes, approximately as Kafka counts them."""
        size = len(self.value or b"") + len(self.key or b"") + _EMPTY_SIZE
        for name, value in self.headers:
            size += len(name) + len(value or b"") + 4
        return size


class Content(msgspec.Struct, frozen=True, gc=False):
    """The message in a record, as far as it can be read; ``problem`` says what cannot."""

    body: bytes
    headers: Headers
    id: str = ""
    priority: int | None = None
    ordering_key: str | None = None
    delay: float = 0.0
    problem: str | None = None
    properties: Properties | None = None

    def message(self, queue: str, place: str) -> Message:
        """The message as it was sent; ``place`` replaces a missing id."""
        return Message(
            self.id or place,
            queue,
            self.body,
            self.headers,
            0.0,
            self.priority,
            self.ordering_key,
            self.properties,
        )

    def delivery(self, queue: str, handle: object, count: int) -> Delivery:
        receipt = Receipt(queue, handle, count, count > 1, self.priority, self.ordering_key)
        return Delivery(self.body, self.headers, receipt, self.problem, self.properties, self.id)


def written(message: Message, topic: str, *, delay: float = 0.0, limit: int = 0) -> Record:
    """The record of a message in a topic. Consumers wait for ``delay``; Kafka does not.

    Raises:
        UnstorableError: a part of the message cannot be encoded.
        MessageTooLargeError: the record is larger than ``limit``.
    """
    if (
        message.priority is None
        and not delay
        and not message.headers
        and message.properties is None
        and message.ordering_key is None
        and message.id.isascii()
        and (not limit or len(message.body) + len(message.id) + _PLAIN_SIZE <= limit)
    ):  # an event: the common case
        if message.id:
            return Record(topic, message.body, None, [(ID_HEADER, message.id.encode())])
        return Record(topic, message.body, None, [])
    headers: RecordHeaders = []
    try:
        if message.id:
            headers.append((ID_HEADER, message.id.encode()))
        if message.priority is not None:
            headers.append((_PRIORITY, _digits(message.priority, "priority")))
        if delay > 0:
            headers.append((DELAY_HEADER, repr(float(delay)).encode()))
        if message.headers or message.properties is not None:
            headers += _written_headers(message)
        key = None if message.ordering_key is None else message.ordering_key.encode()
    except (UnicodeEncodeError, RecursionError, TypeError, ValueError) as error:
        raise UnstorableError(
            f"message {message.id[:40]!r} cannot be encoded: {type(error).__name__}: {error}"
        ) from error
    record = Record(topic, message.body, key, headers)
    if limit and (size := record.size) > limit:
        raise MessageTooLargeError(size, limit, why=" (headers and key are counted)")
    return record


def published(message: Message, topic: str, *, limit: int) -> Record:
    """The record of a message in the topic of an exchange.

    Its key is the ordering key, or the routing key if there is none: messages with the same key
    stay in order.

    Raises:
        UnstorableError: a part of the message cannot be encoded.
        MessageTooLargeError: the record is larger than ``limit``.
    """
    record = written(message, topic, limit=limit)
    properties = message.properties
    try:
        routing_key = ((properties and properties.routing_key) or "").encode()
    except UnicodeEncodeError as error:
        raise UnstorableError(f"the routing key cannot be encoded: {error}") from error
    added: RecordHeaders = [(ROUTING_KEY_HEADER, routing_key)]
    if record.key is not None:
        added.append((_ORDERING_KEY, record.key))
    key = routing_key if record.key is None else record.key
    return Record(topic, record.value, key, [*record.headers, *added])


def received(record: Record) -> tuple[Record, str]:
    """A record of an exchange as a record of a queue, and its routing key. Never fails.

    In a record of another program, the key is the routing key.
    """
    found = dict(record.headers)
    kept = [one for one in record.headers if one[0] not in _PUBLISHED]
    routing_key = found.get(ROUTING_KEY_HEADER, record.key)
    text = _text(routing_key)
    if ROUTING_KEY_HEADER not in found and text and PROPERTIES_HEADER not in found:
        given = msgspec.json.encode({"routing_key": text})
        kept.append((PROPERTIES_HEADER, given))
    return Record(record.topic, record.value, found.get(_ORDERING_KEY), kept), text


def _written_headers(message: Message) -> RecordHeaders:
    headers: RecordHeaders = []
    numbers: list[str] = []
    for name, value in headers_with_properties(message).items():
        if isinstance(value, str):
            encoded = value.encode()
        elif isinstance(value, int) and not isinstance(value, bool):  # pyright: ignore[reportUnnecessaryIsInstance] - users
            encoded = _digits(value, f"the header {name[:40]!r}")
            numbers.append(name)
        else:
            raise UnstorableError(f"the header {name[:40]!r} is neither a text nor a whole number")
        if name in _RESERVED or "\0" in name:
            raise UnstorableError(f"the name of the header {name[:40]!r} cannot be used on Kafka")
        name.encode()
        headers.append((name, encoded))
    if numbers:
        headers.append((_NUMBERS, msgspec.json.encode(numbers)))
    return headers


def _digits(value: int, what: str) -> bytes:
    if not -_MAX_INT <= value < _MAX_INT:
        raise UnstorableError(f"{what} does not fit in 64 bits")
    return b"%d" % value


class Fit(msgspec.Struct, frozen=True, gc=False):
    """How a bare dead letter is changed for a topic that rejects it.

    Attributes:
        room: how many bytes of the value are kept; None: all.
        keyed: the record has a key, which a compacted topic requires.
    """

    room: int | None = None
    keyed: bool = False

    def after(self, error: MatadorError, record: Record) -> Fit | None:
        """The next change to try after an error; None if there is none."""
        if not isinstance(error, MessageTooLargeError):
            fits_keyed = isinstance(error, UnstorableError) and not self.keyed
            return Fit(self.room, keyed=True) if fits_keyed else None
        if self.room is None:
            return Fit(min(len(record.value or b"") // 2, _MAX_CUT_VALUE), self.keyed)
        return Fit(self.room // 8, self.keyed) if self.room else None


AS_IT_IS = Fit()
"""No change."""


def bare(record: Record, topic: str, reason: str, fit: Fit = AS_IT_IS, place: str = "") -> Record:
    """A dead letter without headers. It fits into any topic that accepted the value of ``record``.

    ``place`` is where the record is stored.
    """
    value, room = record.value, fit.room
    if room is not None and value is not None and len(value) > room:
        note = f" (only {room:,} of {len(value):,} bytes fit here; the message is at {place})"
        reason, value = reason[: _MAX_REASON - len(note)] + note, value[:room]
    clean = reason[:_MAX_REASON].encode("utf-8", "replace")
    if fit.keyed:  # a record with a key and no value would delete others
        return Record(topic, value or b"", place.encode(), [(REASON_HEADER, clean)])
    return Record(topic, value, None, [(REASON_HEADER, clean)])


def with_reason(record: Record, topic: str, reason: str) -> Record:
    """A dead letter that keeps key, value and headers of ``record``.

    Raises:
        UnstorableError: the reason cannot be encoded.
    """
    try:
        encoded = reason.encode()
    except UnicodeEncodeError as error:
        raise UnstorableError(f"the reason of a dead letter cannot be encoded: {error}") from error
    dropped = (REASON_HEADER, DELAY_HEADER)
    kept: RecordHeaders = [one for one in record.headers if one[0] not in dropped]
    return Record(topic, record.value, record.key, [*kept, (REASON_HEADER, encoded)])


def with_delay(record: Record, topic: str, delay: float, partition: int = -1) -> Record:
    """The same record for another topic, with another delay."""
    headers: RecordHeaders = [one for one in record.headers if one[0] != DELAY_HEADER]
    if delay > 0:
        headers.append((DELAY_HEADER, repr(delay).encode()))
    return Record(topic, record.value, record.key, headers, partition)


# -- reading ---------------------------------------------------------------------------------------


def record_of(message: KafkaMessage) -> Record:
    """The record that was received. Never fails, whatever program stored it."""
    try:
        found: Any = message.headers() or ()
    except (UnicodeError, ValueError):
        found = ()
    headers: RecordHeaders = [
        (str(name), value if value is None or isinstance(value, bytes) else str(value).encode())
        for name, value in found
    ]
    key: Any = message.key()
    value: Any = message.value()
    return Record(message.topic() or "", value, key, headers)


def content_of(message: KafkaMessage) -> tuple[bytes | None, Content]:
    """The key and the content of a received record; fast if it has no header except the id."""
    key: Any = message.key()
    try:
        headers: Any = message.headers()
    except (UnicodeError, ValueError):
        headers = None
    if not headers or (len(headers) == 1 and headers[0][0] == ID_HEADER):
        body: Any = message.value()
        id_ = _text(headers[0][1]) if headers else ""
        if key is None:
            return None, Content(body or b"", _NO_HEADERS, id_)
        text, problem = _read_key(key)
        return key, Content(body or b"", _NO_HEADERS, id_, ordering_key=text, problem=problem)
    return key, read(record_of(message))


def delay_of(record: Record) -> float:
    """How many seconds after it was stored a record is due; 0 if its header is invalid."""
    for name, value in record.headers:
        if name == DELAY_HEADER:
            return _read_delay(value)
    return 0.0


def _read_delay(value: bytes | None) -> float:
    try:
        delay = float(value or b"0")
    except ValueError:
        return 0.0
    return min(delay, _MAX_DELAY) if math.isfinite(delay) and delay > 0 else 0.0


def read(record: Record) -> Content:
    """The message in a record. Never fails."""
    body = record.value or b""
    texts = {name: _text(value) for name, value in record.headers}
    reserved = {name: texts.pop(name) for name in _RESERVED & texts.keys()}
    headers: dict[str, str | int] = {**texts}
    key, problem = _read_key(record.key)
    if (listed := reserved.get(_NUMBERS)) is not None:
        problem = _restore_numbers(headers, listed) or problem
    priority: int | None = None
    if (written := reserved.get(_PRIORITY)) is not None:
        priority = _whole(written)
        if priority is None:
            problem = f"the header {_PRIORITY} is not a whole number"
    rest, properties, unread = split_properties(headers)
    delay = _read_delay((reserved.get(DELAY_HEADER) or "").encode())
    return Content(
        body,
        dict(rest),
        reserved.get(ID_HEADER, ""),
        priority,
        key,
        delay,
        problem or unread,
        properties,
    )


def _read_key(key: bytes | None) -> tuple[str | None, str | None]:
    if key is None:
        return None, None
    try:
        return key.decode(), None
    except UnicodeDecodeError:
        return b64encode(key).decode(), "the key is not UTF-8"


def _text(value: bytes | None) -> str:
    if value is None:
        return ""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return b64encode(value).decode()


def _whole(text: str) -> int | None:
    """A whole number of at most 64 bits; None if the text is no such number."""
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdecimal() and len(digits) < 20):
        return None
    number = int(text)
    return number if -_MAX_INT <= number < _MAX_INT else None


def _restore_numbers(headers: dict[str, str | int], listed: str) -> str | None:
    """Turn the listed headers into numbers; return what could not be read, if anything."""
    try:
        names: Sequence[str] = msgspec.json.decode(listed, type=list[str])
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return f"the header {_NUMBERS} cannot be read"
    for name in names:
        number = _whole(str(headers.get(name, "")))
        if number is None:
            return f"the header {name[:40]!r} is not a whole number"
        headers[name] = number
    return None
