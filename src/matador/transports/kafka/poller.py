"""The thread that polls Kafka for one member of a consumer group.

It reads messages while there is room for them, commits, moves delayed messages that are due, and
answers rebalances. It keeps polling while handlers run, so a slow handler keeps its partition.

The client library allows one call at a time, and nothing can interrupt a poll. So the thread blocks
in a poll only while no commit is expected. Otherwise it waits for commits, and looks for messages
in between.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka import Message as KafkaMessage

from matador.errors import MatadorError
from matador.transports.kafka.client import KafkaClient
from matador.transports.kafka.delays import DelayMover
from matador.transports.kafka.errors import is_missing, translate
from matador.transports.kafka.progress import CommitErrors, Partition, Progress

_LOG = logging.getLogger(__name__)
_POLL = 0.1  # seconds; also how long closing takes
_MIN_PAUSE, _MAX_PAUSE = 0.001, 0.02  # seconds between polls while commits are expected
_PAUSE_AFTER = 0.25  # seconds without room after which the thread pauses its partitions
_ASSIGN_TRIES = 30
_COMMIT_START = 0.0003  # seconds


class Poller:
    """One member of a group, and its thread. Public methods belong to the event loop.

    The callbacks run in the event loop.

    Args:
        on_messages: messages were read.
        on_assigned: the group gave partitions to this member.
        on_revoked: the group is taking partitions away. Finishes them, and returns the offsets to
            commit last; the thread waits for it.
        on_lost: partitions belong to other members already.
        on_error: reading failed. The error is None if the client library recovers by itself.
        on_stopped: the member has left the group.
    """

    def __init__(
        self,
        client: KafkaClient,
        queue: str,
        topic: str,
        group: str,
        mover: DelayMover | None,
        *,
        on_messages: Callable[[list[tuple[Partition, KafkaMessage]]], None],
        on_assigned: Callable[[Sequence[Partition]], None],
        on_revoked: Callable[[Sequence[Partition]], Coroutine[Any, Any, list[TopicPartition]]],
        on_lost: Callable[[Sequence[Partition]], None],
        on_error: Callable[[MatadorError | None], None],
        on_stopped: Callable[[], None],
    ) -> None:
        self._client = client
        self._queue = queue
        self._topic = topic
        self._mover = mover
        self._on_messages = on_messages
        self._on_assigned = on_assigned
        self._on_revoked = on_revoked
        self._on_lost = on_lost
        self._on_error = on_error
        self._on_stopped = on_stopped
        self._loop = asyncio.get_running_loop()
        self._revoke_wait = client.address.revoke_wait
        self._timeout = client.address.timeout
        self._batch_size = client.address.batch_size
        # Shared with the thread: either the thread or the loop writes each of them, never both.
        self._room = 0
        self._handed_over = 0
        self._received = 0
        self._stopping = False
        self._busy = False
        self._woken = threading.Event()
        self._commands: deque[Callable[[], object]] = deque()
        self._commit_waits = threading.Lock()
        # Used by the thread only.
        self._all_paused = False
        self._assigned: dict[int, Partition] = {}
        self._pause = _MIN_PAUSE
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
        """Leave the group; ``on_stopped`` follows."""
        self._stopping = True
        self._woken.set()

    def allow(self, room: int, *, busy: bool) -> None:
        """Set how many messages the thread may read; ``busy``: commits are expected soon."""
        more = room > self._room
        self._room = room
        self._busy = busy
        if more:
            self._woken.set()

    def received(self, count: int) -> None:
        """Note that ``count`` of the messages handed over have arrived in the loop."""
        self._received += count

    def commit(self, offsets: list[TopicPartition], urgent: bool) -> asyncio.Future[CommitErrors]:
        """Commit. ``urgent``: the loop has much to do, so wait until the commit has started.

        Without that, the thread would get the interpreter only when the loop is idle, which is too
        late. Letting it in takes a tenth of a millisecond.
        """
        call: asyncio.Future[CommitErrors] = self._loop.create_future()
        if urgent:
            self._commit_waits.acquire(blocking=False)
        self._command(lambda: self._commit_now(offsets, call))
        if urgent:
            self._commit_waits.acquire(timeout=_COMMIT_START)
        return call

    def membership(self) -> asyncio.Future[Any]:
        """The group metadata of this member, for a transaction."""
        call: asyncio.Future[Any] = self._loop.create_future()
        self._command(lambda: self._tell(_resolve, call, self._consumer.consumer_group_metadata()))
        return call

    def pause_or_resume(self, partition: Partition) -> None:
        """Apply ``partition.paused``."""
        self._command(lambda: self._pause_or_resume([partition]))

    def start_over(self, topic: str) -> None:
        """Read a recreated topic from its beginning; skip partitions that already do."""
        self._command(lambda: self._start_topic_over(topic))

    def _command(self, command: Callable[[], object]) -> None:
        self._commands.append(command)
        self._woken.set()

    # -- the thread --------------------------------------------------------------------------------

    def _run(self) -> None:
        topics = [self._topic] if self._mover is None else [self._topic, self._mover.topic]
        try:
            self._consumer.subscribe(
                topics, on_assign=self._assign, on_revoke=self._revoke, on_lost=self._lose
            )
            while not self._stopping:
                try:
                    self._step()
                except KafkaException as error:
                    failed = translate(error, self._client.where, queue=self._queue)
                    self._tell(self._on_error, failed)
                    time.sleep(_POLL)
        except Exception:  # noqa: BLE001 - a thread has no caller
            _LOG.exception("the consumer of %s failed", self._queue)
        finally:
            try:
                self._consumer.close()
            except (KafkaException, RuntimeError) as error:
                _LOG.warning("the consumer of %s did not close: %s", self._queue, error)
            self._tell(self._on_stopped)

    def _step(self) -> None:
        self._run_commands()
        timeout = _POLL
        if self._mover is not None:
            self._mover.wake(self._consumer)
            if finished := self._mover.finished():
                self._tell(self._client.trim, self._mover.topic, finished)
            timeout = self._mover.next_wait(_POLL)
        outstanding = self._handed_over - self._received
        room = self._room - outstanding
        if room <= 0:
            self._wait_for_room(timeout)
            outstanding = self._handed_over - self._received
            room = self._room - outstanding
        elif self._all_paused:
            self._pause_all(False)
        if self._busy or outstanding:
            found = self._consumer.consume(min(room, self._batch_size), 0) if room > 0 else []
            found = found or self._poll(0)
            if not found:
                self._woken.wait(min(timeout, self._pause))
                self._pause = min(2 * self._pause, _MAX_PAUSE)
                return
        else:
            found = self._poll(timeout)
            more = min(room, self._batch_size) - 1
            if found and more > 0:
                found += self._consumer.consume(more, 0)
        if found:
            self._pause = _MIN_PAUSE
            self._hand_over(found)

    def _run_commands(self) -> None:
        self._woken.clear()
        while self._commands:
            self._pause = _MIN_PAUSE
            self._commands.popleft()()

    def _commit_now(
        self, offsets: list[TopicPartition], call: asyncio.Future[CommitErrors]
    ) -> None:
        if self._commit_waits.locked():
            self._commit_waits.release()
        found: CommitErrors
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
        """Wait for room, and pause the partitions only if there is none for a while.

        Paused partitions lose what the client library has fetched in advance.
        """
        if not self._all_paused:
            wait = _PAUSE_AFTER if self._mover is None else min(timeout, _PAUSE_AFTER)
            until = time.monotonic() + wait
            while (left := until - time.monotonic()) > 0:
                self._woken.wait(left)
                self._run_commands()
                if self._stopping or self._room > self._handed_over - self._received:
                    return
            self._pause_all(True)

    def _hand_over(self, messages: list[KafkaMessage]) -> None:
        ready: list[tuple[Partition, KafkaMessage]] = []
        delayed: list[KafkaMessage] = []
        topic, assigned = self._topic, self._assigned
        for message in messages:
            if (error := message.error()) is not None:
                self._read_failed(error, message)
            elif message.topic() != topic:
                delayed.append(message)
            elif (partition := assigned.get(message.partition() or 0)) is not None:
                ready.append((partition, message))
        if ready:
            self._handed_over += len(ready)
            self._tell(self._on_messages, ready)
        if delayed and self._mover is not None:
            self._mover.handle(self._consumer, delayed)

    def _read_failed(self, error: KafkaError, message: KafkaMessage) -> None:
        failed: MatadorError | None = None
        if error.code() == KafkaError._AUTO_OFFSET_RESET:
            self._start_over(message.topic() or self._topic, message.partition() or 0)
        elif not error.retriable() and (error.code() >= 0 or is_missing(error)):
            failed = translate(error, self._client.where, queue=self._queue)
        self._tell(self._on_error, failed)

    def _start_topic_over(self, topic: str) -> None:
        for place in self._consumer.assignment():
            known = self._assigned.get(place.partition) if place.topic == self._topic else None
            if place.topic == topic and not (known is not None and known.is_new):
                self._start_over(topic, place.partition)
        for one in self._assigned.values():
            one.is_new = False

    def _start_over(self, topic: str, number: int) -> None:
        """Read a partition from its beginning: the topic was recreated, or Kafka deleted the
        messages at the committed offset."""
        _LOG.warning("reading %s, partition %d, from its beginning", topic, number)
        if topic == self._topic and (old := self._assigned.get(number)) is not None:
            old.owned = False
            new = self._assigned[number] = Partition(topic, number, None)
            new.is_new = True
            self._tell(self._on_lost, [old])
            self._tell(self._on_assigned, [new])
        elif topic != self._topic and self._mover is not None:
            self._mover.revoked(number)
        place = TopicPartition(topic, number, OFFSET_BEGINNING)
        self._consumer.incremental_unassign([place])
        self._consumer.incremental_assign([place])
        self._consumer.resume([place])
        if self._all_paused:
            self._pause_or_resume(list(self._assigned.values()))

    def _pause_all(self, paused: bool) -> None:
        self._all_paused = paused
        self._pause_or_resume(list(self._assigned.values()))

    def _pause_or_resume(self, partitions: Sequence[Partition]) -> None:
        for one in partitions:
            if self._assigned.get(one.number) is not one:
                continue
            place = [TopicPartition(self._topic, one.number)]
            if self._all_paused or one.paused:
                self._consumer.pause(place)
            else:
                self._consumer.resume(place)

    # -- rebalances --------------------------------------------------------------------------------

    def _assign(self, consumer: Consumer, places: list[TopicPartition]) -> None:
        start: list[TopicPartition] = []
        assigned: list[Partition] = []
        for place in self._committed(consumer, places):
            offset = place.offset if place.offset >= 0 else OFFSET_BEGINNING
            start.append(TopicPartition(place.topic, place.partition, offset))
            if place.topic == self._topic:
                progress = Progress.read(offset, place.metadata) if offset >= 0 else None
                if progress is not None:
                    progress.new_owner()
                partition = Partition(self._topic, place.partition, progress)
                self._assigned[place.partition] = partition
                assigned.append(partition)
        self._tell(self._on_assigned, assigned)
        consumer.incremental_assign(start)
        consumer.resume(start)  # a partition that was lost while paused would stay paused
        if self._all_paused:
            self._pause_or_resume(assigned)

    def _committed(self, consumer: Consumer, places: list[TopicPartition]) -> list[TopicPartition]:
        for _ in range(_ASSIGN_TRIES):
            try:
                return consumer.committed(places, timeout=self._timeout)
            except KafkaException as error:
                _LOG.warning(
                    "could not read the commits of %s, trying again: %s", self._queue, error
                )
                if self._stopping:
                    break
                time.sleep(1)
        return places

    def _revoke(self, consumer: Consumer, places: list[TopicPartition]) -> None:
        if self._mover is not None:
            self._mover.commit(consumer)
        revoked = self._unassign(places)
        if revoked:
            work = self._on_revoked(revoked)
            try:
                waiting = asyncio.run_coroutine_threadsafe(work, self._loop)
                until = time.monotonic() + self._revoke_wait + self._timeout + 2
                while not waiting.done() and time.monotonic() < until:
                    self._woken.wait(_MAX_PAUSE)
                    self._run_commands()  # handlers that end now still commit
                offsets = waiting.result(0)
                if offsets:
                    consumer.commit(offsets=offsets, asynchronous=False)
            except (KafkaException, RuntimeError, TimeoutError, asyncio.CancelledError) as error:
                work.close()
                _LOG.warning("the last commit of %s failed: %r", self._queue, error)
            for one in revoked:
                one.owned = False
        consumer.incremental_unassign(places)

    def _lose(self, consumer: Consumer, places: list[TopicPartition]) -> None:
        lost = self._unassign(places)
        for one in lost:
            one.owned = False
        self._tell(self._on_lost, lost)
        consumer.incremental_unassign(places)

    def _unassign(self, places: Iterable[TopicPartition]) -> list[Partition]:
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
        except RuntimeError:  # the loop is closed: the program is ending
            self._stopping = True


def _resolve(call: asyncio.Future[Any], found: object) -> None:
    if not call.done():
        call.set_result(found)
