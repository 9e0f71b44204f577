"""The work of executors in an ingest from a log such as Kafka's: messages become parts.

A message is written as a line of the journal first and decoded as such. So the tables get the same
rows, by the same rules, whichever way an event has come.
"""

from __future__ import annotations

import pickle
import socket
import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import msgspec

from matador.codec.base import Codec
from matador.errors import MatadorError, MessagesDeletedError
from matador.model.log import LogMessage, LogPartition, LogRange
from matador.observe.journal.records import LAST_MOMENT, LineWriter
from matador.spark.runtime.executors import EventTypes
from matador.spark.tables.decode import LineDecoder, QuarantineReason
from matador.spark.tables.ingest_tasks import ProblemCount, most_frequent
from matador.spark.tables.parquet_writer import Part, Parts
from matador.storage import Storage
from matador.transports.base import QueueLog

_BLOCK = 1024 * 1024
_MOST_PROBLEMS = 200
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_IDS = uuid.UUID("6d617461-646f-5272-8000-6b61666b6131")


@dataclass(frozen=True, slots=True)
class LogSource:
    """The data that a task needs to read and decode a log. Pickled; its ``repr`` has no secret."""

    log: QueueLog
    codec: bytes
    """The codec, pickled."""
    transport: str
    """The name of the transport, for the column."""


class DecodedLog(msgspec.Struct, frozen=True):
    """The answer of a task. ``retried`` are the parts of messages that had an attempt before: what
    is in ``parts``, too, is kept from there.

    ``failed``: why messages could not be read; ``deleted``: messages were deleted unread.
    """

    parts: list[Part] = []
    retried: list[Part] = []
    records: int = 0
    problems: list[ProblemCount] = []
    failed: str | None = None
    deleted: bool = False
    not_imported: str | None = None


def decode_log(
    tasks: Sequence[Sequence[LogRange]],
    source: LogSource,
    lake: Storage,
    events: EventTypes | None,
    which: int,
) -> bytes:
    """Decode the ranges of one task into parts."""
    try:
        decoder = LineDecoder(None if events is None else events.load())
        codec: Codec = pickle.loads(source.codec)
    except Exception as error:  # noqa: BLE001 - whatever the modules of users raise
        why = f"{type(error).__name__}: {error}"
        return msgspec.msgpack.encode(DecodedLog(not_imported=why))
    first, retried = _Writer(lake, decoder), _Writer(lake, decoder)
    stamp = _LogStamp(source.log.kind)
    lines: dict[str, LineWriter] = {}
    records = 0
    failed: MatadorError | None = None
    try:
        for place, message in source.log.read(tasks[which]):
            queue = place.partition.queue
            if queue not in lines:
                kind = source.log.kind
                lines[queue] = LineWriter(queue, source.transport, codec, kind, kind)
            stamp.at(place.partition, message)
            line, attempt = lines[queue].line(message.body, message.headers, message.problem, stamp)
            (retried if attempt > 1 else first).add(line, place.partition, stamp.place)
            records += 1
    except MatadorError as error:
        failed = error
    parts, later = first.finish(), retried.finish()
    problems = first.problems + retried.problems
    return msgspec.msgpack.encode(
        DecodedLog(
            parts,
            later,
            records,
            most_frequent([ProblemCount(*one, count) for one, count in problems.items()]),
            None if failed is None else f"{socket.gethostname()}: {failed}",
            isinstance(failed, MessagesDeletedError),
        )
    )


class _Writer:
    """Collects lines, and writes them in blocks, each of one log."""

    def __init__(self, lake: Storage, decoder: LineDecoder) -> None:
        self._parts = Parts(lake)
        self._decoder = decoder
        self._log = ""
        self._lines: list[bytes] = []
        self._places: list[str] = []
        self._size = 0
        self.problems: Counter[QuarantineReason] = Counter()

    def add(self, line: bytes, partition: LogPartition, place: str) -> None:
        log = f"{partition.home}/{partition.made}"
        if log != self._log or self._size >= _BLOCK:
            self._write()
            self._log = log
        self._lines.append(line)
        self._places.append(place)
        self._size += len(line)

    def finish(self) -> list[Part]:
        self._write()
        return self._parts.finish()

    def _write(self) -> None:
        if self._lines:
            decoded = self._decoder.decode(b"\n".join(self._lines), self._log, self._places)
            self._parts.add(decoded)
            self.problems.update(decoded.problems)
            if len(self.problems) > _MOST_PROBLEMS:
                self.problems = Counter(dict(self.problems.most_common(_MOST_PROBLEMS // 10)))
        self._lines, self._places, self._size = [], [], 0


class _LogStamp:
    """The time at which a message was stored, and an id for one that has none: always the same."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._now = datetime.now(UTC)
        self._stored_at = self._now
        self._partition: LogPartition | None = None
        self.place = ""

    def at(self, partition: LogPartition, message: LogMessage) -> None:
        """Go to a message."""
        stored = message.stored_at
        is_time = stored is not None and 0 <= stored <= LAST_MOMENT
        self._stored_at = _EPOCH + timedelta(microseconds=stored or 0) if is_time else self._now
        self._partition = partition
        topic = partition.home.rpartition("/")[2]
        self.place = f"{self._kind}:{topic}/{partition.number}/{message.offset}"

    def now(self) -> datetime:
        return self._stored_at

    def new_id(self) -> str:
        assert self._partition is not None
        one = self._partition
        return str(uuid.uuid5(_IDS, f"{one.home}/{one.made}/{self.place}"))
