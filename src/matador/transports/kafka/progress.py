"""Progress in the commit: what a worker knows about a partition survives the worker.

A commit of Kafka has one offset per partition, and up to 4,096 bytes of text. The offset can only
say that everything before it is finished. Matador handles messages side by side, so it writes the
rest into the text::

    offset       10      11      12      13      14      15      16
              +-------+-------+-------+-------+-------+-------+-------+---
    partition |   A   |   B   |   C   |   D   |   E   |   F   |       |
              +-------+-------+-------+-------+-------+-------+-------+---
    state     in      finished in     finished finished retried, not
              flight          flight                  successor  read
              (1st)           (3rd)                   at 31      yet

    commit    offset  10                     the first message that is not finished
              text    finished   11, 13-14   runs behind the offset
                      in flight  10, 12      delivered and not settled
                      counts     12: 3       deliveries, where it is more than one
                      moved      15: 31      offset 31 is handled in the place of 15

Every change is committed before the worker relies on it::

    deliver    begin(12)          -> commit -> the handler starts
    complete   finish(12)         -> commit -> settle() returns
    retry      store successor 31 -> move(15, 31) -> commit -> settle() returns

One commit may come later, for handlers that may run again after a crash. A message that was sent
after this worker got the partition is certainly delivered for the first time. Its handler starts at
once, and the count is committed within a few milliseconds, or with the settlement. If the worker
dies before that, the next owner does not know of this delivery. It commits the count before its own
delivery, because the message is older than its assignment. So the count of a message that kills
every worker may lag by one.

So the worker that gets the partition next knows what happened, however the last one ended:

- a finished message is not delivered again;
- a message in flight is delivered again, and its count grows, so that a message that kills every
  worker is recognized and becomes a dead letter;
- a successor with an ordering key is handled in the place of its original, before later messages
  of that key.

``Progress`` is the state of one partition and its text. ``Partition`` is the time for which this
process owns a partition. ``Commits`` stores the progress of all partitions that a consumer owns.
"""

from __future__ import annotations

import asyncio
import time
import zlib
from base64 import b64decode, b64encode, b85decode, b85encode
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, TypeAlias

import msgspec
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from matador.errors import LeaseLostError, MatadorError, SendTimeoutError
from matador.transports.kafka.client import KafkaClient
from matador.transports.kafka.errors import is_rebalancing, still_owned, translate
from matador.transports.kit.backoff import Backoff
from matador.transports.kit.errors import lease_lost

_MAX_TEXT = 3900  # Kafka accepts 4096 bytes
_CROWDED_TEXT = 2800
_COMPRESSED_MARK, _PLAIN_MARK = "m1:", "m0:"
_MIN_COMPRESSED = 300  # bytes; compression does not pay for less
_MAX_MOVED = 200
_MAX_UNPACKED = 1 << 20
_LOOP_TURNS = 2


class _Notes(msgspec.Struct, array_like=True):
    """The content of the text. All positions are relative to the committed offset."""

    finished: list[int] = []
    """Starts and ends of runs of finished messages: steps from one to the next."""
    in_flight: list[int] = []
    """Messages in flight: steps from one to the next."""
    counts: dict[int, int] = {}
    """Delivery counts of messages that are not simply in flight for the first time."""
    moved: dict[int, int] = {}
    """Messages whose successor, with the same key, is handled in their place."""


