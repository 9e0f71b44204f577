"""Consumes one queue for all subscriptions of this process.

``Poller`` talks to Kafka in a thread, ``Buffer`` holds the messages, and ``Commits`` stores the
progress. ``QueueConsumer`` connects them: it assigns messages to receivers, limits how many the
thread reads, and finishes partitions that a rebalance takes away. All of it belongs to the event
loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import Any

from confluent_kafka import Message as KafkaMessage
from confluent_kafka import TopicPartition

from matador.errors import MatadorError, QueueNotFoundError
from matador.model.message import Delivery
from matador.transports.kafka.buffer import Buffer, LeasedMessage
from matador.transports.kafka.client import KafkaClient
from matador.transports.kafka.delays import BrokerClock, DelayMover
from matador.transports.kafka.poller import Poller
from matador.transports.kafka.progress import Commits, Partition
from matador.transports.kafka.topics import Topics, is_dead_letters
from matador.transports.kafka.wire import received, record_of
from matador.transports.kit.backoff import Backoff
from matador.transports.kit.transport import BaseSubscription
from matador.transports.kit.wakeup import Waiters, Wakeup, wait_in_lines

_MIN_KEY_BACKLOG = 1000
_MAX_AHEAD_BYTES = 1 << 21
_LAST_COMMIT_WAIT = 2.0
_WATCH_EVERY, _WATCH_PAUSE = 3.0, 0.1


class QueueConsumer:
    """A member of one consumer group: of the topic of a queue, or of an exchange it is bound to.

    It leaves the group once it has no receivers and nothing is in flight.

    Args:
        delays: the queue has a topic of delayed messages, which this member moves when due.
        accepts: of an exchange: whether the queue gets messages with a routing key.
        closed: called once no receiver can join any more.
    """

    def __init__(
        self,
        client: KafkaClient,
        queue: str,
        topic: str,
        group: str,
        clock: BrokerClock,
        *,
        delays: bool = False,
        accepts: Callable[[str], bool] | None = None,
        closed: Callable[[QueueConsumer], None],
    ) -> None:
        self.queue = queue
        self.topic = topic
        self.partitions: dict[int, Partition] = {}
        self._client = client
        self._accepts = accepts
        self._closed = closed
        self._loop = asyncio.get_running_loop()
        self._receivers: dict[Wakeup, int] = {}
        self._changed = asyncio.Event()
        self._problem: MatadorError | None = None
        self._kept_open = 0
        self._message_size = 1  # bytes of the last message
        self._stopping = False
        self._forced = False
        self.stopped: asyncio.Future[None] = self._loop.create_future()
        mover = DelayMover(topic, client.producer, clock) if delays else None
        self._trims_letters = not delays and accepts is None and is_dead_letters(queue)
        self._poller = Poller(
            client,
            queue,
            topic,
            group,
            mover,
            on_messages=self._messages_arrived,
            on_assigned=self._assigned,
            on_revoked=self._revoked,
            on_lost=self._lost,
            on_error=self._read_failed,
            on_stopped=self._has_stopped,
        )
        self._commits = Commits(
            client,
            queue,
            commit=self._poller.commit,
            pause_or_resume=self._poller.pause_or_resume,
            membership=self._poller.membership,
            changed=self._change,
            urgent=lambda: self.buffer.is_busy,
        )
        self.buffer = Buffer(client, queue, topic, clock, self._commits, self._change)
        self._check_identity = Wakeup()
        self._tasks: set[asyncio.Task[None]] = set()
        self._spawn(self._watch([topic] if mover is None else [topic, mover.topic]))
        self._poller.start()

    # -- receivers ---------------------------------------------------------------------------------

    def join(self, receiver: Wakeup, prefetch: int) -> None:
        """Add a receiver, for which up to ``prefetch`` messages are read in advance."""
        self._receivers[receiver] = max(1, prefetch)
        self._update_room()

    async def part(self, receiver: Wakeup) -> None:
        """Remove a receiver. Without receivers and deliveries, leave the group."""
        self._receivers.pop(receiver, None)
        receiver.wake()
        self.buffer.waiters.wake()
        if not self._receivers:
            await self.buffer.give_back_and_commit()
        self._change()
        if self._stopping:
            await asyncio.shield(self.stopped)

    async def receive(self, receiver: Wakeup, limit: int) -> list[LeasedMessage]:
        """Up to ``limit`` messages, counted as delivered; empty if the buffer has none.

        Raises:
            TransportError: the topic cannot be read.
        """
        backoff = Backoff()
        while receiver in self._receivers:
            if (problem := self._problem) is not None:
                self._problem = None
                raise problem
            if taken := self.buffer.take(limit):
                self._update_room()
                return taken
            if not self.buffer.start_counting(limit):
                return []
            if not await self.buffer.wait_counted():
                await backoff.sleep()
        self.buffer.waiters.wake()
        return []

    def read_ahead(self, messages: int) -> None:
        """Count up to ``messages`` in advance; fewer if they are large.

        From now on, also count new messages after their delivery.
        """
        self.buffer.defers_counts = True
        self.buffer.ahead = min(messages, _MAX_AHEAD_BYTES // self._message_size)
        self._update_room()

    async def pause(self) -> None:
        """Undo the counts of messages that no receiver has taken.

        Raises:
            TransportError: that could not be committed.
        """
        if (error := await self.buffer.give_back_and_commit()) is not None:
            raise error

    def is_joined(self, receiver: Wakeup) -> bool:
        """Whether a receiver gets messages: it has not parted, and the consumer has not ended."""
        return receiver in self._receivers

    @property
    def has_news(self) -> bool:
        """Whether ``receive`` would return messages, or raise."""
        return len(self.buffer) > 0 or self._problem is not None

    @property
    def waiters(self) -> Waiters:
        return self.buffer.waiters

    async def owned_partitions(self, timeout: float) -> dict[int, Partition]:
        """Wait up to ``timeout`` seconds for partitions.

        The consumer stays in the group until ``release`` was called as often as this.
        """
        self._kept_open += 1
        until = self._loop.time() + timeout
        while not self.partitions and (left := until - self._loop.time()) > 0:
            await self._next_change(left)
        return dict(self.partitions)

    def release(self) -> None:
        self._kept_open -= 1
        self._change()

    async def skip(self, number: int, start: int, end: int) -> int:
        """Finish the messages of a partition that are not in flight; return how many."""
        await self.buffer.give_back_and_commit()
        if (partition := self.partitions.get(number)) is None:
            return 0
        skipped = partition.skip(start, end)
        self.buffer.lines.keep_in_flight(partition)
        self.buffer.drop_finished(partition)
        await self._commits.request(partition)
        return skipped

    async def close(self) -> None:
        """Leave the group at once. The group redelivers what is in flight."""
        self._forced = True
        self._stop()
        await asyncio.shield(self.stopped)

    # -- changes -----------------------------------------------------------------------------------

    async def _next_change(self, timeout: float) -> None:
        waiting = asyncio.ensure_future(self._changed.wait())
        await asyncio.wait([waiting], timeout=timeout)
        waiting.cancel()

    def _change(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
        if not self._receivers:
            self.buffer.give_back_counted()
        self._update_room()
        self._leave_if_idle()

    def _leave_if_idle(self) -> None:
        if self._receivers or self._kept_open or _unsettled(self.partitions.values()):
            return
        if not self._commits.pending:
            self._stop()

    def _stop(self) -> None:
        if not self._stopping:
            self._stopping = True
            self._closed(self)
            self._poller.stop()

    def _update_room(self) -> None:
        """Tell the thread how many messages it may read."""
        capacity = sum(self._receivers.values())
        ahead = self.buffer.ahead if self._receivers else 0
        room = capacity + ahead - self.buffer.uncounted
        if self.buffer.lines.waiting >= max(_MIN_KEY_BACKLOG, 4 * capacity):
            room = 0
        busy = len(self.buffer) > 0 or _unsettled(self.partitions.values()) > 0
        self._poller.allow(room, busy=busy)

    # -- messages ----------------------------------------------------------------------------------

    def _messages_arrived(self, messages: list[tuple[Partition, KafkaMessage]]) -> None:
        self._poller.received(len(messages))
        self._message_size = max(1, len(messages[-1][1]))
        buffer = self.buffer
        buffer.ahead = min(buffer.ahead, _MAX_AHEAD_BYTES // self._message_size)
        skipped: set[Partition] = set()
        ready: list[LeasedMessage] = []
        accepts = self._accepts
        for partition, message in messages:
            if partition.owned and partition.accept(offset := message.offset() or 0):
                leased = (
                    LeasedMessage(buffer, partition, offset, message)
                    if accepts is None
                    else self._accepted(accepts, partition, message)
                )
                if leased is None:
                    skipped.add(partition)
                elif leased.key is None and not partition.is_moved(offset):  # the common case
                    ready.append(leased)
                elif buffer.lines.append(leased):
                    buffer.offer(leased)
        if ready:
            buffer.add(ready)
        self._commits.request_all(skipped)
        self._update_room()

    def _accepted(
        self, accepts: Callable[[str], bool], partition: Partition, message: KafkaMessage
    ) -> LeasedMessage | None:
        """The message of an exchange as one of the queue; None if the queue does not get it."""
        record, routing_key = received(record_of(message))
        if accepts(routing_key):
            return self.buffer.lease(partition, message, record)
        if partition.progress is not None:
            partition.progress.finish(message.offset() or 0)
        return None

    async def _watch(self, topics: Sequence[str]) -> None:
        """Notice that a topic was deleted and recreated, which gives new meaning to its offsets.

        Kafka reports that only if the new topic is shorter than the old one was.
        """
        known: dict[str, str] = {}
        while True:
            try:
                found = await self._client.identities(topics)
            except MatadorError:
                found = dict[str, str]()  # ask again later
            for topic, identity in found.items():
                if known.setdefault(topic, identity) != identity:
                    known[topic] = identity
                    self._poller.start_over(topic)
                elif topic == self.topic:
                    for partition in self.partitions.values():
                        partition.is_new = False
            await asyncio.sleep(_WATCH_PAUSE)
            await self._check_identity.wait(_WATCH_EVERY)

    # -- rebalances --------------------------------------------------------------------------------

    def _assigned(self, partitions: Sequence[Partition]) -> None:
        self.partitions |= {one.number: one for one in partitions if one.owned}
        self._commits.confirm_membership()
        if partitions:
            self._spawn(self._find_fresh(partitions))
        self._change()

    async def _find_fresh(self, partitions: Sequence[Partition]) -> None:
        """Find the ends of new partitions. Without an answer, every count is committed first."""
        try:
            ends = await self._client.ends(self.topic, [one.number for one in partitions])
        except MatadorError:
            return
        for one in partitions:
            one.fresh_from = ends.get(one.number)

    def _lost(self, partitions: Iterable[Partition]) -> None:
        lost = list(partitions)
        for one in lost:
            one.owned = False
            if self.partitions.get(one.number) is one:
                del self.partitions[one.number]
        self.buffer.drop_lost(lost)
        self._change()

    async def _revoked(self, partitions: Sequence[Partition]) -> list[TopicPartition]:
        """Stop delivering, wait a while for running handlers, and return the last offsets."""
        for one in partitions:
            one.leaving = True
        self.buffer.leave(partitions)
        wait = 0.0 if self._forced else self._client.address.revoke_wait
        until = self._loop.time() + wait
        while _unsettled(partitions) and (left := until - self._loop.time()) > 0:
            await self._next_change(left)
        # Callers that wait for a commit must hear of it while the partitions are still owned.
        timeout = _LAST_COMMIT_WAIT if self._forced else self._client.address.timeout
        await self._commits.drain(partitions, timeout)
        places = [place for one in partitions if (place := one.position()) is not None]
        if self._trims_letters:  # a settled dead letter is not needed any more
            self._client.trim(self.topic, {one.partition: one.offset for one in places})
        self._lost(partitions)
        return places

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _read_failed(self, error: MatadorError | None) -> None:
        self._check_identity.wake()
        if error is not None:
            self._problem = error
            self.buffer.waiters.wake()

    def _has_stopped(self) -> None:
        self._stop()
        self._lost(list(self.partitions.values()))
        for task in self._tasks:
            task.cancel()
        self.buffer.close()
        for receiver in list(self._receivers):
            receiver.wake()
        self._receivers.clear()
        if not self.stopped.done():
            self.stopped.set_result(None)


def _unsettled(partitions: Iterable[Partition]) -> int:
    return sum(one.unsettled for one in partitions)


class KafkaSubscription(BaseSubscription):
    """One receiver of a queue. All receivers of a process share its consumers: one for the topic
    of the queue, and one for each exchange that the queue is bound to.

    Args:
        find: the consumers that the queue has now.
        closed: called when the subscription closes.
    """

    def __init__(
        self,
        consumers: Sequence[QueueConsumer],
        topics: Topics,
        prefetch: int,
        find: Callable[[str], Awaitable[Sequence[QueueConsumer]]],
        closed: Callable[[KafkaSubscription], object],
    ) -> None:
        super().__init__(consumers[0].queue)
        self._consumers: list[QueueConsumer] = []
        self._topics = topics
        self._prefetch = prefetch
        self._find = find
        self._closed = closed
        self._wakeup = Wakeup()
        self._reads_ahead = False
        self._join(consumers)

    async def receive(self, limit: int) -> Sequence[Delivery]:
        """Wait for messages, also while Kafka cannot be reached."""
        while self._active:
            for consumer in list(self._consumers):
                try:
                    messages = await consumer.receive(self._wakeup, limit)
                except QueueNotFoundError:
                    self._topics.forget(consumer.topic)
                    await self._topics.find(consumer.topic)  # recreates a declared topic
                    continue
                if messages:
                    self._move_to_end(consumer)
                    return [one.delivery() for one in messages]
            if self._active and not all(one.is_joined(self._wakeup) for one in self._consumers):
                await self.refresh()
            elif self._active and not any(one.has_news for one in self._consumers):
                await wait_in_lines(self._wakeup, [one.waiters for one in self._consumers])
        return ()

    async def refresh(self) -> None:
        """Receive from the topics that belong to the queue now, and replace failed consumers.

        Raises:
            TransportError: they cannot be read. The caller backs off.
        """
        consumers = await self._find(self.queue)
        if self._active:
            self._join(consumers)
            self._wakeup.wake()

    def read_ahead(self, messages: int) -> None:
        self._reads_ahead = True
        for consumer in self._consumers:
            consumer.read_ahead(messages)

    async def pause(self) -> None:
        for consumer in self._consumers:
            await consumer.pause()

    async def close(self) -> None:
        """Stop receiving. With the last subscription of a queue, its groups are left."""
        if self._active:
            self._active = False
            self._closed(self)
            for consumer in self._consumers:
                await consumer.part(self._wakeup)

    def _join(self, consumers: Sequence[QueueConsumer]) -> None:
        self._consumers = list(consumers)
        for consumer in consumers:
            if not consumer.is_joined(self._wakeup):
                consumer.join(self._wakeup, self._prefetch)
            if self._reads_ahead and not consumer.buffer.defers_counts:
                consumer.read_ahead(0)

    def _move_to_end(self, served: QueueConsumer) -> None:
        """Ask the other consumers first next time, and wake other receivers for what they have."""
        if len(self._consumers) > 1 and served in self._consumers:
            self._consumers.remove(served)
            for other in self._consumers:
                if other.has_news:
                    other.waiters.wake()
            self._consumers.append(served)
