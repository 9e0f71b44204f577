"""What was read from a partition and is not finished: what is delivered, and what has to wait."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Any, Protocol

from confluent_kafka import Message as KafkaMessage

from matador.errors import MatadorError
from matador.model.message import Delivery, Message
from matador.transports.kafka.progress import Progress
from matador.transports.kafka.wire import AS_IT_IS, Record, content_of, read, record_of


class Keeper(Protocol):
    """Who consumes a queue, seen from what was delivered of it."""

    async def verify(self, partition: Partition) -> MatadorError | None:
        """Make sure that a partition is still ours, if we have not heard of that for a while."""
        ...

    def commit(self, partition: Partition) -> asyncio.Future[MatadorError | None]:
        """Store the progress of a partition; None, or why it is not stored."""
        ...

    @property
    def committing(self) -> asyncio.Lock:
        """Held while something is committed."""
        ...

    async def membership(self) -> Any:
        """Who commits, for a transaction; None if it cannot be said."""
        ...

    def done(self, hold: Hold, successor: Hold | None = None) -> None:
        """It is settled, and that is stored. ``successor`` is next in its place."""
        ...

    def all_done(self, partition: Partition, holds: Sequence[Hold]) -> None:
        """The same for many of a partition, which have no successors."""
        ...


class Hold:
    """A message in our hands.

    ``root`` is the message in whose place it is handled: the first of a chain of retries with one
    key, or itself. ``stored``: its ``successor`` is, and only the commit is missing. ``fit``: how
    its dead letter has to be.
    """

    __slots__ = (
        *("_source", "_stored_at", "content", "count", "key", "offset", "partition", "queue"),
        *("fit", "root", "settled", "stored", "successor"),
    )

    def __init__(
        self,
        queue: str,
        partition: Partition,
        offset: int,
        source: KafkaMessage | Record,
        stored_at: float | None = None,
    ) -> None:
        self.queue = queue
        self.partition = partition
        self.offset = self.root = offset
        self._source = source
        self._stored_at = stored_at
        if isinstance(source, Record):
            self.key, self.content = source.key, read(source)
        else:
            self.key, self.content = content_of(source)
        self.count = 0
        self.settled = self.stored = False
        self.fit = AS_IT_IS
        self.successor: Hold | None = None

    @property
    def record(self) -> Record:
        """What is stored."""
        return self._source if isinstance(self._source, Record) else record_of(self._source)

    @property
    def stored_at(self) -> float:
        """When it was stored, by the broker's clock."""
        if self._stored_at is None:
            assert not isinstance(self._source, Record)
            self._stored_at = self._source.timestamp()[1] / 1000
        return self._stored_at

    @property
    def is_ours(self) -> bool:
        """Whether it may still be settled."""
        return not self.settled and self.partition.owned

    @property
    def due(self) -> float:
        """When it may be delivered, by the broker's clock; 0: at once."""
        return self.stored_at + self.content.delay if self.content.delay else 0.0

    @property
    def message(self) -> Message:
        """The message as it was sent."""
        return self.content.message(self.queue, self.place)

    @property
    def place(self) -> str:
        """Where it is stored."""
        return f"{self.partition.topic}/{self.partition.number}/{self.offset}"

    def delivery(self) -> Delivery:
        """What its receiver gets."""
        return self.content.delivery(self.queue, self, self.count)


