"""Sends records. Each has its own delivery report, and a burst of reports wakes the loop once.

A thread waits for the first report of a burst, and the loop takes the others. If the thread took
all of them, thread and loop would hand the interpreter to each other for each report.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from itertools import count
from queue import Empty, SimpleQueue
from typing import TypeAlias

import msgspec
from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, KafkaError, KafkaException, Producer
from confluent_kafka import Message as KafkaMessage

from matador.errors import MatadorError, MessageTooLargeError, SendUnconfirmedError
from matador.transports.kafka.errors import translate
from matador.transports.kafka.options import Settings
from matador.transports.kafka.wire import Record

_POLL = 0.19  # seconds; also how long closing takes
_MAX_BATCH = 1_000_000  # bytes; librdkafka sends a larger record alone


class Location:
    """Where a record is stored, and when the broker stored it (0: its topic does not say)."""

    __slots__ = ("offset", "partition", "stored_at")

    def __init__(self, message: KafkaMessage) -> None:
        kind, milliseconds = message.timestamp()
        self.partition = -1 if (found := message.partition()) is None else found
        self.offset = -1 if (found := message.offset()) is None else found
        self.stored_at = milliseconds / 1000 if kind == TIMESTAMP_LOG_APPEND_TIME else 0.0


Report: TypeAlias = MatadorError | Location | None
"""Why a record is not stored; otherwise None, or its location if the record asks for it."""


class _ReportArrived(Exception):
    """Ends a flush: the client library keeps the other reports for the next poll."""


_REPORT_ARRIVED = _ReportArrived()
"""Always the same object: the client library never releases what a report raises."""


class Batch:
    """Records that are sent together; ``done`` is called with the last of their reports."""

    __slots__ = ("done", "number", "reports", "size")

    def __init__(self, size: int, done: Callable[[Batch], None]) -> None:
        self.reports: list[Report] = [None] * size
        self.number = count(1).__next__  # atomic: reports arrive in several threads
        self.size = size
        self.done = done

    def put(self, index: int, report: Report) -> None:
        if report is not None:
            self.reports[index] = report
        if self.number() == self.size:
            self.done(self)


class ReportCallback(msgspec.Struct, frozen=True, gc=False):
    """The callback of one record; faster than a ``partial``."""

    producer: KafkaProducer
    batch: Batch
    index: int
    record: Record

    def __call__(self, error: KafkaError | None, message: KafkaMessage) -> None:
        producer, batch, index = self.producer, self.batch, self.index
        if error is not None:
            batch.put(index, producer.translate(error, self.record))
        elif message.offset() is None:
            batch.put(index, producer.unconfirmed(message))
        elif self.record.located:
            batch.put(index, Location(message))
        elif batch.number() == batch.size:  # the common case: ``put`` without a report
            batch.done(batch)
        producer.reported()


class KafkaProducer:
    """One producer, and the thread that waits for its reports.

    ``send`` belongs to the event loop; ``send_now`` is for other threads.
    """

    def __init__(
        self, settings: Settings, where: str, on_error: Callable[[KafkaError], None], *, limit: int
    ) -> None:
        self._where = where
        self._limit = limit
        self._loop = asyncio.get_running_loop()
        self._producer = Producer(settings | {"error_cb": on_error})
        self._single = _SingleRecordProducer(settings)
        self._woken = False
        self._done: deque[tuple[asyncio.Future[list[Report]], list[Report]]] = deque()
        self._lock = threading.Lock()  # senders in several threads produce one batch at a time
        self._bell: SimpleQueue[None] = SimpleQueue()  # wakes a thread faster than an Event
        self._rung = False  # until all reports have arrived, or the loop has taken them
        self._blocked = 0  # threads that wait for reports, and must not wait for the loop
        self._stopping = False
        self._owner = threading.get_ident()
        self._waiter = 0
        self._thread = threading.Thread(target=self._serve, name="matador-kafka-producer")
        self._thread.daemon = True
        self._thread.start()

    async def send(self, records: Sequence[Record]) -> list[Report]:
        """The report of each record, in order, once all in-sync replicas have stored it."""
        if not records:
            return []
        future: asyncio.Future[list[Report]] = self._loop.create_future()
        self._produce(records, Batch(len(records), partial(self._wake, future)))
        reports = await future
        if rejected := self._rejected_with_batch(records, reports):
            await asyncio.to_thread(self._send_singly, records, reports, rejected)
        return reports

    def send_now(self, records: Sequence[Record]) -> list[Report]:
        """``send`` for another thread; blocks."""
        if not records:
            return []
        future: Future[list[Report]] = Future()
        batch = Batch(len(records), lambda batch: future.set_result(batch.reports))
        with self._lock:
            self._blocked += 1
        try:
            self._produce(records, batch)
            self._bell.put(None)  # even if the loop is to take the reports: it may be busy
            reports = future.result()
        finally:
            with self._lock:
                self._blocked -= 1
        if rejected := self._rejected_with_batch(records, reports):
            self._send_singly(records, reports, rejected)
        return reports

    def refresh(self, topic: str, timeout: float) -> None:
        """Make the client library look for a missing topic again. Blocks.

        Raises:
            KafkaException: no broker has answered.
        """
        self._producer.list_topics(topic, timeout)

    async def close(self) -> None:
        """Wait for all reports, and stop the thread."""
        await asyncio.to_thread(self._close)

    def _close(self) -> None:
        self._producer.flush(5)
        self._stopping = True
        self._thread.join()
        self._producer.purge()
        self._producer.flush(1)  # reports the failure to senders that still wait

    # -- sending -----------------------------------------------------------------------------------

    def _produce(self, records: Sequence[Record], batch: Batch) -> None:
        produce = self._producer.produce
        failed: list[tuple[int, BaseException]] = []
        with self._lock:
            for index, record in enumerate(records):
                try:
                    produce(
                        record.topic,
                        record.value,
                        record.key,
                        record.partition,
                        ReportCallback(self, batch, index, record),
                        headers=record.headers,  # pyright: ignore[reportArgumentType] - invariant
                    )
                except (KafkaException, BufferError, TypeError, ValueError) as error:
                    failed.append((index, error))
        self._ring()
        for index, error in failed:
            batch.put(index, self.translate(error, records[index]))

    def _rejected_with_batch(
        self, records: Sequence[Record], reports: Sequence[Report]
    ) -> list[int]:
        """The records to send again, alone, because only their batch may have been too large.

        A record must not overtake a stored record with its key.
        """
        if not any(reports):  # the common case
            return []
        chosen: list[int] = []
        stored: set[bytes] = set()
        for at in range(len(records) - 1, -1, -1):
            record, report = records[at], reports[at]
            if record.key not in stored and self._single.may_fit(record, report):
                chosen.append(at)
            elif record.key is not None and not isinstance(report, MatadorError):
                stored.add(record.key)
        return chosen[::-1]

    def _send_singly(
        self, records: Sequence[Record], reports: list[Report], chosen: Sequence[int]
    ) -> None:
        def put(index: int, error: object, message: KafkaMessage | None) -> None:
            at = chosen[index]
            if isinstance(error, BaseException | KafkaError):
                reports[at] = self.translate(error, records[at])
                return
            assert message is not None
            located = Location(message) if records[at].located else None
            reports[at] = self.unconfirmed(message) if message.offset() is None else located

        self._single.send([records[at] for at in chosen], put)

    # -- reports -----------------------------------------------------------------------------------

    def reported(self) -> None:
        """A record has its report. The thread leaves the others to the loop."""
        if self._blocked == 0 and threading.get_ident() == self._waiter:
            raise _REPORT_ARRIVED

    def unconfirmed(self, message: KafkaMessage) -> MatadorError:
        """The error for a record that the client library calls stored, but without an offset.

        The broker called it a duplicate. It also does that to the first record of a producer in a
        partition if it has rejected that record and stored the next one, which happens while a
        partition is new or changes its leader. Then the record is not stored. A real duplicate has
        an offset.
        """
        return SendUnconfirmedError(
            f"{self._where}: {message.topic()}, partition {message.partition()}, calls a message a "
            f"duplicate and does not say where it is; it is probably not stored, so send it again"
        )

    def translate(self, error: BaseException | KafkaError, record: Record) -> MatadorError:
        """Why a record was not stored."""
        return translate(
            error, self._where, queue=record.topic, limit=self._limit, size=record.size
        )

    def _wake(self, future: asyncio.Future[list[Report]], batch: Batch) -> None:
        if threading.get_ident() == self._owner:
            if not future.done():
                future.set_result(batch.reports)
            return
        self._done.append((future, batch.reports))
        if not self._woken:
            self._woken = True
            if not self._call(self._resolve):
                self._done.clear()

    def _resolve(self) -> None:
        self._woken = False
        while self._done:
            future, reports = self._done.popleft()
            if not future.done():
                future.set_result(reports)

    def _call(self, what: Callable[[], None]) -> bool:
        """Call something in the loop; False if the loop is closed, so nothing waits for it."""
        try:
            self._loop.call_soon_threadsafe(what)
        except RuntimeError:
            return False
        return True

    def _serve(self) -> None:
        """Wait for reports. A flush ends the linger: what was sent together leaves at once."""
        self._waiter = threading.get_ident()
        while not self._stopping:
            try:
                self._bell.get(timeout=_POLL)
                while len(self._producer) and not self._stopping:
                    self._producer.flush(_POLL)
            except Empty:
                self._poll()
            except _ReportArrived as arrived:
                _drop_frames(arrived)
                if self._call(self._take_reports):
                    continue
            self._ring_again()

    def _poll(self) -> None:
        """Receive errors of the connection while nothing is being sent."""
        try:
            self._producer.poll(0)
        except _ReportArrived as arrived:
            _drop_frames(arrived)

    def _take_reports(self) -> None:
        """In the loop: take the reports that have arrived by now."""
        self._producer.poll(0)
        self._ring_again()

    def _ring(self) -> None:
        """Wake the thread, so that it waits for reports."""
        if not self._rung:
            self._rung = True
            self._bell.put(None)

    def _ring_again(self) -> None:
        self._rung = False
        if len(self._producer):  # also for records that were sent meanwhile
            self._ring()


def _drop_frames(error: Exception) -> None:
    """Drop the frames that an error passed through: they hold the producer."""
    error.__traceback__ = error.__context__ = None


Tell: TypeAlias = Callable[[int, KafkaError | BaseException | None, KafkaMessage | None], None]
"""Receives the index of a record, and its error or its report."""


def send_and_flush(producer: Producer, records: Sequence[Record], tell: Tell) -> None:
    """Send records in order, and wait for their reports. Blocks for the timeout at most."""
    for index, record in enumerate(records):
        try:
            producer.produce(
                record.topic,
                record.value,
                record.key,
                record.partition,
                lambda error, message, at=index: tell(at, error, message),
                headers=record.headers,  # pyright: ignore[reportArgumentType] - invariant
            )
        except (KafkaException, BufferError, TypeError, ValueError) as error:
            tell(index, error, None)
    producer.flush()


class _SingleRecordProducer:
    """Sends records in batches of one. It connects when it is first needed.

    The client library puts small records into one batch, and the broker compares the size of the
    batch with the limit of the topic. It rejects all records of a batch that is too large, although
    each of them would fit.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings | {"batch.num.messages": 1}
        self._max_batch = int(settings.get("batch.size", _MAX_BATCH))
        self._producer: Producer | None = None
        self._lock = threading.Lock()

    def may_fit(self, record: Record, report: object) -> bool:
        """Whether the broker may have rejected a record because of the size of its batch."""
        return isinstance(report, MessageTooLargeError) and record.size <= self._max_batch

    def send(self, records: Sequence[Record], tell: Tell) -> None:
        """Send records in order, and call ``tell`` with each report. Blocks until the last one."""
        with self._lock:
            if self._producer is None:
                self._producer = Producer(self._settings)
            send_and_flush(self._producer, records, tell)


def was_batch_too_large(reports: Sequence[MatadorError | None]) -> bool:
    """Whether several records were sent, and one of them, or their batch, was too large."""
    return len(reports) > 1 and any(isinstance(one, MessageTooLargeError) for one in reports)
