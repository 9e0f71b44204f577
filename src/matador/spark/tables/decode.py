"""Decodes lines of the journal into columns of the three tables. Runs in the executors.

No line can make this fail: what is not a record, or does not fit its type, goes to quarantine.
"""

from __future__ import annotations

import base64
import codecs
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, NamedTuple, TypeAlias

import msgspec
import numpy as np

from matador.codec.payload import PayloadCodec
from matador.errors import InvalidEventError
from matador.model.event import EventType
from matador.observe.journal.records import (
    LAST_MOMENT,
    REPLAY_OF,
    DeliveryRecord,
    DroppedRecord,
    MalformedRecord,
    Record,
    SentRecord,
)
from matador.spark.runtime.arrow import RecordBatch, pa
from matador.spark.runtime.journal_lines import LONGEST
from matador.spark.tables.keys import (
    EVENT,
    Keys,
    delivery_keys,
    event_keys,
    fingerprint,
    fingerprint_keys,
    identity,
)
from matador.spark.tables.layout import DELIVERIES, EVENTS, QUARANTINE

OUT_OF_RANGE = "a time is before 1970 or after 9999"

_MOST_RAW = 1024 * 1024  # bytes of a text that quarantine keeps
_LONGEST_CHARACTER = 4  # bytes, which may be cut off at the end
_MOST_REASON = 2000
_MOST_INT = 2**31 - 1
_LONGEST_TIME = LAST_MOMENT / 1000  # milliseconds
_LIMITS = {
    "attempt": _MOST_INT,
    "deliveries": _MOST_INT,
    "duration_ms": _LONGEST_TIME,
    "wait_ms": _LONGEST_TIME,
    "since_created_ms": _LONGEST_TIME,
}
_BINARY = "base64:"

_decoder = msgspec.json.Decoder(Record)


class QuarantineReason(NamedTuple):
    """The reason why a row is in quarantine, without the parts that differ from row to row."""

    kind: str
    event_key: str | None
    reason: str


class _Refused(NamedTuple):
    """A row of the quarantine, and the bytes that tell it from others."""

    problem: QuarantineReason
    raw: str
    source: str
    identity: bytes
    id: str | None = None
    recorded_at: int | None = None


class Rows(NamedTuple):
    """Some rows of a table, and their keys."""

    batch: RecordBatch
    keys: Keys


@dataclass(slots=True)
class Decoded:
    """The result of decoding some lines: rows by table, and counts."""

    tables: dict[str, Rows]
    records: int = 0
    dropped: int = 0
    problems: Counter[QuarantineReason] = field(default_factory=Counter[QuarantineReason])