class Progress:
    """The progress of one partition. Offsets may begin and finish in any order.

    Example:
        >>> progress = Progress(10)
        >>> progress.begin(10), progress.begin(11), progress.finish(11)
        (1, 1, None)
        >>> later = Progress.read(*progress.commit())
        >>> later.offset, later.is_finished(11), later.begin(10)
        (10, True, 2)
    """

    __slots__ = ("_ends", "_starts", "counts", "crowded", "in_flight", "moved", "offset")

    def __init__(self, offset: int) -> None:
        self.offset = offset
        self.in_flight: set[int] = set()
        self.counts: dict[int, int] = {}
        self.moved: dict[int, int] = {}
        self.crowded = False
        self._starts: list[int] = []
        self._ends: list[int] = []

    # -- changes -----------------------------------------------------------------------------------

    def begin(self, offset: int) -> int:
        """Count a delivery; return how many there were, this one included."""
        self.in_flight.add(offset)
        if not (before := self.counts.get(offset, 0)):
            return 1
        self.counts[offset] = before + 1
        return before + 1

    def release(self, offset: int) -> None:
        """Undo ``begin``."""
        self.in_flight.discard(offset)
        count = self.counts.pop(offset, 1) - 1
        if count > 0:
            self.counts[offset] = count

    def move(self, offset: int, successor: int) -> bool:
        """Put ``successor`` in the place of a message; False if there are too many of them."""
        if offset not in self.moved and len(self.moved) >= _MAX_MOVED:
            return False
        self.in_flight.discard(offset)
        self.counts.pop(offset, None)
        self.moved[offset] = successor
        return True

    def finish(self, offset: int) -> None:
        """Record that a message needs no more work."""
        self.in_flight.discard(offset)
        if self.counts:
            self.counts.pop(offset, None)
        if self.moved:
            self.moved.pop(offset, None)
        if offset == self.offset and not self._starts:  # the common case
            self.offset = offset + 1
        else:
            self.finish_range(offset, offset + 1)

    def finish_range(self, start: int, end: int) -> None:
        """Finish the offsets from ``start`` up to, not including, ``end``. None is in flight."""
        start = max(start, self.offset)
        if start >= end:
            return
        starts, ends = self._starts, self._ends
        if start == self.offset and (not starts or end < starts[0]):  # the common case
            self.offset = end
            return
        first = bisect_left(ends, start)
        last = bisect_right(starts, end)
        if first < last:
            start = min(start, starts[first])
            end = max(end, ends[last - 1])
        starts[first:last] = [start]
        ends[first:last] = [end]
        if starts[0] <= self.offset:
            self.offset = max(self.offset, ends[0])
            del starts[0], ends[0]

    def new_owner(self) -> None:
        """Give the partition to a worker that holds no message of it yet.

        Messages in flight keep their counts, so the next delivery is counted on top.
        """
        self.in_flight.clear()

    # -- questions ---------------------------------------------------------------------------------

    @property
    def first_unfinished(self) -> int:
        """The first offset that is neither finished nor replaced by its successor."""
        offset = self.offset
        while True:
            run = bisect_right(self._starts, offset) - 1
            if run >= 0 and offset < self._ends[run]:
                offset = self._ends[run]
            elif offset in self.moved:
                offset += 1
            else:
                return offset

    def is_finished(self, offset: int) -> bool:
        if offset < self.offset:
            return True
        if not self._starts:  # the common case
            return False
        at = bisect_right(self._starts, offset) - 1
        return at >= 0 and offset < self._ends[at]

    def count_finished(self, end: int) -> int:
        """How many offsets from ``offset`` up to, not including, ``end`` are finished."""
        runs = zip(self._starts, self._ends, strict=True)
        return sum(max(0, min(stop, end) - start) for start, stop in runs)

    def copy(self) -> Progress:
        copied = Progress(self.offset)
        copied.in_flight = set(self.in_flight)
        copied.counts = dict(self.counts)
        copied.moved = dict(self.moved)
        copied._starts, copied._ends = list(self._starts), list(self._ends)
        return copied

    # -- the text ----------------------------------------------------------------------------------

    def commit(self) -> tuple[int, str]:
        """The offset and the text to commit."""
        base = self.offset
        bounds = [one for run in zip(self._starts, self._ends, strict=True) for one in run]
        counts = {
            offset - base: count
            for offset, count in self.counts.items()
            if count > 1 or offset not in self.in_flight
        }
        notes = _Notes(
            _steps(bounds, base),
            _steps(sorted(self.in_flight), base),
            counts,
            {offset - base: successor - base for offset, successor in self.moved.items()},
        )
        text = _encode(notes)
        self.crowded = len(text) > _CROWDED_TEXT
        if len(text) > _MAX_TEXT:  # keep the most important: high counts, and the order of keys
            text = _encode(_Notes([], [], counts, notes.moved))
            if len(text) > _MAX_TEXT:
                text = ""
        return base, text

    @staticmethod
    def read(offset: int, text: str | None) -> Progress:
        """The progress in a commit. Never fails: a text of another program is ignored."""
        progress = Progress(offset)
        notes = _decode(text)
        if notes is not None:
            progress._restore(notes)
        return progress

    def _restore(self, notes: _Notes) -> None:
        base = self.offset
        bounds = list(_absolute(notes.finished, base))
        for start, end in zip(bounds[::2], bounds[1::2], strict=False):
            if start > base:
                self.finish_range(start, end)
        self.in_flight = {
            one for one in _absolute(notes.in_flight, base) if not self.is_finished(one)
        }
        counted = {base + one: count for one, count in notes.counts.items() if one >= 0}
        self.counts = dict.fromkeys(self.in_flight, 1) | counted
        self.moved = {
            base + one: base + successor
            for one, successor in notes.moved.items()
            if one >= 0 and successor > 0
        }


