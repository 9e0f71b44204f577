"""Lines of the journal to columns of the three tables. Runs in the executors; knows no Spark.

Nothing in a line can make this fail: what is not a record, or does not fit, goes to quarantine.
"""

from __future__ import annotations

import base64
import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

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
from matador.spark.tables.dedup_index import Keys, delivery_keys, event_keys, text_keys
from matador.spark.tables.layout import DELIVERIES, EVENTS, QUARANTINE

log = logging.getLogger("matador.lake")

_MOST_RAW = 1024 * 1024  # bytes of a text that quarantine keeps
_MOST_REASON = 2000
_MOST_INT = 2**31 - 1
_LONGEST_TIME = LAST_MOMENT / 1000  # milliseconds
_BINARY = "base64:"

_decoder = msgspec.json.Decoder(Record)


class QuarantineReason(NamedTuple):
    """Why something is in quarantine, without what differs from row to row."""

    kind: str
    event_key: str | None
    reason: str


class _Refused(NamedTuple):
    """A row of the quarantine, and the bytes that tell it from others."""

    problem: QuarantineReason
    raw: str
    source: str
    id: str | None
    recorded_at: int | None
    identity: bytes


class Rows(NamedTuple):
    """Some rows of a table, and their keys."""

    batch: RecordBatch
    keys: Keys


@dataclass(slots=True)
class Decoded:
    """What became of some lines: rows by table, and what they were in all."""

    tables: dict[str, Rows]
    records: int = 0
    dropped: int = 0
    problems: Counter[QuarantineReason] = field(default_factory=Counter[QuarantineReason])


class LineDecoder:
    """Decodes blocks of lines.

    With ``events`` (by key and alias) payloads are validated against their types; without, every
    event is taken as it is.
    """

    def __init__(self, events: Mapping[str, EventType] | None = None) -> None:
        self._events = events
        self._payloads = PayloadCodec("json")

    def decode(self, block: bytes, source: str) -> Decoded:
        """Decode whole lines; ``source`` is the name of their segment."""
        lines = [line for line in block.split(b"\n") if line and not line.isspace()]
        refused: list[_Refused] = []
        sent: list[SentRecord] = []
        deliveries: list[DeliveryRecord] = []
        dropped = 0
        for line, record in self._records(block, lines, source, refused):
            if type(record) is DeliveryRecord:
                deliveries.append(record)
            elif type(record) is SentRecord:
                if self._events is not None and (why := self._problem(record)) is not None:
                    refused.append(_refused_event(why, record, line, source))
                else:
                    sent.append(record)
            elif type(record) is MalformedRecord:
                refused.append(_refused_message(record, line))
            else:
                assert type(record) is DroppedRecord
                dropped += min(max(record.count, 0), _MOST_INT)
        tables = {
            "events": _events(sent, source, refused),
            "deliveries": _deliveries(deliveries, source, refused),
        }
        tables["quarantine"] = _quarantine(refused)
        problems = Counter(one.problem for one in refused)
        return Decoded(tables, len(lines), dropped, problems)

    def _records(
        self, block: bytes, lines: Sequence[bytes], source: str, refused: list[_Refused]
    ) -> Iterable[tuple[bytes, Record]]:
        try:
            if not block.isascii():
                block.decode()  # the text of payloads is not looked at by the decoder
            records = _decoder.decode_lines(block)
            if len(records) == len(lines):
                return zip(lines, records, strict=True)
        except Exception:  # noqa: BLE001 - at least one line is bad; which one is found below
            log.debug("%s: not all lines are records", source)
        return self._one_by_one(lines, source, refused)

    def _one_by_one(
        self, lines: Sequence[bytes], source: str, refused: list[_Refused]
    ) -> Iterable[tuple[bytes, Record]]:
        for line in lines:
            try:
                if len(line) > LONGEST:
                    raise ValueError(f"the line is longer than {LONGEST:,} bytes")
                line.decode()
                record = _decoder.decode(line)
            except Exception as error:  # noqa: BLE001 - whatever it is, the line is kept
                refused.append(_refused_line(str(error), line, source))
            else:
                yield line, record

    def _problem(self, record: SentRecord) -> QuarantineReason | None:
        assert self._events is not None
        event = self._events.get(record.event_key)
        if event is None:
            return QuarantineReason(
                "unknown-event",
                record.event_key,
                f"event {record.event_key!r} is not in the schema",
            )
        try:
            self._payloads.decode_payload(event, record.data)
            if record.earlier is not None:
                self._payloads.decode_payload(event, record.earlier)
        except InvalidEventError as error:
            return QuarantineReason("invalid-payload", record.event_key, str(error)[:_MOST_REASON])
        return None


# -- rows of the tables -------------------------------------------------------------------------


def _events(records: list[SentRecord], source: str, refused: list[_Refused]) -> Rows:
    try:
        return _event_rows(records)
    except (ValueError, OverflowError):  # a number no column can hold
        return _event_rows(_fitting(records, _event_rows, source, refused))


def _deliveries(records: list[DeliveryRecord], source: str, refused: list[_Refused]) -> Rows:
    try:
        return _delivery_rows(records)
    except (ValueError, OverflowError):
        return _delivery_rows(_fitting(records, _delivery_rows, source, refused))


def _fitting(records: list[Any], rows: Any, source: str, refused: list[_Refused]) -> list[Any]:
    kept: list[Any] = []
    for record in records:
        try:
            rows([record])
        except (ValueError, OverflowError) as error:
            refused.append(_refused_line(str(error), msgspec.json.encode(record), source))
        else:
            kept.append(record)
    return kept


