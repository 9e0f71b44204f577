"""JSON: the default codec."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from matador.codec.base import Encoded, RawEnvelope, Stamp, Stencil
from matador.codec.json_text import (
    escaped_surrogate,
    refuse_duplicate_keys,
    written_surrogate,
)
from matador.codec.older import is_older_body, read_older_body
from matador.codec.payload import PayloadCodec
from matador.codec.plain import SIMPLE, metadata_problem, unwritable
from matador.codec.times import POINT, in_utc, quoted, to_milliseconds
from matador.codec.wire import EnvelopeWithBefore, LooseEnvelope
from matador.errors import DecodeError
from matador.model.envelope import Docket, Envelope
from matador.model.message import Headers
from matador.model.text import BOM

_NO_HEADERS: Headers = {}
_END = b"}}"  # of the docket and the envelope
_TIME = '"2026-11-15T19:02:37.435'  # without what follows the milliseconds
_UNENCODABLE = (TypeError, ValueError, OverflowError, RecursionError)
"""UnicodeEncodeError and msgspec's own errors are ValueErrors."""
_NEVER = datetime.min.replace(tzinfo=UTC)

# Where the seconds of the two times end in a docket, after the first is cut to milliseconds.
_CREATED_AT = len('{"createdAt":"2026-11-15T19:02:37')
_BEFORE_TAIL = len('{"id":"","data":,"docket":{"createdAt":"2026-11-15T19:02:37.435')
_MOST_TAILS, _LONGEST_TAIL = 1000, 1000  # senders choose the names
_SCHEDULED_FOR = len('{"createdAt":"2026-11-15T19:02:37.435Z","scheduledFor":"2026-11-15T19:02:37')


class JsonCodec(PayloadCodec):
    """Envelopes as JSON.

    Example:
        >>> from matador import JsonCodec, Matador
        >>> app = Matador("memory://", schema=schema, codec=JsonCodec())
    """

    __slots__ = ("_encode", "_read", "_read_loosely", "_read_with_before", "_tails", "_time")

    content_type = "application/json"

    def __init__(self, *, check_sends: bool = True) -> None:
        super().__init__("json", check_sends=check_sends)
        self._encode: Callable[[Any], bytes] = msgspec.json.Encoder().encode
        # The last encoded time and its millisecond, because many events are sent in the same
        # millisecond.
        self._time: tuple[datetime, datetime, bytes] = _NEVER, _NEVER, b""
        self._read = msgspec.json.Decoder(RawEnvelope).decode
        self._read_with_before = msgspec.json.Decoder(EnvelopeWithBefore).decode
        self._read_loosely = msgspec.json.Decoder(LooseEnvelope).decode
        # The ends of dockets by event and subscriber: those of new messages are all the same.
        self._tails: dict[tuple[str, str], bytes] = {}

    def __repr__(self) -> str:
        return "JsonCodec()"

    def encode(self, envelope: RawEnvelope) -> Encoded:
        docket = envelope.docket
        # Joined by hand, because msgspec does not write times with milliseconds.
        try:
            body = self._encode_quickly(envelope) or self._encode_slowly(envelope)
        except _UNENCODABLE as error:
            raise unwritable(docket, error) from error
        if docket.metadata:
            _check_metadata(docket, docket.metadata)
        return Encoded(body, _NO_HEADERS)

    def prepare(self, docket: Docket) -> Stencil:
        """Correlation id and metadata are the last fields of a docket."""
        start, rest = self._around_time(docket)
        middle = rest[: -len(_END)]
        encode, join = self._encode, b"".join

        def stencil(
            id: str,
            data: msgspec.Raw,
            created_at: datetime,
            before: msgspec.Raw | None,
            correlation_id: str | None,
            metadata: Mapping[str, Any] | None,
        ) -> Encoded:
            first, last, time = self._time
            if created_at.tzinfo is not UTC or not first <= created_at <= last or not time:
                time = self._write_time(created_at)
            try:
                head = b'{"id":', encode(id), b',"data":', data, start, time, rest
                if before is correlation_id is metadata is None:
                    return Encoded(join(head), _NO_HEADERS)
                earlier = () if before is None else (b',"before":', before)
                head = *head[:4], *earlier, start, time, middle
                if correlation_id is not None:
                    head = *head, b',"correlationId":', encode(correlation_id)
                if metadata:
                    head = *head, b',"metadata":', encode(metadata)
            except _UNENCODABLE as error:
                raise unwritable(docket, error, metadata) from error
            if metadata:
                _check_metadata(docket, metadata)
            return Encoded(join((*head, _END)), _NO_HEADERS)

        return stencil

    def _around_time(self, docket: Docket) -> tuple[bytes, bytes]:
        """The bytes before and after the creation time of an envelope."""
        sample = self.encode(Envelope("", msgspec.Raw(b"null"), docket)).body
        start = b',"docket":{"createdAt":'
        return start, sample[sample.index(start) + len(start) + len(_TIME) :]

    def _write_time(self, moment: datetime) -> bytes:
        """The encoded time, truncated to milliseconds; the last one is cached."""
        time = self._encode(moment)
        if moment.tzinfo is not UTC or time[20] != POINT:
            time = quoted(moment)
        time = time[:24]
        if moment.tzinfo is UTC:
            first = moment.microsecond // 1000 * 1000
            self._time = (
                moment.replace(microsecond=first),
                moment.replace(microsecond=first + 999),
                time,
            )
        return time

    def _encode_quickly(self, envelope: RawEnvelope) -> bytes | None:
        """The fast path for most envelopes; None if it has more fields or another time zone."""
        docket, encode = envelope.docket, self._encode
        if envelope.before is not None or docket.scheduled_for is not None:
            return None
        text = encode(docket)
        if docket.created_at.tzinfo is not UTC or text[_CREATED_AT] != POINT:
            return None
        head, tail = text[: _CREATED_AT + 4], text[_CREATED_AT + 7 :]
        start = (b'{"id":', encode(envelope.id), b',"data":', envelope.data)
        return b"".join((*start, b',"docket":', head, tail, b"}"))

    def _encode_slowly(self, envelope: RawEnvelope) -> bytes:
        docket = envelope.docket
        scheduled = docket.scheduled_for
        docket = msgspec.structs.replace(
            docket,
            created_at=in_utc(docket.created_at),
            scheduled_for=None if scheduled is None else in_utc(scheduled),
        )
        text = to_milliseconds(self._encode(docket), _CREATED_AT)
        if scheduled is not None:
            text = to_milliseconds(text, _SCHEDULED_FOR)
        start = b'{"id":', self._encode(envelope.id), b',"data":', envelope.data
        before = () if envelope.before is None else (b',"before":', envelope.before)
        return b"".join((*start, *before, b',"docket":', text, b"}"))

    def decode(self, body: bytes, headers: Headers, stamp: Stamp) -> RawEnvelope:
        """Also reads the older format."""
        try:
            if not body.isascii():
                str(body, "utf-8")  # payloads are not validated yet
            envelope = self._read(body)
        except (ValueError, RecursionError):
            if body.startswith(BOM) and not body.startswith(BOM, len(BOM)):
                return self.decode(body.removeprefix(BOM), headers, stamp)
            envelope = self._read_otherwise(body, headers, stamp)
            refuse_duplicate_keys(body)
            return envelope
        if not self._is_minimal(body, envelope):
            refuse_duplicate_keys(body)
        return envelope

    def _is_minimal(self, body: bytes, envelope: RawEnvelope) -> bool:
        """Whether a body is as short as possible, so that only its payload can have a duplicate
        key.

        ``decode_payload`` looks for those. Most dockets end as a docket without duplicate keys is
        encoded, and then the lengths of all parts add up. A time with fewer digits leaves room for
        four characters at most, and the shortest further field takes five.
        """
        docket = envelope.docket
        names = docket.event_key, docket.target_subscriber
        tail = self._tails.get(names)
        if tail is None or not body.endswith(tail):
            if (tail := self._tail_of(docket)) is None or not body.endswith(tail):
                return False
            special = docket.correlation_id is not None or docket.metadata or docket.attempts > 1
            if not special and len(tail) <= _LONGEST_TAIL and len(self._tails) < _MOST_TAILS:
                self._tails[names] = tail
        return len(body) == _BEFORE_TAIL + len(envelope.id) + len(envelope.data) + len(tail)

    def _tail_of(self, docket: Docket) -> bytes | None:
        """The end of a body with this docket, after the milliseconds of its first time."""
        text = self._encode(docket)
        return text[_CREATED_AT + 7 :] + b"}" if text[_CREATED_AT] == POINT else None

    def _read_otherwise(self, body: bytes, headers: Headers, stamp: Stamp) -> RawEnvelope:
        fields = read_json_object(body)
        if is_older_body(fields):
            return read_older_body(fields, headers, stamp)
        for read in (self._read_with_before, self._read_loosely):
            try:
                return read(body).as_envelope(b"null")
            except (ValueError, RecursionError) as error:
                problem = error
        raise DecodeError(f"not an envelope: {problem}") from problem


