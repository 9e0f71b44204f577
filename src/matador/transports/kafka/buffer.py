"""Messages that a consumer has read and not finished: buffered, in line for a key, or in flight.

A delivery is counted, because a message that kills its worker must be recognized. If an earlier
owner of the partition may have delivered the message, the count is committed before a receiver gets
it. While handlers are quick, the buffer counts the next messages in advance, together with the
settlements, so that no receiver waits. The receiver of a newer message never waits: its count is
committed a moment later, see ``progress``. Both need the permission of the runtime.

Messages with one ordering key stand in line. Only the first of a line is delivered, or waits until
it is due; its successor takes its place.

Everything here belongs to the event loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, TypeAlias

from confluent_kafka import Message as KafkaMessage

from matador.errors import LeaseLostError, MatadorError, SendFailedError
from matador.model.message import Delivery, Message
from matador.transports.kafka.client import KafkaClient
from matador.transports.kafka.delays import BrokerClock
from matador.transports.kafka.progress import Commits, Outcome, Partition, Progress
from matador.transports.kafka.reader import read_one
from matador.transports.kafka.wire import AS_IT_IS, Record, content_of, read, record_of
from matador.transports.kit.backoff import Backoff
from matador.transports.kit.wakeup import Waiters

_MAX_COUNTED_AGE = 1.0  # seconds that a counted message waits for a receiver
_BUSY_BATCH = 8
_CLOCK_RETRY = 0.02
_COUNT_WITHIN = 0.005

_Requests: TypeAlias = list[asyncio.Future[Outcome]]


class LeasedMessage:
    """A message that this process has read and may settle.

    Attributes:
        root: the offset in whose place it is handled: the first of a chain of retries with one
            key, or its own.
        stored: its ``successor`` is stored, and only the commit is missing.
        fit: how its dead letter must be reduced to fit into the topic.
    """

    __slots__ = (
        *("_source", "_stored_at", "buffer", "content", "count", "key", "offset", "partition"),
        *("fit", "root", "settled", "stored", "successor"),
    )

    def __init__(
        self,
        buffer: Buffer,
        partition: Partition,
        offset: int,
        source: KafkaMessage | Record,
        stored_at: float | None = None,
    ) -> None:
        self.buffer = buffer
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
        self.successor: LeasedMessage | None = None

    @property
    def queue(self) -> str:
        return self.buffer.queue

    @property
    def record(self) -> Record:
        return self._source if isinstance(self._source, Record) else record_of(self._source)

    @property
    def stored_at(self) -> float:
        """When the broker stored it, by the clock of the broker."""
        if self._stored_at is None:
            assert not isinstance(self._source, Record)
            self._stored_at = self._source.timestamp()[1] / 1000
        return self._stored_at

    @property
    def is_held(self) -> bool:
        """Whether this process may still settle it."""
        return not self.settled and self.partition.owned

    @property
    def due(self) -> float:
        """When it may be delivered, by the clock of the broker; 0: at once."""
        return self.stored_at + self.content.delay if self.content.delay else 0.0

    @property
    def message(self) -> Message:
        return self.content.message(self.queue, self.place)

    @property
    def place(self) -> str:
        """Topic, partition and offset, for errors."""
        return f"{self.partition.topic}/{self.partition.number}/{self.offset}"

    def delivery(self) -> Delivery:
        return self.content.delivery(self.buffer.queue, self, self.count)


class _KeyLines:
    """Lines of messages with the same key; each partition has its own lines."""

    def __init__(self) -> None:
        self._lines: dict[tuple[Partition, bytes], deque[LeasedMessage]] = {}
        self.waiting = 0  # messages behind the first of their line

    def append(self, message: LeasedMessage) -> bool:
        """Put a message at the end of its line; return whether it is the first."""
        if message.key is None:
            return True
        line = self._lines.get((message.partition, message.key))
        if line is None:
            self._lines[message.partition, message.key] = deque((message,))
            return True
        line.append(message)
        self.waiting += 1
        return False

    def replace(self, message: LeasedMessage, successor: LeasedMessage) -> None:
        """Put the successor in the place of the first of a line.

        The consumer may have read the successor at its own offset already, or will read it later.
        """
        key = message.key
        line = None if key is None else self._lines.get((message.partition, key))
        if line and line[0] is message:
            line[0] = successor
            if successor.offset != message.offset:
                twins = [one for one in line if one.offset == successor.offset][1:]
                for twin in twins:
                    line.remove(twin)
                    self.waiting -= 1
                if not twins:
                    message.partition.replaced.add(successor.offset)

    def advance(self, message: LeasedMessage) -> LeasedMessage | None:
        """Remove the first of a line; return the new first."""
        key = message.key
        if key is None:
            return None
        line = self._lines.get((message.partition, key))
        if not line or line[0] is not message:
            return None
        line.popleft()
        if not line:
            del self._lines[message.partition, key]
            return None
        self.waiting -= 1
        return line[0]

    def keep_in_flight(self, partition: Partition) -> None:
        """Drop the messages of a partition that are not in flight; they count as settled."""
        in_flight = set[int]() if partition.progress is None else partition.progress.in_flight
        for (owner, key), line in list(self._lines.items()):
            if owner is partition:
                kept = deque(one for one in line if one.offset in in_flight)
                for one in line:
                    one.settled = one.settled or one not in kept
                self._resize(partition, key, kept)

    def drop(self, partition: Partition) -> None:
        """Drop the lines of a partition that is lost."""
        for owner, key in [one for one in self._lines if one[0] is partition]:
            self._resize(owner, key, deque())

    def _resize(self, partition: Partition, key: bytes, kept: deque[LeasedMessage]) -> None:
        before = self._lines.pop((partition, key))
        self.waiting -= len(before) - 1
        if kept:
            self._lines[partition, key] = kept
            self.waiting += len(kept) - 1


class Buffer:
    """The unfinished messages of one consumer, in the order in which receivers get them.

    Args:
        changed: called when messages were settled or given back.

    Attributes:
        ahead: how many messages may be counted before a receiver asks for them.
        defers_counts: whether the counts of new messages may be committed after the delivery.
        waiters: the receivers that wait for messages.
        lines: the lines of the ordering keys.
    """

    def __init__(
        self,
        client: KafkaClient,
        queue: str,
        topic: str,
        clock: BrokerClock,
        commits: Commits,
        changed: Callable[[], None],
    ) -> None:
        self.queue = queue
        self.commits = commits
        self.ahead = 0
        self.defers_counts = False
        self.waiters = Waiters()
        self.lines = _KeyLines()
        self._client = client
        self._topic = topic
        self._clock = clock
        self._changed = changed
        self._loop = asyncio.get_running_loop()
        self._ready: deque[LeasedMessage] = deque()
        self._counted: deque[LeasedMessage] = deque()
        self._counting: asyncio.Task[None] | None = None
        self._waiting_for_count: list[asyncio.Future[bool]] = []
        self._uncommitted: set[Partition] = set()  # with counts that no commit has yet
        self._age_checked = False
        self._taken_at = 0.0
        self._taken = 0
        self._change_is_due = False
        self._asking_time = False
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def is_busy(self) -> bool:
        """Whether receivers handle many messages while others are being counted."""
        return self.ahead > 0 and self._taken >= _BUSY_BATCH

    @property
    def uncounted(self) -> int:
        return len(self._ready)

    def __len__(self) -> int:
        return len(self._ready) + len(self._counted)

    def close(self) -> None:
        """Stop looking for successors and for the time."""
        for task in self._tasks:
            task.cancel()

    # -- adding ------------------------------------------------------------------------------------

    def lease(
        self, partition: Partition, message: KafkaMessage, record: Record | None = None
    ) -> LeasedMessage:
        """Make a leased message of what was read; ``record`` replaces its content. Never fails."""
        if record is None:
            return LeasedMessage(self, partition, message.offset() or 0, message)
        stored_at = message.timestamp()[1] / 1000
        return LeasedMessage(self, partition, message.offset() or 0, record, stored_at)

    def add(self, messages: Sequence[LeasedMessage]) -> None:
        """Append messages that are due and have no key."""
        self._ready.extend(messages)
        self.waiters.wake(len(messages))

    def offer(self, message: LeasedMessage, *, first: bool = False) -> None:
        """Add a message once it is due. If its successor is stored, add that in its place.

        ``first``: deliver it before all others.
        """
        progress = message.partition.progress
        if not message.is_held or progress is None:
            return
        at = message.offset
        if at == message.root and (successor := progress.moved.get(at)) is not None:
            self._spawn(self._add_successor(message, successor))
        elif message.key is not None and message.due and (wait := self._wait(message)) > 0:
            self._loop.call_later(wait, self.offer, message)
        elif first:
            self._ready.appendleft(message)
            self.waiters.wake()
        else:
            self.add((message,))

    def _wait(self, message: LeasedMessage) -> float:
        if (now := self._clock.now) is None:
            if not self._asking_time:
                self._asking_time = True
                self._spawn(self._ask_time())
            return _CLOCK_RETRY
        return message.due - now + 0.001 if message.due > now else 0.0

    async def _ask_time(self) -> None:
        (report,) = await self._client.producer.send([self._clock.question(self._topic)])
        self._clock.update(report)
        if self._clock.now is None and not isinstance(report, SendFailedError):
            self._clock.use_local_time()
        self._asking_time = False

    async def _add_successor(self, message: LeasedMessage, offset: int) -> None:
        """Read a successor that an earlier owner stored, and put it in the place of a message."""
        partition, backoff = message.partition, Backoff(0.1, 2.0)
        while message.is_held:
            try:
                found = await self._client.blocking(
                    lambda: read_one(self._client.address, self._topic, partition.number, offset)
                )
            except MatadorError:
                await backoff.sleep()
                continue
            if found is None:  # Kafka deleted the successor, but not the original
                if partition.progress is not None:
                    partition.progress.moved.pop(message.offset, None)
                self.offer(message)
            else:
                successor = self.lease(partition, found)
                successor.root = message.offset
                message.settled = True
                self.lines.replace(message, successor)
                self.offer(successor)
            return

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # -- receiving ---------------------------------------------------------------------------------

    def take(self, limit: int) -> list[LeasedMessage]:
        """Take up to ``limit`` messages that may be delivered at once.

        Starts to count the next ones if that is allowed.
        """
        taken: list[LeasedMessage] = []
        counted = self._counted
        while counted and len(taken) < limit:
            message = counted.popleft()
            if message.is_held:
                taken.append(message)
        if taken:
            self._taken_at = self._loop.time()
            self._taken = len(taken)
            if self.ahead and 2 * len(counted) <= self.ahead:  # small batches cost most
                self.start_counting(self.ahead - len(counted))
        elif self.defers_counts and self._counting is None:
            taken = self._take_fresh(limit)
        return taken

    def _take_fresh(self, limit: int) -> list[LeasedMessage]:
        """Take messages that no earlier owner can have delivered; commit their counts soon."""
        taken: list[LeasedMessage] = []
        ready = self._ready
        while ready and len(taken) < limit and _is_fresh(ready[0]):
            message = ready.popleft()
            partition = message.partition
            if message.is_held and not partition.leaving:
                assert partition.progress is not None
                message.count = partition.progress.begin(message.offset)
                if not self._uncommitted:
                    self._loop.call_later(_COUNT_WITHIN, self._commit_counts)
                self._uncommitted.add(partition)
                taken.append(message)
        return taken

    def _commit_counts(self) -> None:
        """Commit the counts of messages that are still being handled."""
        partitions, self._uncommitted = self._uncommitted, set()
        self.commits.request_all([one for one in partitions if one.owned and one.unsettled])

    def start_counting(self, limit: int) -> bool:
        """Count up to ``limit`` messages, unless the buffer is counting already.

        False: there are none to count.
        """
        if self._counting is not None:
            return True
        messages: list[LeasedMessage] = []
        while self._ready and len(messages) < limit:
            message = self._ready.popleft()
            if message.is_held and not message.partition.leaving:
                messages.append(message)
        if messages:
            self._counting = self._loop.create_task(self._count(messages, self._begin(messages)))
        return bool(messages)

    async def wait_counted(self) -> bool:
        """Wait for the end of the counting; False if the counts could not be stored.

        Cancelling the wait does not cancel the counting.
        """
        if self._counting is None:
            return True
        waiter: asyncio.Future[bool] = self._loop.create_future()
        self._waiting_for_count.append(waiter)
        return await waiter

    async def _count(self, messages: Sequence[LeasedMessage], requests: _Requests) -> None:
        stored = False
        try:
            stored = await _all_stored(requests)
        finally:
            self._counting = None
            returned = [one for one in messages if not stored or one.partition.leaving]
            if stored:
                self._counted.extend(one for one in messages if not one.partition.leaving)
            waiting, self._waiting_for_count = self._waiting_for_count, []
            for waiter in waiting:
                if not waiter.done():
                    waiter.set_result(stored)
            self._give_back(returned)
            self._schedule_age_check()
            self.waiters.wake(len(self._counted))
            self._changed()

    async def deliver(self, message: LeasedMessage) -> bool:
        """Count one message that an operator chose; False if it cannot be delivered."""
        partition = message.partition
        if not message.is_held or partition.leaving or not partition.is_free(message.offset):
            return False
        if partition.progress is None:
            partition.progress = Progress(0)
        self._ready = deque(
            one
            for one in self._ready
            if one.offset != message.offset or one.partition is not partition
        )
        stored = False
        try:
            stored = await _all_stored(self._begin([message]))
        finally:
            if not stored:
                self._give_back([message])
        return stored and message.is_held

    def _begin(self, messages: Sequence[LeasedMessage]) -> _Requests:
        partitions: dict[Partition, None] = {}
        for message in messages:
            partition = message.partition
            assert partition.progress is not None
            message.count = partition.progress.begin(message.offset)
            partitions[partition] = None
        return [self.commits.request(one) for one in partitions]

    # -- settlements -------------------------------------------------------------------------------

    def settled(self, messages: Sequence[LeasedMessage]) -> None:
        """The settlements of these messages are committed: offer the next ones of their keys."""
        for message in messages:
            if message.key is not None and (following := self.lines.advance(message)) is not None:
                self.offer(following)
        self._change_soon()

    def replaced(self, message: LeasedMessage, successor: LeasedMessage) -> None:
        """The retry of a message is committed: offer the successor in its place."""
        self.lines.replace(message, successor)
        self.offer(successor, first=True)
        self._change_soon()

    def _change_soon(self) -> None:
        """Call ``changed`` once for all messages that are settled together."""
        if not self._change_is_due:
            self._change_is_due = True
            self._loop.call_soon(self._change)

    def _change(self) -> None:
        self._change_is_due = False
        self._changed()

    # -- giving back -------------------------------------------------------------------------------

    def give_back_counted(self) -> None:
        """Undo the counts of messages that no receiver has taken."""
        counted, self._counted = self._counted, deque()
        self._give_back(counted)

    async def give_back_and_commit(self) -> MatadorError | None:
        """Undo the counts and wait for the commit; None, or why it failed."""
        self.ahead = 0
        if self._counting is not None:
            await asyncio.wait([self._counting])
        requests = [self.commits.request(one) for one in {one.partition for one in self._counted}]
        self.give_back_counted()
        outcomes = [await one for one in requests]
        return next((one for one in outcomes if not _is_stored_or_lost(one)), None)

    def leave(self, partitions: Iterable[Partition]) -> None:
        """Undo the counts in partitions that another worker gets."""
        leaving = set(partitions)
        returned = [one for one in self._counted if one.partition in leaving]
        self._counted = deque(one for one in self._counted if one.partition not in leaving)
        self._give_back(returned)

    def drop_finished(self, partition: Partition) -> None:
        """Drop messages that were finished without being delivered."""
        progress = partition.progress
        if progress is not None:
            self._ready = deque(
                one
                for one in self._ready
                if one.partition is not partition or not progress.is_finished(one.offset)
            )

    def drop_lost(self, partitions: Iterable[Partition]) -> None:
        """Drop the messages of partitions that are lost."""
        for partition in partitions:
            self.lines.drop(partition)
        self._ready = deque(one for one in self._ready if one.is_held)
        self._counted = deque(one for one in self._counted if one.is_held)

    def _give_back(self, messages: Iterable[LeasedMessage]) -> None:
        returned = [one for one in messages if one.is_held]
        for message in reversed(returned):
            if message.partition.progress is not None:
                message.partition.progress.release(message.offset)
                self._ready.appendleft(message)
        if returned:
            self.commits.request_all({one.partition for one in returned})
            self.waiters.wake(len(returned))
            self._changed()

    def _schedule_age_check(self) -> None:
        if self._counted and not self._age_checked:
            self._age_checked = True
            self._loop.call_later(_MAX_COUNTED_AGE, self._check_age)

    def _check_age(self) -> None:
        """Undo counts that no receiver has used for a while: a crash would count for them."""
        self._age_checked = False
        if self._loop.time() - self._taken_at >= _MAX_COUNTED_AGE:
            self.ahead = 0
            self.give_back_counted()
        self._schedule_age_check()


def _is_fresh(message: LeasedMessage) -> bool:
    fresh_from = message.partition.fresh_from
    return fresh_from is not None and message.offset >= fresh_from


async def _all_stored(requests: _Requests) -> bool:
    outcomes = [await one for one in requests]
    return all(map(_is_stored_or_lost, outcomes))


def _is_stored_or_lost(outcome: Outcome) -> bool:
    """The new owner of a lost partition has the messages: that is no failure."""
    return outcome is None or isinstance(outcome, LeaseLostError)
