"""Empties queues: Kafka deletes the records of a partition up to an offset."""

from __future__ import annotations

from collections.abc import Mapping

from confluent_kafka import TopicPartition

from matador.errors import MatadorError
from matador.transports.kafka.browse import Extent, KafkaBrowser
from matador.transports.kafka.client import KafkaClient
from matador.transports.kafka.consumer import QueueConsumer
from matador.transports.kafka.names import delayed_topic, topic_name


class Purger:
    """Deletes what nobody holds.

    What this process consumes it can skip, message by message. Of other partitions everything up to
    the first message that somebody holds is deleted.
    """

    def __init__(self, client: KafkaClient, browser: KafkaBrowser) -> None:
        self._client = client
        self._browser = browser

    async def purge(self, queue: str, member: QueueConsumer | None) -> int:
        """How many messages there were.

        Raises:
            QueueNotFoundError: there is no such queue.
        """
        topic = topic_name(queue)
        extents = await self._browser.extents(topic, queue=queue)
        delayed = await self._browser.delayed_extents(topic)
        purged = 0
        for number, one in list(extents.items()):
            if member is not None and number in member.partitions:
                purged += await member.skip(number, one.start, one.end)
                del extents[number]
        purged += await self._delete(topic, extents)
        return purged + await self._delete(delayed_topic(topic), delayed)

    async def _delete(self, topic: str, extents: Mapping[int, Extent]) -> int:
        purged = 0
        places: list[TopicPartition] = []
        for number, one in extents.items():
            held = [offset for offset in one.progress.flying if offset < one.end]
            held += [offset for offset in one.progress.moved if offset < one.end]
            until = min(held, default=one.end)
            if until > one.start:
                places.append(TopicPartition(topic, number, until))
            left = Extent(one.start, until, one.progress).left + len(one.progress.moved)
            purged += left if until > one.progress.offset else 0
        if places:
            answers = await self._client.ask(lambda admin: admin.delete_records(places))
            for answer in answers.values():
                if isinstance(answer, MatadorError):
                    raise answer
        return purged