class LineDecoder:
    """Decodes blocks of lines. With ``events`` (by key and alias), payloads are validated too."""

    def __init__(self, events: Mapping[str, EventType] | None = None) -> None:
        self._events = events
        self._payloads = PayloadCodec("json")

    def decode(self, block: bytes, source: str, places: Sequence[str] = ()) -> Decoded:
        """Decode whole lines; ``source`` is the name of their segment.

        Lines that were made of messages of a log have ``places``, one for each. In quarantine it is
        the ``source`` of the message, and tells it from all others of the log.
        """
        refused: list[_Refused] = []
        sent: list[SentRecord] = []
        deliveries: list[DeliveryRecord] = []
        numbers: list[int] = []  # of the lines of ``sent``, if it matters
        dropped = count = 0

        def origin(number: int, line: bytes) -> tuple[str, bytes]:
            if not places:
                return source, line
            return places[number], f"{source}\0{places[number]}".encode()

        for line, record in parse_lines(block):
            number, count = count, count + 1
            if type(record) is DeliveryRecord:
                deliveries.append(record)
            elif type(record) is SentRecord:
                if self._events is not None and (why := self._problem(record)) is not None:
                    moment = _moment(record.recorded_at)
                    place = origin(number, line)
                    refused.append(_Refused(why, _text(line), *place, record.id, moment))
                else:
                    sent.append(record)
                    if places:
                        numbers.append(number)
            elif type(record) is MalformedRecord:
                place = origin(number, line) if places else (record.queue, line)
                refused.append(_refused_message(record, *place))
            elif type(record) is DroppedRecord:
                dropped += min(max(record.count, 0), _MOST_INT)
            else:
                refused.append(_refused_line(str(record), line, *origin(number, line)))
        tables = {
            "events": _rows(
                _event_rows,
                sent,
                lambda at, line: origin(numbers[at] if places else at, line),
                refused,
            ),
            "deliveries": _rows(_delivery_rows, deliveries, origin, refused),
        }
        tables["quarantine"] = _quarantine(refused)
        return Decoded(tables, count, dropped, Counter(one.problem for one in refused))

    def accepts(self, line: bytes) -> bool:
        """Whether a line is a valid row of ``events``."""
        decoded = self.decode(line, "")
        return decoded.tables["events"].batch.num_rows == 1 == decoded.records

    def _problem(self, record: SentRecord) -> QuarantineReason | None:
        assert self._events is not None
        if record.way != EVENT:
            return None  # only events are in a schema
        key = record.event_key
        event = self._events.get(key)
        if event is None:
            return QuarantineReason("unknown-event", key, f"event {key!r} is not in the schema")
        try:
            self._payloads.decode_payload(event, record.data)
            if record.earlier is not None:
                self._payloads.decode_payload(event, record.earlier)
        except InvalidEventError as error:
            return QuarantineReason("invalid-payload", key, str(error)[:_MOST_REASON])
        return None


def parse_lines(block: bytes) -> Iterator[tuple[bytes, Record | str]]:
    """Each line that is not blank, with its record, or with the reason why it is none."""
    lines = [line for line in block.split(b"\n") if line and not line.isspace()]
    try:
        if not block.isascii():
            block.decode()  # the decoder does not look at the text of payloads
        records = _decoder.decode_lines(block)
    except Exception:  # noqa: BLE001 - at least one line is bad; which one is found below
        records = []
    if len(records) == len(lines):
        yield from zip(lines, records, strict=True)
        return
    for line in lines:
        try:
            if len(line) > LONGEST:
                raise ValueError(f"the line is longer than {LONGEST:,} bytes")
            line.decode()
            yield line, _decoder.decode(line)
        except Exception as error:  # noqa: BLE001 - whatever it is, the line is kept
            yield line, f"not a record of the journal: {error}"


# -- rows of the tables -------------------------------------------------------------------------


_Origin: TypeAlias = Callable[[int, bytes], tuple[str, bytes]]
"""The source and the identity of a record, by its number and its line."""


def _rows(make: Any, records: list[Any], origin: _Origin, refused: list[_Refused]) -> Rows:
    """The rows of some records; those with a number that no column can hold are refused."""
    try:
        return make(records)
    except (ValueError, OverflowError):
        kept: list[Any] = []
        for number, record in enumerate(records):
            try:
                make([record])
            except (ValueError, OverflowError) as error:
                why = f"not a record of the journal: {error}"
                line = msgspec.json.encode(record)
                refused.append(_refused_line(why, line, *origin(number, line)))
            else:
                kept.append(record)
        return make(kept)


def _event_rows(records: Sequence[SentRecord]) -> Rows:
    replay_of = [one.metadata.get(REPLAY_OF) if one.metadata else None for one in records]
    batch = _batch(
        records,
        EVENTS,
        metadata=[None if one.metadata is None else texts(one.metadata) for one in records],
        replay_of=[one if isinstance(one, str) else None for one in replay_of],
        data_json=[bytes(one.data) for one in records],
        before_json=[None if one.earlier is None else bytes(one.earlier) for one in records],
        options=[None if one.options is None else texts(one.options) for one in records],
    )
    return Rows(batch, event_keys([one.id if one.way == EVENT else _own(one) for one in records]))