def _steps(offsets: Sequence[int], base: int) -> list[int]:
    return [after - before for before, after in pairwise((base, *offsets))]


def _absolute(steps: Iterable[int], base: int) -> Iterator[int]:
    for step in steps:
        base += max(0, step)
        yield base


def _encode(notes: _Notes) -> str:
    if not (notes.finished or notes.in_flight or notes.counts or notes.moved):
        return ""
    packed = msgspec.msgpack.encode(notes)
    if len(packed) <= _MIN_COMPRESSED:
        return _PLAIN_MARK + b64encode(packed).decode()
    return _COMPRESSED_MARK + b85encode(zlib.compress(packed, 1)).decode()


def _decode(text: str | None) -> _Notes | None:
    if not text:
        return None
    try:
        if text.startswith(_PLAIN_MARK):
            packed = b64decode(text[len(_PLAIN_MARK) :])
        elif text.startswith(_COMPRESSED_MARK):
            compressed = b85decode(text[len(_COMPRESSED_MARK) :])
            packed = zlib.decompressobj().decompress(compressed, _MAX_UNPACKED)
        else:
            return None
        return msgspec.msgpack.decode(packed, type=_Notes)
    except (ValueError, zlib.error, msgspec.MsgspecError, RecursionError, OverflowError):
        return None


# -- one partition ---------------------------------------------------------------------------------