def _event_rows(records: Sequence[SentRecord]) -> Rows:
    ids = [one.id for one in records]
    metadata = [one.metadata for one in records]
    replay_of = [
        None if not one or not isinstance(found := one.get(REPLAY_OF), str) else found
        for one in metadata
    ]
    columns: list[Any] = [
        ids,
        [one.event_key for one in records],
        [one.subscriber for one in records],
        [one.queue for one in records],
        [one.transport for one in records],
        _moments([one.created_at for one in records]),
        _moments([one.scheduled_for for one in records]),
        _moments([one.recorded_at for one in records]),
        [one.correlation_id for one in records],
        [one.importance for one in records],
        [None if one is None else _texts(one) for one in metadata],
        [one.replay_id for one in records],
        replay_of,
        [one.source for one in records],
        [bytes(one.data) for one in records],
        [None if one.earlier is None else bytes(one.earlier) for one in records],
    ]
    return Rows(_batch(columns, EVENTS), event_keys(ids))


def _delivery_rows(records: Sequence[DeliveryRecord]) -> Rows:
    ids = [one.id for one in records]
    attempts = _plausible("attempt", [one.attempt for one in records], _MOST_INT)
    started = _moments([one.started_at for one in records])
    columns: list[Any] = [
        ids,
        [one.event_key for one in records],
        [one.subscriber for one in records],
        [one.queue for one in records],
        [one.transport for one in records],
        attempts,
        [one.outcome for one in records],
        started,
        _plausible("duration_ms", [one.duration_ms for one in records], _LONGEST_TIME),
        _plausible("wait_ms", [one.wait_ms for one in records], _LONGEST_TIME),
        _plausible("since_created_ms", [one.since_created_ms for one in records], _LONGEST_TIME),
        _moments([one.created_at for one in records]),
        [one.importance for one in records],
        _moments([one.recorded_at for one in records]),
        [one.worker for one in records],
        _plausible("deliveries", [one.deliveries for one in records], _MOST_INT),
        [one.ran for one in records],
        [one.error_type for one in records],
        [one.error for one in records],
        [one.reason for one in records],
        [one.dead_letter_kind for one in records],
        [one.correlation_id for one in records],
        [one.replay_id for one in records],
    ]
    batch = _batch(columns, DELIVERIES)
    keys = delivery_keys(
        ids, np.array(attempts, np.int64), np.asarray(started.cast(pa.int64())).astype(np.int64)
    )
    return Rows(batch, keys)


def _quarantine(refused: Sequence[_Refused]) -> Rows:
    columns: list[Any] = [
        [one.problem.reason for one in refused],
        [one.problem.kind for one in refused],
        [one.raw for one in refused],
        [one.source for one in refused],
        [one.problem.event_key for one in refused],
        [one.id for one in refused],
        [one.recorded_at for one in refused],
    ]
    return Rows(_batch(columns, QUARANTINE), text_keys([one.identity for one in refused]))


def _batch(columns: Sequence[Any], schema: Any) -> RecordBatch:
    arrays = [
        column if isinstance(column, pa.Array) else pa.array(column, field.type)
        for column, field in zip(columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _moments(micros: Sequence[int | None]) -> Any:
    """Times as a column.

    Raises:
        ValueError: one is before 1970 or after the year 9999: Python and Spark could not read it.
    """
    known = [one for one in micros if one is not None]
    if known and (min(known) < 0 or max(known) > LAST_MOMENT):
        raise ValueError("a time is before 1970 or after 9999")
    return pa.array(micros, pa.timestamp("us", tz="UTC"))


def _plausible(what: str, numbers: Sequence[float], most: float) -> Sequence[float]:
    """Numbers that one can count and draw with.

    Raises:
        ValueError: one is negative, or larger than can be.
    """
    if numbers and not (min(numbers) >= 0 and max(numbers) <= most):
        raise ValueError(f"{what} is not between 0 and {most:.3g}")
    return numbers


def _texts(metadata: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [
        (key, value if isinstance(value, str) else msgspec.json.encode(value).decode())
        for key, value in metadata.items()
    ]


# -- what is refused ----------------------------------------------------------------------------


def _refused_line(error: str, line: bytes, source: str) -> _Refused:
    problem = QuarantineReason("malformed-record", None, f"not a record of the journal: {error}")
    return _Refused(problem, _readable(line), source, None, None, line)


def _refused_event(
    problem: QuarantineReason, record: SentRecord, line: bytes, source: str
) -> _Refused:
    return _Refused(problem, _readable(line), source, record.id, _moment(record.recorded_at), line)


def _refused_message(record: MalformedRecord, line: bytes) -> _Refused:
    try:
        raw = _readable(base64.b64decode(record.raw, validate=True))
    except ValueError:
        raw = _readable(record.raw.encode())
    problem = QuarantineReason("undecodable", None, record.reason[:_MOST_REASON])
    return _Refused(problem, raw, record.queue, None, _moment(record.recorded_at), line)


def _moment(micros: int) -> int | None:
    return micros if 0 <= micros <= LAST_MOMENT else None


def _readable(raw: bytes) -> str:
    """Bytes as text; base64 if they are none."""
    if len(raw) > _MOST_RAW:
        raw = raw[:_MOST_RAW]
        try:
            raw.decode()
        except UnicodeDecodeError as error:
            if error.start >= _MOST_RAW - 3:  # a character was cut in two
                raw = raw[: error.start]
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return _BINARY + base64.b64encode(raw).decode()
