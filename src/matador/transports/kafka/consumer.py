"""Consumes one queue for all subscriptions of this process.

A thread talks to Kafka: it reads messages while there is room for them, commits, moves delayed ones
that are due, and answers rebalances. Everything else happens in the event loop: who gets what, and
lines of keys. The thread goes on polling while handlers run: a long one keeps its partition.

The client library lets one thread in at a time, and a poll cannot be interrupted. So the thread
waits in a poll only while there is nothing to commit; otherwise it waits for commits, and looks for
messages in between.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, TypeAlias

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka import Message as KafkaMessage

from matador.errors import (
    LeaseLostError,
    MatadorError,
    SendFailedError,
    SendTimeoutError,
)
from matador.transports.coalescer import Coalescer
from matador.transports.kafka.client import KafkaClient
from matador.transports.kafka.delays import BrokerClock, DelayMover
from matador.transports.kafka.deliveries import Hold, Partition, hold_of
from matador.transports.kafka.errors import is_missing, is_rebalancing, still_ours, translate
from matador.transports.kafka.names import is_dead_letters
from matador.transports.kafka.progress import Progress
from matador.transports.kafka.reader import read_one
from matador.transports.kit.backoff import Backoff
from matador.transports.kit.errors import lease_lost
from matador.transports.kit.wakeup import Waiters, Wakeup

_LOG = logging.getLogger(__name__)
_POLL = 0.1  # seconds; also how long closing takes
_SHORTEST_WAIT, _LONGEST_WAIT = 0.001, 0.02  # seconds between looks while there may be commits
_LULL = 0.1  # seconds without room after which partitions are paused
_MOST = 500  # messages read at a time
_FEWEST_WAITING = 1000
_LAST_COMMITS = 2.0
_ASSIGN_TRIES = 30

Outcome: TypeAlias = MatadorError | None
_Committed: TypeAlias = dict[int, KafkaError | KafkaException | None]


class QueueConsumer:
    """A member of the group of one queue. All methods belong to the event loop."""

    def __init__(
        self,
        client: KafkaClient,
        queue: str,
        topic: str,
        group: str,
        clock: BrokerClock,
        *,
        delays: bool,
        closed: Callable[[QueueConsumer], None],
    ) -> None:
        self.queue = queue
        self.topic = topic
        self.partitions: dict[int, Partition] = {}
        self._client = client
        self._clock = clock
        self._closed = closed
        self._revoke_wait = client.address.revoke_wait
        self._session = client.address.session
        self._timeout = client.address.timeout
        self._loop = asyncio.get_running_loop()
        self._ready: deque[Hold] = deque()
        self._waiters = Waiters()
        self._receivers: dict[Wakeup, int] = {}
        self._changed = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._commits: Coalescer[Partition, Outcome] = Coalescer(self._commit, max_batch=100_000)
        self.committing = asyncio.Lock()
        self._verified = time.monotonic()
        self._problem: MatadorError | None = None
        self._keeping = 0
        self._asking = False
        self.stopped: asyncio.Future[None] = self._loop.create_future()
        # Between the thread and the loop: each is written by one of them.
        self._room = 0
        self._handed = 0
        self._received = 0
        self._stopping = False
        self._forced = False
        self._busy = False
        self._woken = threading.Event()
        self._commands: deque[Callable[[], object]] = deque()
        # For the thread only.
        self._held_back = False
        self._assigned: dict[int, Partition] = {}
        self._mover = DelayMover(topic, client.producer, clock) if delays else None
        self._wait_next = _SHORTEST_WAIT
        settings = client.address.consumer_settings(group) | {"error_cb": client.failed}
        self._consumer = Consumer(settings)
        self._thread = threading.Thread(target=self._run, name=f"matador-kafka-{queue}")
        self._thread.daemon = True
        self._thread.start()

    # -- receivers ---------------------------------------------------------------------------------

    def join(self, receiver: Wakeup, prefetch: int) -> None:
        """One more wants messages, at most ``prefetch`` of them in advance."""
        self._receivers[receiver] = max(1, prefetch)
        self._update()

    async def part(self, receiver: Wakeup) -> None:
        """It wants no more. Without receivers and deliveries, the group is left."""
        self._receivers.pop(receiver, None)
        receiver.wake()
        self._waiters.wake()
        self._update()
        if self._leave_if_idle():
            await asyncio.shield(self.stopped)

    async def receive(self, receiver: Wakeup, limit: int) -> list[Hold]:
        """Up to ``limit`` messages, counted as delivered; none if ``receiver`` has parted.

        Raises:
            TransportError: the topic cannot be read.
        """
        backoff = Backoff()
        while receiver in self._receivers:
            if (problem := self._problem) is not None:
                self._problem = None
                raise problem
            taken = self._take(limit)
            if not taken:
                await self._waiters.wait(receiver)
                continue
            outcome = await self._begin(taken)
            if receiver not in self._receivers:
                self._give_back(taken)
                break
            ours = [hold for hold in taken if hold.is_ours]
            if outcome is None and ours:
                return ours
            if outcome is not None:
                self._give_back(taken)
                await backoff.sleep()
        self._waiters.wake()
        return []

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
        if (partition := self.partitions.get(number)) is None:
            return 0
        skipped = partition.skip(start, end)
        progress = partition.progress
        if progress is not None:
            self._ready = deque(
                hold
                for hold in self._ready
                if hold.partition is not partition or not progress.is_finished(hold.offset)
            )
        await self.commit(partition)
        return skipped

    def let_go(self) -> None:
        """See ``owned``."""
        self._keeping -= 1
        self._change()

    async def take(self, hold: Hold) -> bool:
        """Deliver a message that was found by other means; False if it cannot be had."""
        partition = hold.partition
        if not hold.is_ours or partition.leaving:
            return False
        if partition.progress is None:
            partition.progress = Progress(0)
        if not partition.may_take(hold.offset):
            return False
        self._ready = deque(one for one in self._ready if one.offset != hold.offset)
        return await self._begin([hold]) is None and hold.is_ours

    async def close(self) -> None:
        """Leave the group at once; what is in hand is redelivered to others."""
        self._forced = True
        self._stop()
        await asyncio.shield(self.stopped)

    @property
    def is_closing(self) -> bool:
        """Whether it cannot be joined any more."""
        return self._stopping

    def _take(self, limit: int) -> list[Hold]:
        taken: list[Hold] = []
        ready = self._ready
        while ready and len(taken) < limit:
            hold = ready.popleft()
            if hold.is_ours and not hold.partition.leaving:
                taken.append(hold)
        self._update()
        return taken

    async def _begin(self, holds: Sequence[Hold]) -> Outcome:
        """Count the deliveries, durably: a message that kills its worker must be known as one."""
        for hold in holds:
            if hold.partition.progress is not None:
                hold.count = hold.partition.progress.begin(hold.offset)
        try:
            outcomes = await self._store({hold.partition for hold in holds})
        except BaseException:  # cancelled
            self._give_back(holds)
            raise
        failed = [
            one for one in outcomes if one is not None and not isinstance(one, LeaseLostError)
        ]
        return failed[0] if failed else None

    def _give_back(self, holds: Iterable[Hold]) -> None:
        for hold in reversed(list(holds)):
            if hold.is_ours and hold.partition.progress is not None:
                hold.partition.progress.release(hold.offset)
                self._ready.appendleft(hold)
                self._commits.submit(hold.partition)
        self._waiters.wake(len(self._ready))
        self._change()

    # -- commits -----------------------------------------------------------------------------------

    async def commit(self, partition: Partition) -> Outcome:
        """See ``Keeper``."""
        return (await self._store([partition]))[0]

    async def verify(self, partition: Partition) -> Outcome:
        """See ``Keeper``."""
        if time.monotonic() - self._verified < self._session / 2:
            return None
        return await self.commit(partition)

    async def membership(self) -> Any:
        """See ``Keeper``."""
        call: asyncio.Future[Any] = self._loop.create_future()
        self._commands.append(
            lambda: self._tell(_resolve, call, self._consumer.consumer_group_metadata())
        )
        self._woken.set()
        done, _ = await asyncio.wait([call], timeout=self._timeout)
        return call.result() if done else None

    async def _store(self, partitions: Iterable[Partition]) -> list[Outcome]:
        return await asyncio.gather(*[self._commits.submit(one) for one in partitions])

    async def _commit(self, partitions: Sequence[Partition]) -> list[Outcome]:
        """One commit for all that have changed; again while the group is being rearranged."""
        found: dict[Partition, Outcome] = {}
        pending = set(partitions)
        backoff = Backoff(0.01, 0.2)
        until = self._loop.time() + self._timeout
        while pending:
            async with self.committing:
                places = [_place(one) for one in pending if one.owned]
                offsets = [place for place in places if place is not None]
                outcomes = await self._commit_offsets(offsets) if offsets else {}
            found |= outcomes
            pending = {one for one, outcome in outcomes.items() if is_rebalancing(outcome)}
            if pending and self._loop.time() > until:
                break
            if pending:
                await backoff.sleep()
        self._change()
        return [self._outcome(one, found.get(one)) for one in partitions]

    def _outcome(self, partition: Partition, outcome: Outcome) -> Outcome:
        """Whether a partition is lost, a rebalance says, and not a commit that came in between."""
        if not partition.owned:
            return lease_lost(self.queue, "its partition is another worker's")
        return still_ours(outcome) if isinstance(outcome, LeaseLostError) else outcome

    async def _commit_offsets(self, offsets: list[TopicPartition]) -> dict[Partition, Outcome]:
        asked = time.monotonic()
        mine = dict(self.partitions)
        call: asyncio.Future[_Committed] = self._loop.create_future()
        self._commands.append(lambda: self._commit_now(offsets, call))
        self._woken.set()
        done, _ = await asyncio.wait([call], timeout=self._timeout + 1)
        if not done:
            late = SendTimeoutError(
                f"{self._client.where}: no answer to a commit of {self.queue!r}"
            )
            return {mine[one.partition]: late for one in offsets if one.partition in mine}
        found: dict[Partition, Outcome] = {}
        for number, error in call.result().items():
            if (partition := mine.get(number)) is None:
                continue
            outcome = (
                None if error is None else translate(error, self._client.where, queue=self.queue)
            )
            found[partition] = outcome
            if outcome is None:
                self._verified = asked
            self._hold_if_crowded(partition)
        return found

    def _commit_now(self, offsets: list[TopicPartition], call: asyncio.Future[_Committed]) -> None:
        """In the thread."""
        found: _Committed
        try:
            done = self._consumer.commit(offsets=offsets, asynchronous=False)
            found = {one.partition: one.error for one in done}
        except KafkaException as error:
            found = dict.fromkeys([one.partition for one in offsets], error)
        self._tell(_resolve, call, found)

    def _hold_if_crowded(self, partition: Partition) -> None:
        """Do not read on where too much is known about too many messages to be stored."""
        crowded = partition.progress is not None and partition.progress.crowded
        if crowded != partition.paused:
            partition.paused = crowded
            self._commands.append(lambda: self._pause_or_resume([partition]))
            self._woken.set()

    # -- settlements -------------------------------------------------------------------------------

    def done(self, hold: Hold, successor: Hold | None = None) -> None:
        """See ``Keeper``."""
        partition = hold.partition
        if successor is not None:
            partition.replace(hold, successor)
            self._offer(successor, front=True)
        elif (following := partition.leave(hold)) is not None:
            self._offer(following)
        self._change()

    async def _next_change(self, timeout: float) -> None:
        waiting = asyncio.ensure_future(self._changed.wait())
        await asyncio.wait([waiting], timeout=timeout)
        waiting.cancel()

    def _change(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
        self._update()
        self._leave_if_idle()

    def _leave_if_idle(self) -> bool:
        if self._receivers or self._keeping or self._in_flight(self.partitions.values()):
            return False
        if self._commits.pending:
            return False
        self._stop()
        return True

    def _stop(self) -> None:
        if not self._stopping:
            self._stopping = True
            self._closed(self)
            self._woken.set()

    @staticmethod
    def _in_flight(partitions: Iterable[Partition]) -> int:
        return sum(one.in_flight for one in partitions)

    # -- what arrives ------------------------------------------------------------------------------

    def _arrived(self, messages: list[tuple[Partition, KafkaMessage]]) -> None:
        self._received += len(messages)
        for partition, message in messages:
            if partition.owned and partition.arrived(message.offset() or 0):
                hold = hold_of(self.queue, partition, message)
                if partition.line_up(hold):
                    self._offer(hold)
        self._update()

    def _offer(self, hold: Hold, *, front: bool = False) -> None:
        """Have it received, once it is due."""
        progress = hold.partition.progress
        if not hold.is_ours or progress is None:
            return
        if hold.offset == hold.root and (moved := progress.moved.get(hold.offset)) is not None:
            self._spawn(self._follow(hold, moved))
        elif hold.due and hold.record.key is not None and (wait := self._wait(hold)) > 0:
            self._loop.call_later(wait, self._offer, hold)
        else:
            if front:
                self._ready.appendleft(hold)
            else:
                self._ready.append(hold)
            self._waiters.wake()

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

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _update(self) -> None:
        """How many messages the thread may read."""
        capacity = sum(self._receivers.values())
        waiting = sum(one.waiting for one in self.partitions.values())
        room = capacity - len(self._ready)
        if waiting >= max(_FEWEST_WAITING, 4 * capacity):
            room = 0
        more = room > self._room
        self._room = room
        self._busy = bool(self._ready) or self._in_flight(self.partitions.values()) > 0
        if more:
            self._woken.set()

    # -- rebalances, in the loop -------------------------------------------------------------------

    def _gained(self, partitions: Sequence[Partition]) -> None:
        self.partitions |= {one.number: one for one in partitions if one.owned}
        self._verified = time.monotonic()
        self._change()

    def _lost(self, partitions: Iterable[Partition]) -> None:
        for one in partitions:
            one.clear()
            if self.partitions.get(one.number) is one:
                del self.partitions[one.number]
        self._ready = deque(hold for hold in self._ready if hold.is_ours)
        self._change()

    async def _give_up(self, partitions: Sequence[Partition]) -> list[TopicPartition]:
        """Deliver nothing more, wait a while for what is in hand, and say how far we have come."""
        for one in partitions:
            one.leaving = True
        until = self._loop.time() + (0.0 if self._forced else self._revoke_wait)
        while self._in_flight(partitions) and (left := until - self._loop.time()) > 0:
            await self._next_change(left)
        # Those who wait for a commit are to hear that it was made, before it is too late for it.
        draining = asyncio.ensure_future(self._commits.drain())
        await asyncio.wait([draining], timeout=_LAST_COMMITS if self._forced else self._timeout)
        draining.cancel()
        places = [place for one in partitions if (place := _place(one)) is not None]
        if self._mover is None and is_dead_letters(self.queue):  # nobody needs those any more
            self._client.trim(self.topic, {one.partition: one.offset for one in places})
        self._lost(partitions)
        return places

    def _failed(self, error: MatadorError) -> None:
        self._problem = error
        self._waiters.wake()

    def _ended(self) -> None:
        self._stop()
        self._lost(list(self.partitions.values()))
        for task in self._tasks:
            task.cancel()
        for receiver in list(self._receivers):
            receiver.wake()
        self._receivers.clear()
        if not self.stopped.done():
            self.stopped.set_result(None)

    # -- the thread --------------------------------------------------------------------------------

    def _run(self) -> None:
        topics = [self.topic] if self._mover is None else [self.topic, self._mover.topic]
        try:
            self._consumer.subscribe(
                topics, on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost
            )
            while not self._stopping:
                try:
                    self._step()
                except KafkaException as error:
                    self._tell(self._failed, translate(error, self._client.where, queue=self.queue))
                    time.sleep(_POLL)
        except Exception:  # noqa: BLE001 - a thread has nobody to raise it to
            _LOG.exception("the consumer of %s has failed", self.queue)
        finally:
            try:
                self._consumer.close()
            except (KafkaException, RuntimeError) as error:
                _LOG.warning("the consumer of %s did not close: %s", self.queue, error)
            self._tell(self._ended)

    def _step(self) -> None:
        self._obey()
        timeout = _POLL
        if self._mover is not None:
            self._mover.wake(self._consumer)
            if finished := self._mover.finished():
                self._tell(self._client.trim, self._mover.topic, finished)
            timeout = self._mover.next_wait(_POLL)
        outstanding = self._handed - self._received
        room = self._room - outstanding
        if room <= 0:
            self._wait_for_room(timeout)
        elif self._held_back:
            self._hold_back(False)
        if self._busy or outstanding:
            found = self._consumer.consume(min(room, _MOST), 0) if room > 0 else []
            found = found or self._poll(0)
            if not found:
                self._woken.wait(min(timeout, self._wait_next))
                self._wait_next = min(2 * self._wait_next, _LONGEST_WAIT)
                return
        else:
            found = self._poll(timeout)
            if found and room > 1:
                found += self._consumer.consume(min(room, _MOST) - 1, 0)
        if found:
            self._wait_next = _SHORTEST_WAIT
            self._hand_over(found)

    def _obey(self) -> None:
        """Do what the loop has asked for."""
        self._woken.clear()
        while self._commands:
            self._wait_next = _SHORTEST_WAIT
            self._commands.popleft()()

    def _poll(self, timeout: float) -> list[KafkaMessage]:
        message = self._consumer.poll(timeout)
        return [] if message is None else [message]

    def _wait_for_room(self, timeout: float) -> None:
        """Paused partitions have to be read anew: only if there is no room for a while."""
        if not self._held_back:
            until = time.monotonic() + min(timeout, _LULL)
            while (left := until - time.monotonic()) > 0:
                self._woken.wait(left)
                self._obey()
                if self._stopping or self._room > self._handed - self._received:
                    return
            self._hold_back(True)

    def _hand_over(self, messages: list[KafkaMessage]) -> None:
        main: list[tuple[Partition, KafkaMessage]] = []
        late: list[KafkaMessage] = []
        for message in messages:
            if (error := message.error()) is not None:
                self._read_failed(error, message)
            elif message.topic() != self.topic:
                late.append(message)
            elif (partition := self._assigned.get(message.partition() or 0)) is not None:
                main.append((partition, message))
        if main:
            self._handed += len(main)
            self._tell(self._arrived, main)
        if late and self._mover is not None:
            self._mover.handle(self._consumer, late)

    def _read_failed(self, error: KafkaError, message: KafkaMessage) -> None:
        if error.code() == KafkaError._AUTO_OFFSET_RESET:
            self._start_over(message)
            return
        passing = error.retriable() or (error.code() < 0 and not is_missing(error))
        if not passing:
            self._tell(self._failed, translate(error, self._client.where, queue=self.queue))

    def _start_over(self, message: KafkaMessage) -> None:
        """Where we want to read there is nothing: the topic was made again, or cleaned up."""
        topic, number = message.topic() or self.topic, message.partition() or 0
        _LOG.warning("%s, partition %d, is read from its beginning", topic, number)
        if topic == self.topic and (old := self._assigned.get(number)) is not None:
            old.owned = False
            made = self._assigned[number] = Partition(self, topic, number, None)
            self._tell(self._lost, [old])
            self._tell(self._gained, [made])
        place = TopicPartition(topic, number, OFFSET_BEGINNING)
        self._consumer.incremental_unassign([place])
        self._consumer.incremental_assign([place])

    def _hold_back(self, held_back: bool) -> None:
        self._held_back = held_back
        self._pause_or_resume(list(self._assigned.values()))

    def _pause_or_resume(self, partitions: Sequence[Partition]) -> None:
        for one in partitions:
            if self._assigned.get(one.number) is not one:
                continue
            place = [TopicPartition(self.topic, one.number)]
            if self._held_back or one.paused:
                self._consumer.pause(place)
            else:
                self._consumer.resume(place)

    def _on_assign(self, consumer: Consumer, places: list[TopicPartition]) -> None:
        found = self._committed(consumer, places)
        start: list[TopicPartition] = []
        gained: list[Partition] = []
        for place in found:
            offset = place.offset if place.offset >= 0 else OFFSET_BEGINNING
            start.append(TopicPartition(place.topic, place.partition, offset))
            if place.topic == self.topic:
                progress = Progress.read(offset, place.metadata) if offset >= 0 else None
                if progress is not None:
                    progress.taken_over()
                partition = Partition(self, self.topic, place.partition, progress)
                self._assigned[place.partition] = partition
                gained.append(partition)
        self._tell(self._gained, gained)
        consumer.incremental_assign(start)
        if self._held_back:
            self._pause_or_resume(gained)

    def _committed(self, consumer: Consumer, places: list[TopicPartition]) -> list[TopicPartition]:
        for _ in range(_ASSIGN_TRIES):
            try:
                return consumer.committed(places, timeout=self._timeout)
            except KafkaException as error:
                _LOG.warning("the progress of %s cannot be read yet: %s", self.queue, error)
                if self._stopping:
                    break
                time.sleep(1)
        return places

    def _on_revoke(self, consumer: Consumer, places: list[TopicPartition]) -> None:
        if self._mover is not None:
            self._mover.commit(consumer)
        gone = self._unassigned(places)
        if gone:
            work = self._give_up(gone)
            try:
                waiting = asyncio.run_coroutine_threadsafe(work, self._loop)
                until = time.monotonic() + self._revoke_wait + self._timeout + 2
                while not waiting.done() and time.monotonic() < until:
                    self._woken.wait(_LONGEST_WAIT)
                    self._obey()  # what is in hand is being settled
                offsets = waiting.result(0)
                if offsets:
                    consumer.commit(offsets=offsets, asynchronous=False)
            except (KafkaException, RuntimeError, TimeoutError, asyncio.CancelledError) as error:
                work.close()
                _LOG.warning("the last commit of %s failed: %r", self.queue, error)
            for one in gone:
                one.owned = False
        consumer.incremental_unassign(places)

    def _on_lost(self, consumer: Consumer, places: list[TopicPartition]) -> None:
        gone = self._unassigned(places)
        for one in gone:
            one.owned = False
        self._tell(self._lost, gone)
        consumer.incremental_unassign(places)

    def _unassigned(self, places: Iterable[TopicPartition]) -> list[Partition]:
        gone: list[Partition] = []
        for place in places:
            if place.topic != self.topic:
                if self._mover is not None:
                    self._mover.revoked(place.partition)
            elif (partition := self._assigned.pop(place.partition, None)) is not None:
                gone.append(partition)
        return gone

    def _tell(self, what: Callable[..., object], *arguments: object) -> None:
        try:
            self._loop.call_soon_threadsafe(what, *arguments)
        except RuntimeError:  # the loop is closed: the program ends
            self._stopping = True


def _place(partition: Partition) -> TopicPartition | None:
    if partition.progress is None:
        return None
    offset, text = partition.progress.commit()
    return TopicPartition(partition.topic, partition.number, offset, metadata=text)


def _resolve(call: asyncio.Future[Any], found: object) -> None:
    if not call.done():
        call.set_result(found)
