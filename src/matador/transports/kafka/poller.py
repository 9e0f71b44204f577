"""The thread that talks to Kafka for one member of a group.

It reads messages while there is room for them, commits, moves delayed ones that are due, and
answers rebalances. It goes on polling while handlers run: a long one keeps its partition.

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
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, TypeAlias

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka import Message as KafkaMessage

from matador.errors import MatadorError
from matador.transports.kafka.client import KafkaClient
from matador.transports.kafka.delays import DelayMover
from matador.transports.kafka.deliveries import Keeper, Partition
from matador.transports.kafka.errors import is_missing, translate
from matador.transports.kafka.progress import Progress

_LOG = logging.getLogger(__name__)
_POLL = 0.1  # seconds; also how long closing takes
_SHORTEST_WAIT, _LONGEST_WAIT = 0.001, 0.02  # seconds between looks while there may be commits
_LULL = 0.25  # seconds without room after which partitions are paused
_ASSIGN_TRIES = 30
_PICKED_UP = 0.0003

Committed: TypeAlias = dict[int, KafkaError | KafkaException | None]
"""For each partition None, or why it is not committed."""


class Owner(Keeper, Protocol):
    """Who consumes: told in the event loop what has happened."""

    def arrived(self, messages: list[tuple[Partition, KafkaMessage]]) -> None:
        """Messages were read."""
        ...

    def gained(self, partitions: Sequence[Partition]) -> None:
        """Partitions are ours."""
        ...

    def lost(self, partitions: Iterable[Partition]) -> None:
        """Partitions are somebody else's."""
        ...

    async def give_up(self, partitions: Sequence[Partition]) -> list[TopicPartition]:
        """Come to an end with partitions that are to go; what to commit for the last time."""
        ...

    def failed(self, error: MatadorError) -> None:
        """The topic cannot be read."""
        ...

    def doubt(self) -> None:
        """A topic is perhaps not the one that it was."""
        ...

    def ended(self) -> None:
        """The group was left."""
        ...


