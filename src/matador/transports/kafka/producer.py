"""Sends records; each has its own delivery report, and a burst of reports wakes the loop once.

A thread waits for the first report of a burst, and the loop takes the others. If the thread took
them all, it and the loop would hand the interpreter to each other for each.
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

from matador.errors import MatadorError, SendUnconfirmedError
from matador.transports.kafka.errors import translate
from matador.transports.kafka.options import Settings
from matador.transports.kafka.singles import Singles
from matador.transports.kafka.wire import Record

_POLL = 0.19  # seconds; also how long stopping takes


class Location:
    """Where a record was stored, and when by the broker's clock (0: its topic does not say)."""

    __slots__ = ("offset", "partition", "stored_at")

    def __init__(self, message: KafkaMessage) -> None:
        kind, milliseconds = message.timestamp()
        self.partition = -1 if (found := message.partition()) is None else found
        self.offset = -1 if (found := message.offset()) is None else found
        self.stored_at = milliseconds / 1000 if kind == TIMESTAMP_LOG_APPEND_TIME else 0.0


Report: TypeAlias = MatadorError | Location | None
"""Why a record is not stored; None, or where it is if that was asked for."""


class _Arrived(Exception):
    """Ends a flush: the client library puts the reports that are left back."""


_ARRIVED = _Arrived()
"""Always the same object: the client library never releases what a report raises."""


class Batch:
    """Records that were sent together: done when the last of them has its report."""

    __slots__ = ("done", "last", "number", "reports")

    def __init__(self, size: int, done: Callable[[Batch], None]) -> None:
        self.reports: list[Report] = [None] * size
        self.number = count(1).__next__  # atomic: reports come in several threads
        self.last = size
        self.done = done

    def put(self, index: int, report: Report) -> None:
        if report is not None:
            self.reports[index] = report
        if self.number() == self.last:
            self.done(self)


class Slip(msgspec.Struct, frozen=True, gc=False):
    """Goes with one record, and is called with its report: quicker than a ``partial``."""

    producer: KafkaProducer
    batch: Batch
    index: int
    record: Record

    def __call__(self, error: KafkaError | None, message: KafkaMessage) -> None:
        producer, batch, index = self.producer, self.batch, self.index
        if error is not None:
            batch.put(index, producer.translate(error, self.record))
        elif message.offset() is None:
            batch.put(index, producer.unplaced(message))
        elif self.record.located:
            batch.put(index, Location(message))
        elif batch.number() == batch.last:  # put, as most often
            batch.done(batch)
        producer.reported()