class Partition:
    """One assignment of a partition: from when we get it to when we lose it.

    Messages with one key stand in line: only the first of a line is delivered, or waits for its
    time. ``owned`` is also read, and set, by the thread that polls. ``is_new``: it has just been
    started over, from its beginning.
    """

    def __init__(self, keeper: Keeper, topic: str, number: int, progress: Progress | None) -> None:
        self.keeper = keeper
        self.topic = topic
        self.number = number
        self.progress = progress
        self.owned = True
        self.leaving = False
        self.paused = False
        self.is_new = False
        self.waiting = 0
        self.lines: dict[bytes, deque[Hold]] = {}
        self.early: set[int] = set() if progress is None else set(progress.moved.values())
        self._next: int | None = None

    @property
    def in_flight(self) -> int:
        """How many deliveries of it are not settled."""
        return 0 if self.progress is None else len(self.progress.flying)

    def arrived(self, offset: int) -> bool:
        """A message was read. False: it is not to be handled (again)."""
        if offset == self._next and not self.early:  # as most often
            self._next = offset + 1
            assert self.progress is not None
            return not self.progress.is_finished(offset)
        if self.progress is None:
            self.progress = Progress(offset)
        expected = self.progress.offset if self._next is None else self._next
        if offset < expected and self._next is not None:
            return False  # read twice
        if offset > expected:
            self.progress.finish_all(expected, offset)  # there is nothing in between
        self._next = offset + 1
        if offset in self.early:
            self.early.discard(offset)
            return False
        return not self.progress.is_finished(offset)

    def is_moved(self, offset: int) -> bool:
        """Whether a successor is to be handled in its place."""
        return self.progress is not None and offset in self.progress.moved

    def may_take(self, offset: int) -> bool:
        """Whether a message that was found by other means is nobody's yet."""
        progress = self.progress
        return progress is None or not (
            progress.is_finished(offset) or offset in progress.flying or offset in progress.moved
        )

    def skip(self, start: int, end: int) -> int:
        """Finish all from ``start`` to the one before ``end`` that nobody holds; how many."""
        progress = self.progress = self.progress or Progress(start)
        first = max(start, progress.offset)
        kept = {one for one in (*progress.flying, *progress.moved) if first <= one < end}
        skipped = max(0, end - first) - progress.finished_behind(end) - len(kept)
        begin = first
        for stop in (*sorted(kept), end):
            progress.finish_all(begin, stop)
            begin = stop + 1
        progress.counts = {one: n for one, n in progress.counts.items() if one in progress.flying}
        for key, line in list(self.lines.items()):
            self.waiting -= len(line) - 1
            kept_line = deque(one for one in line if one.offset in progress.flying)
            for one in line:
                one.settled = one.settled or one not in kept_line
            self.lines[key] = kept_line
            if not kept_line:
                del self.lines[key]
        return skipped

    def line_up(self, hold: Hold) -> bool:
        """Put it at the end of the line of its key; whether it is the first."""
        key = hold.key
        if key is None:
            return True
        line = self.lines.get(key)
        if line is None:
            self.lines[key] = deque((hold,))
            return True
        line.append(hold)
        self.waiting += 1
        return False

    def replace(self, hold: Hold, successor: Hold) -> None:
        """The successor takes the place of the first of a line.

        It may have been read from its own place meanwhile, or is yet to be.
        """
        key = hold.key
        line = None if key is None else self.lines.get(key)
        if line and line[0] is hold:
            line[0] = successor
            if successor.offset != hold.offset:
                twins = [one for one in line if one.offset == successor.offset][1:]
                for twin in twins:
                    line.remove(twin)
                    self.waiting -= 1
                if not twins:
                    self.early.add(successor.offset)

    def leave(self, hold: Hold) -> Hold | None:
        """The first of a line is finished; who is first now."""
        key = hold.key
        if key is None:
            return None
        line = self.lines.get(key)
        if not line or line[0] is not hold:
            return None
        line.popleft()
        if not line:
            del self.lines[key]
            return None
        self.waiting -= 1
        return line[0]

    def clear(self) -> None:
        """It is lost."""
        self.owned = False
        self.lines.clear()
        self.waiting = 0


def hold_of(
    queue: str, partition: Partition, message: KafkaMessage, record: Record | None = None
) -> Hold:
    """What was read from a partition; ``record``: as what it is handled. Never fails."""
    if record is None:
        return Hold(queue, partition, message.offset() or 0, message)
    stored_at = message.timestamp()[1] / 1000
    return Hold(queue, partition, message.offset() or 0, record, stored_at)