class Poller:
    """One member of a group, and its thread. Public methods belong to the event loop."""

    def __init__(
        self,
        client: KafkaClient,
        queue: str,
        topic: str,
        group: str,
        owner: Owner,
        mover: DelayMover | None,
    ) -> None:
        self._client = client
        self._queue = queue
        self._topic = topic
        self._owner = owner
        self._mover = mover
        self._loop = asyncio.get_running_loop()
        self._revoke_wait = client.address.revoke_wait
        self._timeout = client.address.timeout
        self._most = client.address.batch_size
        # Between the thread and the loop: each is written by one of them.
        self._room = 0
        self._handed = 0
        self._received = 0
        self._stopping = False
        self._busy = False
        self._woken = threading.Event()
        self._commands: deque[Callable[[], object]] = deque()
        self._picked_up = threading.Lock()
        # For the thread only.
        self._held_back = False
        self._assigned: dict[int, Partition] = {}
        self._wait_next = _SHORTEST_WAIT
        self._consumer = Consumer(
            client.address.consumer_settings(group) | {"error_cb": client.failed}
        )
        self._thread = threading.Thread(target=self._run, name=f"matador-kafka-{queue}")
        self._thread.daemon = True

    # -- for the loop ------------------------------------------------------------------------------

    def start(self) -> None:
        """Join the group."""
        self._thread.start()

    def stop(self) -> None:
        """Leave it."""
        self._stopping = True
        self._woken.set()

    def allow(self, room: int, *, busy: bool) -> None:
        """How many messages may be read; ``busy``: there may be something to commit soon."""
        more = room > self._room
        self._room = room
        self._busy = busy
        if more:
            self._woken.set()

    def took(self, count: int) -> None:
        """So many of those that were read have arrived."""
        self._received += count

    def commit(
        self, offsets: list[TopicPartition], *, at_once: bool = False
    ) -> asyncio.Future[Committed]:
        """Commit. ``at_once``: there is much to do meanwhile, so see that it is under way.

        A thread that waits for the interpreter gets it when the loop has nothing more to do, which
        would be too late. It takes a tenth of a millisecond to let it in.
        """
        call: asyncio.Future[Committed] = self._loop.create_future()
        if at_once:
            self._picked_up.acquire(blocking=False)
        self._command(lambda: self._commit_now(offsets, call))
        if at_once:
            self._picked_up.acquire(timeout=_PICKED_UP)
        return call

    def membership(self) -> asyncio.Future[Any]:
        """Who commits, for a transaction."""
        call: asyncio.Future[Any] = self._loop.create_future()
        self._command(lambda: self._tell(_resolve, call, self._consumer.consumer_group_metadata()))
        return call

    def pause_or_resume(self, partition: Partition) -> None:
        """Read on where a partition is not paused, and do not where it is."""
        self._command(lambda: self._pause_or_resume([partition]))

    def start_over(self, topic: str) -> None:
        """Read a topic from its beginning, where that has not just been done."""
        self._command(lambda: self._start_all_over(topic))

    def _command(self, what: Callable[[], object]) -> None:
        self._commands.append(what)
        self._woken.set()

    # -- the thread --------------------------------------------------------------------------------

    def _run(self) -> None:
        topics = [self._topic] if self._mover is None else [self._topic, self._mover.topic]
        try:
            self._consumer.subscribe(
                topics, on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost
            )
            while not self._stopping:
                try:
                    self._step()
                except KafkaException as error:
                    failed = translate(error, self._client.where, queue=self._queue)
                    self._tell(self._owner.failed, failed)
                    time.sleep(_POLL)
        except Exception:  # noqa: BLE001 - a thread has nobody to raise it to
            _LOG.exception("the consumer of %s has failed", self._queue)
        finally:
            try:
                self._consumer.close()
            except (KafkaException, RuntimeError) as error:
                _LOG.warning("the consumer of %s did not close: %s", self._queue, error)
            self._tell(self._owner.ended)

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
            outstanding = self._handed - self._received
            room = self._room - outstanding
        elif self._held_back:
            self._hold_back(False)
        if self._busy or outstanding:
            found = self._consumer.consume(min(room, self._most), 0) if room > 0 else []
            found = found or self._poll(0)
            if not found:
                self._woken.wait(min(timeout, self._wait_next))
                self._wait_next = min(2 * self._wait_next, _LONGEST_WAIT)
                return
        else:
            found = self._poll(timeout)
            more = min(room, self._most) - 1
            if found and more > 0:
                found += self._consumer.consume(more, 0)
        if found:
            self._wait_next = _SHORTEST_WAIT
            self._hand_over(found)

    def _obey(self) -> None:
        """Do what the loop has asked for."""
        self._woken.clear()
        while self._commands:
            self._wait_next = _SHORTEST_WAIT
            self._commands.popleft()()

    def _commit_now(self, offsets: list[TopicPartition], call: asyncio.Future[Committed]) -> None:
        if self._picked_up.locked():
            self._picked_up.release()
        found: Committed
        try:
            done = self._consumer.commit(offsets=offsets, asynchronous=False)
            found = {one.partition: one.error for one in done}
        except KafkaException as error:
            found = dict.fromkeys([one.partition for one in offsets], error)
        self._tell(_resolve, call, found)

    def _poll(self, timeout: float) -> list[KafkaMessage]:
        message = self._consumer.poll(timeout)
        return [] if message is None else [message]

    def _wait_for_room(self, timeout: float) -> None:
        """Paused partitions have to be read anew: only if there is no room for a while."""
        if not self._held_back:
            until = time.monotonic() + (_LULL if self._mover is None else min(timeout, _LULL))
            while (left := until - time.monotonic()) > 0:
                self._woken.wait(left)
                self._obey()
                if self._stopping or self._room > self._handed - self._received:
                    return
            self._hold_back(True)

    def _hand_over(self, messages: list[KafkaMessage]) -> None:
        main: list[tuple[Partition, KafkaMessage]] = []
        late: list[KafkaMessage] = []
        topic, assigned = self._topic, self._assigned
        for message in messages:
            if (error := message.error()) is not None:
                self._read_failed(error, message)
            elif message.topic() != topic:
                late.append(message)
            elif (partition := assigned.get(message.partition() or 0)) is not None:
                main.append((partition, message))
        if main:
            self._handed += len(main)
            self._tell(self._owner.arrived, main)
        if late and self._mover is not None:
            self._mover.handle(self._consumer, late)

    def _read_failed(self, error: KafkaError, message: KafkaMessage) -> None:
        self._tell(self._owner.doubt)
        if error.code() == KafkaError._AUTO_OFFSET_RESET:
            self._start_over(message.topic() or self._topic, message.partition() or 0)
            return
        passing = error.retriable() or (error.code() < 0 and not is_missing(error))
        if not passing:
            failed = translate(error, self._client.where, queue=self._queue)
            self._tell(self._owner.failed, failed)

    def _start_all_over(self, topic: str) -> None:
        for place in self._consumer.assignment():
            known = self._assigned.get(place.partition) if place.topic == self._topic else None
            if place.topic == topic and not (known is not None and known.is_new):
                self._start_over(topic, place.partition)
        for one in self._assigned.values():
            one.is_new = False

    def _start_over(self, topic: str, number: int) -> None:
        """Where we want to read there is nothing: the topic was made again, or cleaned up."""
        _LOG.warning("%s, partition %d, is read from its beginning", topic, number)
        if topic == self._topic and (old := self._assigned.get(number)) is not None:
            old.owned = False
            made = self._assigned[number] = Partition(self._owner, topic, number, None)
            made.is_new = True
            self._tell(self._owner.lost, [old])
            self._tell(self._owner.gained, [made])
        elif topic != self._topic and self._mover is not None:
            self._mover.revoked(number)
        place = TopicPartition(topic, number, OFFSET_BEGINNING)
        self._consumer.incremental_unassign([place])
        self._consumer.incremental_assign([place])
        self._consumer.resume([place])
        if self._held_back:
            self._pause_or_resume(list(self._assigned.values()))

    def _hold_back(self, held_back: bool) -> None:
        self._held_back = held_back
        self._pause_or_resume(list(self._assigned.values()))

    def _pause_or_resume(self, partitions: Sequence[Partition]) -> None:
        for one in partitions:
            if self._assigned.get(one.number) is not one:
                continue
            place = [TopicPartition(self._topic, one.number)]
            if self._held_back or one.paused:
                self._consumer.pause(place)
            else:
                self._consumer.resume(place)

    # -- rebalances --------------------------------------------------------------------------------

    def _on_assign(self, consumer: Consumer, places: list[TopicPartition]) -> None:
        found = self._committed(consumer, places)
        start: list[TopicPartition] = []
        gained: list[Partition] = []
        for place in found:
            offset = place.offset if place.offset >= 0 else OFFSET_BEGINNING
            start.append(TopicPartition(place.topic, place.partition, offset))
            if place.topic == self._topic:
                progress = Progress.read(offset, place.metadata) if offset >= 0 else None
                if progress is not None:
                    progress.taken_over()
                partition = Partition(self._owner, self._topic, place.partition, progress)
                self._assigned[place.partition] = partition
                gained.append(partition)
        self._tell(self._owner.gained, gained)
        consumer.incremental_assign(start)
        consumer.resume(start)  # it may have been lost while it was paused, and still be so
        if self._held_back:
            self._pause_or_resume(gained)

    def _committed(self, consumer: Consumer, places: list[TopicPartition]) -> list[TopicPartition]:
        for _ in range(_ASSIGN_TRIES):
            try:
                return consumer.committed(places, timeout=self._timeout)
            except KafkaException as error:
                _LOG.warning("the progress of %s cannot be read yet: %s", self._queue, error)
                if self._stopping:
                    break
                time.sleep(1)
        return places

    def _on_revoke(self, consumer: Consumer, places: list[TopicPartition]) -> None:
        if self._mover is not None:
            self._mover.commit(consumer)
        gone = self._unassigned(places)
        if gone:
            work = self._owner.give_up(gone)
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
                _LOG.warning("the last commit of %s failed: %r", self._queue, error)
            for one in gone:
                one.owned = False
        consumer.incremental_unassign(places)

    def _on_lost(self, consumer: Consumer, places: list[TopicPartition]) -> None:
        gone = self._unassigned(places)
        for one in gone:
            one.owned = False
        self._tell(self._owner.lost, gone)
        consumer.incremental_unassign(places)

    def _unassigned(self, places: Iterable[TopicPartition]) -> list[Partition]:
        gone: list[Partition] = []
        for place in places:
            if place.topic != self._topic:
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


def _resolve(call: asyncio.Future[Any], found: object) -> None:
    if not call.done():
        call.set_result(found)
