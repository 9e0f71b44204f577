"""Looks into queues without consuming them: depth, browsing and replay. Takes and purges messages.

The commits of a group tell which messages are finished and which are in flight. To take dead
letters, the transport joins their group.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from heapq import merge
from itertools import islice
from typing import Any

from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, IsolationLevel, TopicPartition
from confluent_kafka import Message as KafkaMessage
from confluent_kafka.admin import OffsetSpec  # pyright: ignore[reportPrivateImportUsage] - public

from matador.errors import MatadorError, QueueNotFoundError, UnsupportedError
from matador.model.message import Delivery, MessageState, QueueDepth, StoredMessage
from matador.transports.kafka.client import KafkaClient
from matador.transports.kafka.consumer import QueueConsumer
from matador.transports.kafka.errors import has_no_leader
from matador.transports.kafka.progress import Progress
from matador.transports.kafka.reader import read_commits, read_first, read_one, read_range
from matador.transports.kafka.topics import (
    DELAY_LEVELS,
    Topics,
    delayed_topic,
    is_dead_letters,
    topic_name,
)
from matador.transports.kafka.wire import read, record_of
from matador.transports.kit.errors import no_retention

_PAGE = 500


class Extent:
    """The offsets of one partition: its first, the one behind its last, and the progress of the
    group."""

    __slots__ = ("end", "progress", "start")

    def __init__(self, start: int, end: int, progress: Progress) -> None:
        self.start = start
        self.end = end
        self.progress = progress

    @property
    def left(self) -> int:
        """How many messages are not finished, as far as offsets tell."""
        begin = min(max(self.start, self.progress.offset), self.end)
        moved = len(self.progress.moved)
        return max(0, self.end - begin - self.progress.count_finished(self.end) - moved)

    @property
    def in_flight(self) -> int:
        return sum(1 for one in self.progress.in_flight if self.start <= one < self.end)


class KafkaBrowser:
    def __init__(self, client: KafkaClient, topics: Topics, group: Callable[[str], str]) -> None:
        self._client = client
        self._topics = topics
        self._group = group

    # -- depth -------------------------------------------------------------------------------------

    async def depth(self, queue: str) -> QueueDepth:
        """The depth of a queue. A record that ends a transaction counts as a message."""
        topic = topic_name(queue)
        extents = (await self.extents(topic, queue=queue)).values()
        in_flight = sum(one.in_flight for one in extents)
        left = sum(one.left for one in extents)
        return QueueDepth(
            ready=max(0, left - in_flight),
            delayed=await self._delayed(topic),
            in_flight=in_flight,
            consumers=await self._members(topic),
        )

    async def _members(self, topic: str) -> int | None:
        """How many members the group of a topic has: one for each process."""
        group = self._group(topic)
        answers = await self._client.ask(lambda admin: admin.describe_consumer_groups([group]))
        (found,) = answers.values()
        return None if isinstance(found, MatadorError) else len(found.members)

    async def oldest_due(
        self, topic: str, extents: Mapping[int, Extent], now: datetime
    ) -> datetime | None:
        """Since when the oldest unfinished message of a topic has been due; None: none is due."""
        ranges = {
            number: (max(one.start, one.progress.first_unfinished), one.end)
            for number, one in extents.items()
            if one.left
        }
        address = self._client.address
        messages = await self._client.blocking(partial(read_first, address, topic, ranges))
        times = [when for message in messages if (when := _due(message)) and when <= now]
        return min(times, default=None)

    async def _delayed(self, topic: str) -> int:
        return sum(one.left for one in (await self.delayed_extents(topic)).values())

    async def delayed_extents(self, topic: str) -> dict[int, Extent]:
        """The partitions of a topic of delayed messages, except the one that tells the time."""
        try:
            found = await self.extents(delayed_topic(topic), group=self._group(topic))
        except QueueNotFoundError:
            return {}
        return {number: one for number, one in found.items() if number < DELAY_LEVELS}

    async def extents(
        self, topic: str, *, queue: str | None = None, group: str | None = None
    ) -> dict[int, Extent]:
        """The extents of all partitions of a topic.

        Raises:
            QueueNotFoundError: there is no such topic.
        """
        count = await self._topics.find(topic, queue=queue)
        numbers = range(count)
        starts, ends, commits = await asyncio.gather(
            self._offsets(topic, numbers, OffsetSpec.earliest()),
            self._offsets(topic, numbers, OffsetSpec.latest()),
            self.commits(group or self._group(topic), topic),
        )
        found: dict[int, Extent] = {}
        for number in numbers:
            offset, text = commits.get(number, (-1, None))
            start = starts[number]
            progress = Progress.read(offset, text) if offset >= 0 else Progress(start)
            found[number] = Extent(start, ends[number], progress)
        return found

    async def committed_offsets(self, topic: str, queue: str) -> dict[int, tuple[int, int]]:
        """For each partition the first offset, and the one behind the last visible record.

        Readers do not see the records behind the start of an open transaction.

        Raises:
            QueueNotFoundError: there is no such topic.
        """
        numbers = range(await self._topics.find(topic, queue=queue))
        starts, ends = await asyncio.gather(
            self._offsets(topic, numbers, OffsetSpec.earliest()),
            self._offsets(topic, numbers, OffsetSpec.latest(), committed=True),
        )
        return {number: (starts[number], ends[number]) for number in numbers}

    async def ends(self, topic: str) -> dict[int, int]:
        """For each partition the offset behind the last visible record."""
        numbers = range(await self._topics.find(topic))
        return await self._offsets(topic, numbers, OffsetSpec.latest(), committed=True)

    async def _offsets(
        self,
        topic: str,
        numbers: Sequence[int],
        which: OffsetSpec | None,
        *,
        committed: bool = False,
    ) -> dict[int, int]:
        asked: Any = {TopicPartition(topic, number): which for number in numbers}
        seen = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
        answers = await self._client.ask(
            lambda admin: admin.list_offsets(asked, isolation_level=seen), queue=topic
        )
        found: dict[int, int] = {}
        for place, answer in answers.items():
            if isinstance(answer, MatadorError):
                if isinstance(answer, QueueNotFoundError) or has_no_leader(answer):
                    self._topics.forget(topic)
                    await self._topics.find(topic)  # deleted, or between two leaders
                raise answer
            found[place.partition] = max(0, answer.offset)
        return found

    async def commits(self, group: str, topic: str) -> dict[int, tuple[int, str | None]]:
        """For each partition the committed offset (-1: none) and text of a group."""
        numbers = range(await self._topics.find(topic))
        places = [TopicPartition(topic, number) for number in numbers]
        committed = await self._client.blocking(
            partial(read_commits, self._client.address, group, places)
        )
        return {one.partition: (max(-1, one.offset), one.metadata) for one in committed}

    # -- messages ----------------------------------------------------------------------------------

    async def browse(
        self, queue: str, after: str | None, limit: int | None
    ) -> AsyncIterator[StoredMessage]:
        if not is_dead_letters(queue):
            raise UnsupportedError(
                f"the queue {queue!r} cannot be browsed: its messages belong to the workers "
                f"that own its partitions; its dead letters can, and read() shows what is in it"
            )
        shown = 0
        while limit is None or shown < limit:
            count = _PAGE if limit is None else min(_PAGE, limit - shown)
            page, after = await self._page(queue, after, count, done=False)
            for stored in page:
                shown += 1
                yield stored
            if len(page) < count:
                return

    async def read(self, queue: str, after: str | None, limit: int) -> list[StoredMessage]:
        topic = topic_name(queue)
        await self._topics.find(topic, queue=queue)
        if (retention := self._topics.retentions.get(topic)) is None:
            raise no_retention(queue)
        page, _ = await self._page(queue, after, limit, done=True)
        oldest = datetime.fromtimestamp(time.time() - retention, UTC)
        return [
            one
            for one in page
            if one.state != "done" or one.stored_at is None or one.stored_at >= oldest
        ]

    async def read_offsets(
        self, queue: str, number: int, start: int, end: int
    ) -> AsyncIterator[StoredMessage]:
        """The messages of one partition from ``start`` up to ``end``."""
        topic = topic_name(queue)
        extent = (await self.extents(topic, queue=queue)).get(number)
        if extent is None:
            return
        within = max(start, extent.start), min(end, extent.end)
        messages = read_range(self._client.address, topic, {number: within}, whole=True)
        try:
            while page := await self._client.blocking(lambda: list(islice(messages, _PAGE))):
                for message in page:
                    offset = message.offset() or 0
                    state = _state(extent.progress, offset)
                    yield _stored(queue, message, state, f"{number}:{offset + 1}")
        finally:
            await self._client.blocking(messages.close)

    async def _page(
        self, queue: str, after: str | None, limit: int, *, done: bool
    ) -> tuple[list[StoredMessage], str | None]:
        """Messages behind a position, in order of storing, and the position of the last one.

        A position is the next offset of each partition. ``done``: include finished messages.
        """
        topic = topic_name(queue)
        extents = await self.extents(topic, queue=queue)
        place = _read_position(after)
        ranges: dict[int, tuple[int, int]] = {}
        for number, one in extents.items():
            first = one.start if done else max(one.start, one.progress.offset)
            start = max(first, place.get(number, 0))
            ranges[number] = start, one.end
        capped = {n: (start, min(end, start + limit)) for n, (start, end) in ranges.items()}
        found = await self._read(topic, capped)
        stored: list[StoredMessage] = []
        for message in merge(*found.values(), key=_order):
            number, offset = message.partition() or 0, message.offset() or 0
            if len(stored) == limit:
                break
            place[number] = offset + 1
            state = _state(extents[number].progress, offset)
            if done or state != "done":
                stored.append(_stored(queue, message, state, _position(place)))
        else:
            for number, (start, end) in capped.items():
                place[number] = max(place.get(number, 0), start, end)
            if any(capped[number] != ranges[number] for number in ranges) and len(stored) < limit:
                rest, last = await self._page(
                    queue, _position(place), limit - len(stored), done=done
                )
                return [*stored, *rest], last
        return stored, _position(place)

    async def _read(
        self, topic: str, ranges: Mapping[int, tuple[int, int]]
    ) -> dict[int, list[KafkaMessage]]:
        address = self._client.address

        def read_all() -> dict[int, list[KafkaMessage]]:
            found: dict[int, list[KafkaMessage]] = {number: [] for number in ranges}
            for message in read_range(address, topic, ranges):
                found[message.partition() or 0].append(message)
            return found

        return await self._client.blocking(read_all)

    # -- take and purge ----------------------------------------------------------------------------

    async def take(
        self, queue: str, positions: Sequence[str], consumer: QueueConsumer
    ) -> list[Delivery | None]:
        """Deliver the messages at these positions; None for each that is not available."""
        places = [_message_at(position) for position in positions]
        partitions = await consumer.owned_partitions(self._client.address.timeout + 5)
        taken: list[Delivery | None] = []
        for place in places:
            partition = None if place is None else partitions.get(place[0])
            delivery = None
            if place is not None and partition is not None and partition.is_free(place[1]):
                read = partial(read_one, self._client.address, topic_name(queue), *place)
                if (message := await self._client.blocking(read)) is not None:
                    leased = consumer.buffer.lease(partition, message)
                    if await consumer.buffer.deliver(leased):
                        delivery = leased.delivery()
            taken.append(delivery)
        return taken

    async def purge(self, queue: str, consumer: QueueConsumer | None) -> int:
        """Delete what is not in flight; return how many messages there were.

        In partitions that this process consumes, the consumer skips message by message. In others,
        Kafka deletes everything before the first message in flight.

        Raises:
            QueueNotFoundError: there is no such queue.
        """
        topic = topic_name(queue)
        extents = await self.extents(topic, queue=queue)
        delayed = await self.delayed_extents(topic)
        purged = 0
        for number, one in list(extents.items()):
            if consumer is not None and number in consumer.partitions:
                purged += await consumer.skip(number, one.start, one.end)
                del extents[number]
        purged += await self._delete(topic, extents)
        return purged + await self._delete(delayed_topic(topic), delayed)

    async def _delete(self, topic: str, extents: Mapping[int, Extent]) -> int:
        purged = 0
        places: list[TopicPartition] = []
        for number, one in extents.items():
            progress = one.progress
            held = [at for at in (*progress.in_flight, *progress.moved) if at < one.end]
            until = min(held, default=one.end)
            if until > one.start:
                places.append(TopicPartition(topic, number, until))
            left = Extent(one.start, until, progress).left + len(progress.moved)
            purged += left if until > progress.offset else 0
        if places:
            answers = await self._client.ask(lambda admin: admin.delete_records(places))
            for answer in answers.values():
                if isinstance(answer, MatadorError):
                    raise answer
        return purged


def _state(progress: Progress, offset: int) -> MessageState:
    if progress.is_finished(offset) or offset in progress.moved:
        return "done"
    return "in-flight" if offset in progress.in_flight else "ready"


def _stored_at(message: KafkaMessage) -> datetime | None:
    """When a record was stored, or created; None if a ``datetime`` cannot say it."""
    kind, milliseconds = message.timestamp()
    try:
        return (
            None
            if kind == TIMESTAMP_NOT_AVAILABLE
            else datetime.fromtimestamp(milliseconds / 1000, UTC)
        )
    except (OverflowError, ValueError, OSError):
        return None


def _due(message: KafkaMessage) -> datetime | None:
    """When a record is, or was, due."""
    stored_at, delay = _stored_at(message), read(record_of(message)).delay
    try:
        return None if stored_at is None else stored_at + timedelta(seconds=delay)
    except OverflowError:
        return None


def _order(message: KafkaMessage) -> tuple[int, int, int]:
    return message.timestamp()[1], message.partition() or 0, message.offset() or 0


def _stored(queue: str, message: KafkaMessage, state: MessageState, at: str) -> StoredMessage:
    content = read(record_of(message))
    place = f"{message.partition()}:{message.offset()}"
    return StoredMessage(
        position=f"{place}|{at}",
        id=content.id or f"{message.topic()}/{place}",
        queue=queue,
        body=content.body,
        headers=content.headers,
        state=state,
        stored_at=_stored_at(message),
        priority=content.priority,
        ordering_key=content.ordering_key,
        properties=content.properties,
    )


def _position(place: Mapping[int, int]) -> str:
    return ",".join(f"{number}:{offset}" for number, offset in sorted(place.items()))


def _read_position(text: str | None) -> dict[int, int]:
    """The next offset of each partition. A malformed position means the beginning."""
    found: dict[int, int] = {}
    for part in (text or "").rpartition("|")[2].split(","):
        number, _, offset = part.partition(":")
        if number.isdecimal() and offset.isdecimal():
            found[int(number)] = int(offset)
    return found


def _message_at(position: str) -> tuple[int, int] | None:
    """The partition and the offset of the message at a position."""
    number, _, offset = position.partition("|")[0].partition(":")
    if number.isdecimal() and offset.isdecimal():
        return int(number), int(offset)
    return None