def _check_metadata(docket: Docket, metadata: Mapping[str, Any]) -> None:
    """Raise ``InvalidEventError`` if encoding would change the metadata."""
    for key, value in metadata.items():
        if type(key) is not str or type(value) not in SIMPLE:
            if (problem := metadata_problem(metadata, nested=True)) is not None:
                raise unwritable(docket, problem)
            return


def read_json_object(body: bytes) -> dict[str, msgspec.Raw]:
    """The fields of a JSON object, each still encoded.

    Raises:
        DecodeError: the body is empty, not UTF-8, not JSON, or not an object.
    """
    if not body:
        raise DecodeError("the body is empty")
    try:
        if not body.isascii():
            str(body, "utf-8")
        return _OBJECT.decode(body)
    except RecursionError as error:
        raise DecodeError("the body is nested too deeply") from error
    except UnicodeDecodeError as error:
        problem = written_surrogate(body) or f"is not UTF-8: {error}{_looks_like(body)}"
        raise DecodeError(f"the body {problem}") from error
    except msgspec.ValidationError as error:
        raise DecodeError(f"the body is not a JSON object: {error}") from error
    except ValueError as error:
        problem = escaped_surrogate(body) or f"is not JSON: {error}{_looks_like(body)}"
        raise DecodeError(f"the body {problem}") from error


_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])


def _looks_like(body: bytes) -> str:
    if body[:2] == b"\x1f\x8b":
        return "; it looks like gzip: use CompressedCodec"
    if body[:4] == b"\x28\xb5\x2f\xfd":
        return "; it looks like zstd: use CompressedCodec"
    if body[0] in (0xDE, 0xDF) or 0x80 <= body[0] <= 0x8F:
        return "; it looks like MessagePack: use MessagePackCodec"
    return ""
