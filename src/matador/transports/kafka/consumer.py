"""Consumes one queue for all subscriptions of this process.

A thread talks to Kafka (``Poller``). Everything else happens in the event loop: who gets what, the
lines of keys, and how far each partition was handled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any

from confluent_kafka import Message as KafkaMessage
from confluent_kafka import TopicPartition

from matador.errors import MatadorError, SendFailedError
from matador.transports.kafka.client import KafkaClient
from matador.transports.kafka.commits import Commits, Outcome, place_of
from matador.transports.kafka.delays import BrokerClock, DelayMover
from matador.transports.kafka.deliveries import Hold, Partition, hold_of
from matador.transports.kafka.names import is_dead_letters
from matador.transports.kafka.poller import Poller
from matador.transports.kafka.progress import Progress
from matador.transports.kafka.reader import read_one
from matador.transports.kafka.shelf import Shelf
from matador.transports.kafka.wire import received, record_of
from matador.transports.kit.backoff import Backoff
from matador.transports.kit.wakeup import Waiters, Wakeup

_FEWEST_WAITING = 1000
_AHEAD_BYTES = 1 << 21
_LAST_COMMITS = 2.0
_WATCH_EVERY, _WATCH_PAUSE = 3.0, 0.1


class QueueConsumer:
    """A member of the group of one queue. All of it belongs to the event loop."""

    def __init__(
        self,
        client: KafkaClient,
        queue: str,
        topic: str,
        group: str,
        clock: BrokerClock,
        *,
        delays: bool = False,
        wants: Callable[[str], bool] | None = None,
        closed: Callable[[QueueConsumer], None],
    ) -> None:
        self.queue = queue
        self.topic = topic
        self.partitions: dict[int, Partition] = {}
        self._client = client
        self._wants = wants
        self._clock = clock
        self._closed = closed
        self._delays = delays
        self._revoke_wait = client.address.revoke_wait
        self._timeout = client.address.timeout
        self._loop = asyncio.get_running_loop()
        self._receivers: dict[Wakeup, int] = {}
        self._changed = asyncio.Event()
        self._change_soon = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._problem: MatadorError | None = None
        self._keeping = 0
        self._size = 1  # bytes of the message that was read last
        self._asking = False
        self._stopping = False
        self._forced = False
        self.stopped: asyncio.Future[None] = self._loop.create_future()
        mover = DelayMover(topic, client.producer, clock) if delays else None
        self._poller = Poller(client, queue, topic, group, self, mover)
        self._commits = Commits(
            client,
            queue,
            self._poller,
            self.partitions,
            changed=self._change,
            at_once=lambda: self._shelf.is_busy,
        )
        self._shelf = Shelf(self._commits, self._change)
        self._doubtful = Wakeup()
        self._spawn(self._watch([topic] if mover is None else [topic, mover.topic]))
        self._poller.start()

    # -- receivers ---------------------------------------------------------------------------------

    def join(self, receiver: Wakeup, prefetch: int) -> None:
        """One more wants messages, at most ``prefetch`` of them in advance."""
        self._receivers[receiver] = max(1, prefetch)
        self._update()

    async def part(self, receiver: Wakeup) -> None:
        """It wants no more. Without receivers and deliveries, the group is left."""
        self._receivers.pop(receiver, None)
        receiver.wake()
        self._shelf.waiters.wake()
        if not self._receivers:
            await self._shelf.put_back()
        self._change()
        if self._stopping:
            await asyncio.shield(self.stopped)

    async def receive(self, receiver: Wakeup, limit: int) -> list[Hold]:
        """Up to ``limit`` messages, counted as delivered; none if there are none at the moment.

        Raises:
            TransportError: the topic cannot be read.
        """
        backoff = Backoff()
        while receiver in self._receivers:
            if (problem := self._problem) is not None:
                self._problem = None
                raise problem
            if taken := self._shelf.take(limit):
                self._update()
                return taken
            if not self._shelf.count(limit):
                return []
            if not await self._shelf.counted():
                await backoff.sleep()
        self._shelf.waiters.wake()
        return []

    def read_ahead(self, messages: int) -> None:
        """Count up to so many as delivered before they are asked for; fewer if they are large."""
        self._shelf.ahead = min(messages, _AHEAD_BYTES // self._size)
        self._update()

    async def hold_nothing(self) -> None:
        """Have nothing counted that was not received.

        Raises:
            TransportError: that could not be stored.
        """
        if (error := await self._shelf.put_back()) is not None:
            raise error

    def is_joined(self, receiver: Wakeup) -> bool:
        """Whether it gets messages: not once it has parted, or the consumer has ended."""
        return receiver in self._receivers

    @property
    def has_news(self) -> bool:
        """Whether ``receive`` would return something, or raise."""
        return len(self._shelf) > 0 or self._problem is not None

    @property
    def waiters(self) -> Waiters:
        """Those who wait for messages."""
        return self._shelf.waiters

    async def owned(self, timeout: float) -> dict[int, Partition]:
        """The partitions that we have, once we have some or ``timeout`` seconds have passed.

        The group is not left until ``let_go`` was called as often as this.
        """
        self._keeping += 1
        until = self._loop.time() + timeout
        while not self.partitions and (left := until - self._loop.time()) > 0:
            await self._next_change(left)
        return dict(self.partitions)

    async def skip(self, number: int, start: int, end: int) -> int:
        """Finish what nobody holds in a partition of ours; how many messages that were."""
        await self._shelf.put_back()
        if (partition := self.partitions.get(number)) is None:
            return 0
        skipped = partition.skip(start, end)
        progress = partition.progress
        if progress is not None:
            self._shelf.remove(
                lambda hold: hold.partition is partition and progress.is_finished(hold.offset)
            )
        await self.commit(partition)
        return skipped

    def let_go(self) -> None:
        self._keeping -= 1
        self._change()

    async def take(self, hold: Hold) -> bool:
        """Deliver a message that was found by other means; False if it cannot be had."""
        partition = hold.partition
        if not hold.is_ours or partition.leaving:
            return False
        if partition.progress is None:
            partition.progress = Progress(0)
        return partition.may_take(hold.offset) and await self._shelf.count_now(hold)

    async def close(self) -> None:
        """Leave the group at once; what is in hand is redelivered to others."""
        self._forced = True
        self._stop()
        await asyncio.shield(self.stopped)

    @property
    def is_closing(self) -> bool:
        """Whether it cannot be joined any more."""
        return self._stopping

    # -- settlements -------------------------------------------------------------------------------

    def commit(self, partition: Partition) -> asyncio.Future[Outcome]:
        return self._commits.store(partition)

    async def verify(self, partition: Partition) -> Outcome:
        return await self._commits.verify(partition)

    @property
    def committing(self) -> asyncio.Lock:
        return self._commits.lock

    async def membership(self) -> Any:
        call = self._poller.membership()
        done, _ = await asyncio.wait([call], timeout=self._timeout)
        return call.result() if done else None

    def done(self, hold: Hold, successor: Hold | None = None) -> None:
        partition = hold.partition
        if successor is not None:
            partition.replace(hold, successor)
            self._offer(successor, front=True)
        elif hold.key is not None and (following := partition.leave(hold)) is not None:
            self._offer(following)
        self._change_once()

    def all_done(self, partition: Partition, holds: Sequence[Hold]) -> None:
        for hold in holds:
            if hold.key is not None and (following := partition.leave(hold)) is not None:
                self._offer(following)
        self._change_once()

    def _change_once(self) -> None:
        """Once for all that are settled together."""
        if not self._change_soon:
            self._change_soon = True
            self._loop.call_soon(self._change)

    async def _next_change(self, timeout: float) -> None:
        waiting = asyncio.ensure_future(self._changed.wait())
        await asyncio.wait([waiting], timeout=timeout)
        waiting.cancel()

    def _change(self) -> None:
        self._change_soon = False
        self._changed.set()
        self._changed = asyncio.Event()
        if not self._receivers:
            self._shelf.give_back()
        self._update()
        self._leave_if_idle()

    def _leave_if_idle(self) -> None:
        if self._receivers or self._keeping or self._in_flight(self.partitions.values()):
            return
        if not self._commits.pending:
            self._stop()

    def _stop(self) -> None:
        if not self._stopping:
            self._stopping = True
            self._closed(self)
            self._poller.stop()

    @staticmethod
    def _in_flight(partitions: Iterable[Partition]) -> int:
        return sum(one.in_flight for one in partitions)

    # -- what arrives ------------------------------------------------------------------------------

    def arrived(self, messages: list[tuple[Partition, KafkaMessage]]) -> None:
        self._poller.took(len(messages))
        self._size = max(1, len(messages[-1][1]))
        self._shelf.ahead = min(self._shelf.ahead, _AHEAD_BYTES // self._size)
        skipped: set[Partition] = set()
        ready: list[Hold] = []
        queue, wants = self.queue, self._wants
        for partition, message in messages:
            if partition.owned and partition.arrived(offset := message.offset() or 0):
                hold = (
                    Hold(queue, partition, offset, message)
                    if wants is None
                    else self._wanted(wants, partition, message)
                )
                if hold is None:
                    skipped.add(partition)
                elif hold.key is None and not partition.is_moved(offset):  # as most often
                    ready.append(hold)
                elif partition.line_up(hold):
                    self._offer(hold)
        if ready:
            self._shelf.add(ready)
        self._commits.soon(skipped)
        self._update()

    def _wanted(
        self, wants: Callable[[str], bool], partition: Partition, message: KafkaMessage
    ) -> Hold | None:
        """What is to be delivered from an exchange; None: nothing, and it is finished."""
        record, routing_key = received(record_of(message))
        if wants(routing_key):
            return hold_of(self.queue, partition, message, record)
        if partition.progress is not None:
            partition.progress.finish(message.offset() or 0)
        return None

    def _offer(self, hold: Hold, *, front: bool = False) -> None:
        """Have it received, once it is due."""
        progress = hold.partition.progress
        if not hold.is_ours or progress is None:
            return
        if hold.offset == hold.root and (moved := progress.moved.get(hold.offset)) is not None:
            self._spawn(self._follow(hold, moved))
        elif hold.key is not None and hold.due and (wait := self._wait(hold)) > 0:
            self._loop.call_later(wait, self._offer, hold)
        elif front:
            self._shelf.add_first(hold)
        else:
            self._shelf.add([hold])

    def _wait(self, hold: Hold) -> float:
        if (now := self._clock.now) is None:
            if not self._asking:
                self._asking = True
                self._spawn(self._ask_time())
            return 0.02
        return hold.due - now + 0.001 if hold.due > now else 0.0

    async def _ask_time(self) -> None:
        (report,) = await self._client.producer.send([self._clock.question(self.topic)])
        self._clock.saw(report)
        if self._clock.now is None and not isinstance(report, SendFailedError):
            self._clock.guess()
        self._asking = False

    async def _follow(self, hold: Hold, offset: int) -> None:
        """Read the successor that an earlier owner has stored, and put it in its place."""
        partition, backoff = hold.partition, Backoff(0.1, 2.0)
        while hold.is_ours:
            try:
                found = await self._client.blocking(
                    lambda: read_one(self._client.address, self.topic, partition.number, offset)
                )
            except MatadorError:
                await backoff.sleep()
                continue
            if found is None:  # it is gone, but its predecessor is here
                if partition.progress is not None:
                    partition.progress.moved.pop(hold.offset, None)
                self._offer(hold)
            else:
                successor = hold_of(self.queue, partition, found)
                successor.root = hold.offset
                hold.settled = True
                partition.replace(hold, successor)
                self._offer(successor)
            return

    async def _watch(self, topics: Sequence[str]) -> None:
        """Notice that a topic was deleted and made again: its offsets mean others then.

        Kafka says so only where the new one is shorter than the old one was.
        """
        known: dict[str, str] = {}
        while True:
            try:
                found = await self._client.identities(topics)
            except MatadorError:
                found = dict[str, str]()  # it is asked again
            for topic, identity in found.items():
                if known.setdefault(topic, identity) != identity:
                    known[topic] = identity
                    self._poller.start_over(topic)
                elif topic == self.topic:
                    for partition in self.partitions.values():
                        partition.is_new = False
            await asyncio.sleep(_WATCH_PAUSE)
            await self._doubtful.wait(_WATCH_EVERY)

    def doubt(self) -> None:
        self._doubtful.wake()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _update(self) -> None:
        """How many messages the thread may read."""
        capacity = sum(self._receivers.values())
        waiting = sum(one.waiting for one in self.partitions.values())
        ahead = self._shelf.ahead if self._receivers else 0
        room = capacity + ahead - self._shelf.uncounted
        if waiting >= max(_FEWEST_WAITING, 4 * capacity):
            room = 0
        busy = len(self._shelf) > 0 or self._in_flight(self.partitions.values()) > 0
        self._poller.allow(room, busy=busy)

    # -- rebalances --------------------------------------------------------------------------------

    def gained(self, partitions: Sequence[Partition]) -> None:
        self.partitions |= {one.number: one for one in partitions if one.owned}
        self._commits.heard()
        self._change()

    def lost(self, partitions: Iterable[Partition]) -> None:
        for one in partitions:
            one.clear()
            if self.partitions.get(one.number) is one:
                del self.partitions[one.number]
        self._shelf.clean()
        self._change()

    async def give_up(self, partitions: Sequence[Partition]) -> list[TopicPartition]:
        """See ``Owner``. Delivers nothing more, and waits a while for what is in hand."""
        for one in partitions:
            one.leaving = True
        self._shelf.leave(partitions)
        until = self._loop.time() + (0.0 if self._forced else self._revoke_wait)
        while self._in_flight(partitions) and (left := until - self._loop.time()) > 0:
            await self._next_change(left)
        # Those who wait for a commit are to hear that it was made, before it is too late for it.
        await self._commits.drain(partitions, _LAST_COMMITS if self._forced else self._timeout)
        places = [place for one in partitions if (place := place_of(one)) is not None]
        letters = not self._delays and self._wants is None and is_dead_letters(self.queue)
        if letters:  # nobody needs those any more
            self._client.trim(self.topic, {one.partition: one.offset for one in places})
        self.lost(partitions)
        return places

    def failed(self, error: MatadorError) -> None:
        self._problem = error
        self._shelf.waiters.wake()

    def ended(self) -> None:
        self._stop()
        self.lost(list(self.partitions.values()))
        for task in self._tasks:
            task.cancel()
        for receiver in list(self._receivers):
            receiver.wake()
        self._receivers.clear()
        if not self.stopped.done():
            self.stopped.set_result(None)