class Partition:
    """One assignment of a partition, from the time this process gets it until it loses it.

    Attributes:
        progress: None until the first offset is known.
        owned: False once the partition is lost. The polling thread reads and sets it, too.
        leaving: the group is taking the partition away, so nothing more is delivered.
        paused: reading stopped because the text of the commit is crowded.
        is_new: reading just started over, at the beginning of the topic.
        fresh_from: no earlier owner can have delivered this offset, or later ones; None: unknown.
        replaced: offsets of successors that are handled in the place of their originals. The
            consumer skips them when it reads them.
    """

    def __init__(self, topic: str, number: int, progress: Progress | None) -> None:
        self.topic = topic
        self.number = number
        self.progress = progress
        self.owned = True
        self.leaving = False
        self.paused = False
        self.is_new = False
        self.fresh_from: int | None = None
        self.replaced: set[int] = set() if progress is None else set(progress.moved.values())
        self._next: int | None = None

    @property
    def unsettled(self) -> int:
        """How many deliveries are in flight."""
        return 0 if self.progress is None else len(self.progress.in_flight)

    def accept(self, offset: int) -> bool:
        """Record that a message was read. False: do not handle it, or not again."""
        if offset == self._next and not self.replaced:  # the common case
            self._next = offset + 1
            assert self.progress is not None
            return not self.progress.is_finished(offset)
        if self.progress is None:
            self.progress = Progress(offset)
        expected = self.progress.offset if self._next is None else self._next
        if offset < expected and self._next is not None:
            return False  # read twice
        if offset > expected:
            self.progress.finish_range(expected, offset)  # no messages have these offsets
        self._next = offset + 1
        if offset in self.replaced:
            self.replaced.discard(offset)
            return False
        return not self.progress.is_finished(offset)

    def is_moved(self, offset: int) -> bool:
        """Whether a successor is handled in the place of this message."""
        return self.progress is not None and offset in self.progress.moved

    def is_free(self, offset: int) -> bool:
        """Whether a message is neither finished, nor in flight, nor moved."""
        progress = self.progress
        return progress is None or not (
            progress.is_finished(offset) or offset in progress.in_flight or offset in progress.moved
        )

    def skip(self, start: int, end: int) -> int:
        """Finish every message from ``start`` up to ``end`` that is not in flight; return how
        many there were."""
        progress = self.progress = self.progress or Progress(start)
        first = max(start, progress.offset)
        kept = {one for one in (*progress.in_flight, *progress.moved) if first <= one < end}
        skipped = max(0, end - first) - progress.count_finished(end) - len(kept)
        begin = first
        for stop in (*sorted(kept), end):
            progress.finish_range(begin, stop)
            begin = stop + 1
        progress.counts = {
            one: count for one, count in progress.counts.items() if one in progress.in_flight
        }
        return skipped

    def position(self) -> TopicPartition | None:
        """What to commit; None if nothing is known yet."""
        if self.progress is None:
            return None
        offset, text = self.progress.commit()
        return TopicPartition(self.topic, self.number, offset, metadata=text)


# -- commits ---------------------------------------------------------------------------------------

CommitErrors: TypeAlias = dict[int, KafkaError | KafkaException | None]
"""For each partition number None, or why it was not committed."""

Outcome: TypeAlias = MatadorError | None
_Waiting: TypeAlias = dict[Partition, list[asyncio.Future[Outcome]]]