def _own(record: SentRecord | DeliveryRecord) -> str:
    """The unique identity of a message; see ``identity``."""
    is_first = type(record) is SentRecord and record.replay_id is None
    moment = record.created_at if is_first else None
    return identity(record.way, record.subscriber, record.id, moment)


def _delivery_rows(records: Sequence[DeliveryRecord]) -> Rows:
    batch = _batch(records, DELIVERIES)
    attempts = np.array([one.attempt for one in records], np.int64)
    started = np.array([one.started_at for one in records], np.int64)
    ids = [one.id if one.way == EVENT else _own(one) for one in records]
    return Rows(batch, delivery_keys(ids, attempts, started))


def _quarantine(refused: Sequence[_Refused]) -> Rows:
    names = QuarantineReason._fields
    made: dict[str, list[Any]] = {
        name: [getattr(one.problem, name) for one in refused] for name in names
    }
    made["quarantined_at"] = [time.time_ns() // 1000] * len(refused)
    made["fingerprint"] = [fingerprint(one.identity) for one in refused]
    return Rows(_batch(refused, QUARANTINE, **made), fingerprint_keys(made["fingerprint"]))


def _batch(records: Sequence[Any], schema: Any, **made: Sequence[Any]) -> RecordBatch:
    """A batch of the columns of a schema: those given, all others by the records' attributes."""
    arrays: list[Any] = []
    for column in schema:
        values = made.get(column.name)
        if values is None:
            values = list(map(attrgetter(column.name), records))
            _check_range(column, values)
        arrays.append(pa.array(values, column.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _check_range(column: Any, values: Sequence[Any]) -> None:
    is_time = bool(pa.types.is_timestamp(column.type))
    most = LAST_MOMENT if is_time else _LIMITS.get(column.name)
    known = [] if most is None else [one for one in values if one is not None]
    # Written so that it is true for NaN as well.
    if known and not (min(known) >= 0 and max(known) <= most):
        raise ValueError(
            OUT_OF_RANGE if is_time else f"{column.name} is not between 0 and {most:.3g}"
        )


def texts(metadata: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Metadata as a map of strings: what is not a string is written as JSON."""
    return [
        (key, value if isinstance(value, str) else msgspec.json.encode(value).decode())
        for key, value in metadata.items()
    ]


# -- what is refused ----------------------------------------------------------------------------


def _refused_line(why: str, line: bytes, source: str, identity: bytes) -> _Refused:
    return _Refused(QuarantineReason("malformed-record", None, why), _text(line), source, identity)


def _refused_message(record: MalformedRecord, source: str, identity: bytes) -> _Refused:
    problem = QuarantineReason("undecodable", None, record.reason[:_MOST_REASON])
    raw = _text(raw_bytes(record))
    return _Refused(problem, raw, source, identity, recorded_at=_moment(record.recorded_at))


def raw_bytes(record: MalformedRecord) -> bytes:
    """The bytes that could not be decoded."""
    try:
        return base64.b64decode(record.raw, validate=True)
    except ValueError:
        return record.raw.encode()


def is_whole(raw: str) -> bool:
    """Whether the column ``raw`` of the quarantine has all of its record."""
    return len(quarantined_bytes(raw)) < _MOST_RAW - _LONGEST_CHARACTER


def quarantined_bytes(raw: str) -> bytes:
    """The bytes of the column ``raw`` of the quarantine."""
    if raw.startswith(_BINARY):
        return base64.b64decode(raw.removeprefix(_BINARY))
    return raw.encode()


def _moment(micros: int) -> int | None:
    return micros if 0 <= micros <= LAST_MOMENT else None


def _text(raw: bytes) -> str:
    """Bytes as text, or as base64 if they are not UTF-8; only the beginning if they are many."""
    start = raw[:_MOST_RAW]
    try:  # an incremental decoder leaves out a character that is cut in two
        return codecs.getincrementaldecoder("utf-8")().decode(start, final=len(raw) <= _MOST_RAW)
    except UnicodeDecodeError:
        return _BINARY + base64.b64encode(start).decode()