class KafkaProducer:
    """One producer with the thread that serves its reports.

    ``send`` belongs to the event loop; ``send_now`` is for other threads.
    """

    def __init__(
        self, settings: Settings, where: str, on_error: Callable[[KafkaError], None], *, limit: int
    ) -> None:
        self._where = where
        self._limit = limit
        self._loop = asyncio.get_running_loop()
        self._producer = Producer(settings | {"error_cb": on_error})
        self._singles = Singles(settings)
        self._woken = False
        self._done: deque[tuple[asyncio.Future[list[Report]], list[Report]]] = deque()
        self._lock = threading.Lock()  # one batch is produced after the other, whoever sends
        self._bell: SimpleQueue[None] = SimpleQueue()  # woken by it sooner than by an Event
        self._rung = False  # until nothing is on its way, or the loop has taken the reports
        self._blocked = 0  # threads that wait for reports, and must not wait for the loop
        self._stopping = False
        self._owner = threading.get_ident()
        self._waiter = 0
        self._thread = threading.Thread(target=self._serve, name="matador-kafka-producer")
        self._thread.daemon = True
        self._thread.start()

    async def send(self, records: Sequence[Record]) -> list[Report]:
        """For each, in order: None or its place once all replicas in sync have it, or why not."""
        if not records:
            return []
        future: asyncio.Future[list[Report]] = self._loop.create_future()
        self._produce(records, Batch(len(records), partial(self._wake, future)))
        reports = await future
        if refused := self._refused_together(records, reports):
            await asyncio.to_thread(self._send_singly, records, reports, refused)
        return reports

    def send_now(self, records: Sequence[Record]) -> list[Report]:
        """The same for another thread, which waits for it."""
        if not records:
            return []
        future: Future[list[Report]] = Future()
        batch = Batch(len(records), lambda batch: future.set_result(batch.reports))
        with self._lock:
            self._blocked += 1
        try:
            self._produce(records, batch)
            self._bell.put(None)  # even if the loop is to take reports: it may be busy
            reports = future.result()
        finally:
            with self._lock:
                self._blocked -= 1
        if refused := self._refused_together(records, reports):
            self._send_singly(records, reports, refused)
        return reports

    def refresh(self, topic: str, timeout: float) -> None:
        """Have it look for a topic again that it has found missing. Blocks.

        Raises:
            KafkaException: nobody could be asked.
        """
        self._producer.list_topics(topic, timeout)

    async def close(self) -> None:
        """Wait for all reports, and end."""
        await asyncio.to_thread(self._close)

    def _close(self) -> None:
        self._producer.flush(5)
        self._stopping = True
        self._thread.join()
        self._producer.purge()
        self._producer.flush(1)  # those who still wait hear of it

    # -- inside ------------------------------------------------------------------------------------

    def _refused_together(self, records: Sequence[Record], reports: Sequence[Report]) -> list[int]:
        """Which of them may fit if they travel alone, and need not be before one that is stored."""
        if not any(reports):  # as most often
            return []
        chosen: list[int] = []
        stored: set[bytes] = set()
        for at in range(len(records) - 1, -1, -1):
            record, report = records[at], reports[at]
            if record.key not in stored and self._singles.may_fit(record, report):
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
            unplaced = message.offset() is None
            located = Location(message) if records[at].located else None
            reports[at] = self.unplaced(message) if unplaced else located

        self._singles.send([records[at] for at in chosen], put)

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
                        Slip(self, batch, index, record),
                        headers=record.headers,  # pyright: ignore[reportArgumentType] - invariant
                    )
                except (KafkaException, BufferError, TypeError, ValueError) as error:
                    failed.append((index, error))
        self._ring()
        for index, error in failed:
            batch.put(index, self.translate(error, records[index]))

    def reported(self) -> None:
        """A record has its report. The thread leaves the others to the loop."""
        if self._blocked == 0 and threading.get_ident() == self._waiter:
            raise _ARRIVED

    def unplaced(self, message: KafkaMessage) -> MatadorError:
        """What the client library calls stored because the broker calls it a duplicate.

        The broker also does that to the first record of a producer in a partition if one that was
        sent after it arrives first: when a partition that is new, or is changing its leader,
        refuses the one and takes the other. Then it is not stored. A true duplicate has a place.
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
        """Have the loop call it; False if the loop is closed: nobody waits."""
        try:
            self._loop.call_soon_threadsafe(what)
        except RuntimeError:
            return False
        return True

    def _serve(self) -> None:
        """Wait for reports. A flush ends the linger: what was sent together travels at once."""
        self._waiter = threading.get_ident()
        while not self._stopping:
            try:
                self._bell.get(timeout=_POLL)
                while len(self._producer) and not self._stopping:
                    self._producer.flush(_POLL)
            except Empty:
                self._poll()
            except _Arrived as arrived:
                _forget_frames(arrived)
                if self._call(self._take_reports):
                    continue
            self._ring_again()

    def _poll(self) -> None:
        """Hear of errors while nothing is on its way."""
        try:
            self._producer.poll(0)
        except _Arrived as arrived:
            _forget_frames(arrived)

    def _take_reports(self) -> None:
        """In the loop: those that have arrived by now."""
        self._producer.poll(0)
        self._ring_again()

    def _ring(self) -> None:
        """Have the thread wait for reports."""
        if not self._rung:
            self._rung = True
            self._bell.put(None)

    def _ring_again(self) -> None:
        self._rung = False
        if len(self._producer):  # of what was sent meanwhile, too
            self._ring()


def _forget_frames(error: Exception) -> None:
    """Drop the frames that an error passed through: they hold the producer."""
    error.__traceback__ = error.__context__ = None