class Commits:
    """Stores the progress of partitions, with one commit at a time.

    A commit stores everything known when it starts, so it serves all callers that asked before.

    Args:
        commit: sends a commit; the flag says that it is urgent.
        pause_or_resume: applies ``Partition.paused``.
        membership: what a transaction needs to know about the member of the group.
        changed: called after each commit.
        urgent: whether the loop has much to do, so the polling thread must start the commit now.
    """

    def __init__(
        self,
        client: KafkaClient,
        queue: str,
        *,
        commit: Callable[[list[TopicPartition], bool], asyncio.Future[CommitErrors]],
        pause_or_resume: Callable[[Partition], None],
        membership: Callable[[], asyncio.Future[Any]],
        changed: Callable[[], None],
        urgent: Callable[[], bool],
    ) -> None:
        self._where = client.where
        self._session = client.address.session
        self._timeout = client.address.timeout
        self._queue = queue
        self._send = commit
        self._pause_or_resume = pause_or_resume
        self._membership = membership
        self._changed = changed
        self._urgent = urgent
        self._loop = asyncio.get_running_loop()
        self._waiting: _Waiting = {}
        self._served: _Waiting = {}
        self._running: asyncio.Task[None] | None = None
        self._verified = time.monotonic()
        self.lock = asyncio.Lock()  # held during a commit, and during a transaction

    @property
    def pending(self) -> bool:
        """Whether a commit was requested and has not started."""
        return bool(self._waiting)

    def confirm_membership(self) -> None:
        """Note that the group has just assigned partitions to this member."""
        self._verified = time.monotonic()

    def request_all(self, partitions: Iterable[Partition]) -> None:
        """Commit partitions without waiting for the outcome."""
        for one in partitions:
            self.request(one)

    def request(self, partition: Partition) -> asyncio.Future[Outcome]:
        """Commit the progress of a partition; the future has None, or why it is not stored."""
        future: asyncio.Future[Outcome] = self._loop.create_future()
        self._waiting.setdefault(partition, []).append(future)
        if self._running is None:
            self._running = self._loop.create_task(self._run())
        return future

    async def verify(self, partition: Partition) -> Outcome:
        """Commit to make sure that the group still assigns the partition to this member.

        Returns at once if a commit has shown that within half a session.
        """
        if time.monotonic() - self._verified < self._session / 2:
            return None
        return await self.request(partition)

    async def membership(self) -> Any:
        """The group metadata for a transaction; None if the polling thread does not answer."""
        call = self._membership()
        done, _ = await asyncio.wait([call], timeout=self._timeout)
        return call.result() if done else None

    async def drain(self, partitions: Iterable[Partition], timeout: float) -> None:
        """Wait up to ``timeout`` seconds for requested commits of these partitions."""
        under_way = [
            future
            for one in partitions
            for part in (self._served, self._waiting)
            for future in part.get(one, ())
        ]
        if under_way:
            await asyncio.wait(under_way, timeout=timeout)

    async def _run(self) -> None:
        """Commit until no request is left. Repeat what a rebalance has interrupted."""
        backoff = Backoff(0.01, 0.2)
        until = self._loop.time() + self._timeout
        try:
            while self._waiting:
                async with self.lock:
                    served = self._served = self._waiting
                    self._waiting = {}
                    outcomes = await self._commit(served)
                again = [one for one, found in outcomes.items() if is_rebalancing(found)]
                if not again:
                    until = self._loop.time() + self._timeout
                elif self._loop.time() > until:
                    again.clear()
                for one in again:
                    self._waiting.setdefault(one, [])[:0] = served.pop(one, [])
                self._served = {}
                for one, futures in served.items():
                    _resolve(futures, self._outcome(one, outcomes.get(one)))
                self._changed()
                if again:
                    await backoff.sleep()
                elif self._urgent():
                    await _collect_requests()
        except BaseException as error:
            failure = SendTimeoutError(f"a commit of {self._queue!r} was abandoned: {error!r}")
            for futures in (*self._served.values(), *self._waiting.values()):
                _resolve(futures, failure)
            self._served, self._waiting = {}, {}
            raise
        finally:
            self._running = None

    def _outcome(self, partition: Partition, outcome: Outcome) -> Outcome:
        """Only a rebalance takes a partition away. A refused commit alone may be tried again."""
        if not partition.owned:
            return lease_lost(self._queue, "its partition belongs to another worker")
        return still_owned(outcome) if isinstance(outcome, LeaseLostError) else outcome

    async def _commit(self, partitions: Iterable[Partition]) -> dict[Partition, Outcome]:
        asked = time.monotonic()
        places = {
            one.number: (one, place)
            for one in partitions
            if one.owned and (place := one.position()) is not None
        }
        if not places:
            return {}
        call = self._send([place for _, place in places.values()], self._urgent())
        done, _ = await asyncio.wait([call], timeout=self._timeout + 1)
        if not done:
            late = SendTimeoutError(f"{self._where}: a commit of {self._queue!r} was not answered")
            return {one: late for one, _ in places.values()}
        found: dict[Partition, Outcome] = {}
        for number, error in call.result().items():
            partition, _ = places[number]
            outcome = None if error is None else translate(error, self._where, queue=self._queue)
            found[partition] = outcome
            if outcome is None:
                self._verified = asked
            self._pause_if_crowded(partition)
        return found

    def _pause_if_crowded(self, partition: Partition) -> None:
        """Stop reading a partition while its text has little room left."""
        crowded = partition.progress is not None and partition.progress.crowded
        if crowded != partition.paused:
            partition.paused = crowded
            self._pause_or_resume(partition)


def _resolve(futures: Iterable[asyncio.Future[Outcome]], outcome: Outcome) -> None:
    for future in futures:
        if not future.done():
            future.set_result(outcome)


async def _collect_requests() -> None:
    """Let the callers of the last commit run, so that their next requests share one commit.

    Settlements continue in the first turn of the loop, receivers in the second. In the third,
    handlers would start.
    """
    for _ in range(_LOOP_TURNS):
        await asyncio.sleep(0)
