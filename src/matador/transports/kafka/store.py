"""Stores messages: makes a record of each, in the topic of its queue, and sends it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import TypeAlias

from matador.errors import DelaysNotSupportedError, MatadorError, QueueNotFoundError
from matador.model.message import Message
from matador.transports.kafka.client import KafkaClient
from matador.transports.kafka.delays import delayed
from matador.transports.kafka.producer import Report
from matador.transports.kafka.replies import is_reply, reply_record
from matador.transports.kafka.topics import Topics, delayed_topic, is_dead_letters, topic_name
from matador.transports.kafka.wire import Record, written

_TRIES = 3

RecordOrError: TypeAlias = Record | MatadorError


class KafkaStore:
    """Stores messages; several calls may run at once, and each keeps the order of its messages."""

    def __init__(self, client: KafkaClient, topics: Topics) -> None:
        self._client = client
        self._topics = topics
        self._limit = client.address.max_message_size

    async def send(self, messages: Sequence[Message]) -> list[MatadorError | None]:
        """For each message None, or why it is not stored."""
        reports = await self.put([self.record(message) for message in messages])
        if not any(reports):  # the common case
            return [None] * len(reports)
        return [report if isinstance(report, MatadorError) else None for report in reports]

    def record(self, message: Message) -> RecordOrError:
        """The record for a message.

        A delayed message with an ordering key goes to its queue, where later messages of the key
        wait for it.
        """
        try:
            if is_reply(message.queue):
                return reply_record(message, self._limit)
            topic = topic_name(message.queue)
            if message.delay <= 0:
                return written(message, topic, limit=self._limit)
            if message.ordering_key is not None:
                return written(message, topic, delay=message.delay, limit=self._limit)
            if is_dead_letters(message.queue):
                return DelaysNotSupportedError(
                    f"messages for dead letters cannot be delayed ({message.queue!r})"
                )
            return delayed(written(message, topic, limit=self._limit), message.delay)
        except MatadorError as error:
            return error

    async def put(self, records: Sequence[RecordOrError]) -> list[Report]:
        """Store records; an error among them is its own report.

        Recreates a declared topic that was deleted.
        """
        reports = await self._put(records)
        for _ in range(_TRIES if any(reports) else 0):
            gone = [
                (at, record)
                for at, (record, report) in enumerate(zip(records, reports, strict=True))
                if isinstance(report, QueueNotFoundError)
                and isinstance(record, Record)
                and self._topics.is_known(record.topic)  # it existed, and was deleted
            ]
            if not gone:
                break
            await self._find_again({record.topic for _, record in gone})
            again = await self._put([record for _, record in gone])
            for (at, _), report in zip(gone, again, strict=True):
                reports[at] = report
        return reports

    async def _find_again(self, topics: Iterable[str]) -> None:
        timeout = self._client.address.timeout
        for topic in topics:
            self._topics.forget(topic)
            try:
                await self._topics.find(topic)
                await self._client.blocking(partial(self._client.producer.refresh, topic, timeout))
            except MatadorError:
                continue  # the next send reports it

    async def missing(self, records: Sequence[RecordOrError]) -> dict[str, MatadorError]:
        """The topics that cannot be found, and why."""
        missing: dict[str, MatadorError] = {}
        for topic in {one.topic for one in records if isinstance(one, Record)}:
            if not self._topics.is_known(topic):
                try:
                    await self._topics.find(topic)
                except MatadorError as error:
                    missing[topic] = _explained(error, topic)
        return missing

    async def _put(self, made: Sequence[RecordOrError]) -> list[Report]:
        missing = await self.missing(made)
        records = [one for one in made if isinstance(one, Record)]
        if not missing and len(records) == len(made):  # the common case
            return await self._client.producer.send(records)
        reports: list[Report] = []
        chosen: list[Record] = []
        for one in made:
            if isinstance(one, MatadorError):
                reports.append(one)
            elif (error := missing.get(one.topic)) is not None:
                reports.append(error)
            else:
                reports.append(None)
                chosen.append(one)
        sent = iter(await self._client.producer.send(chosen))
        return [next(sent) if report is None else report for report in reports]


def _explained(error: MatadorError, topic: str) -> MatadorError:
    """A queue of another program has no topic for delayed messages until it is declared."""
    queue = topic.removesuffix(delayed_topic(""))
    if queue != topic and isinstance(error, QueueNotFoundError):
        found = QueueNotFoundError(
            f"{error}; {topic!r} holds the delayed messages of {queue!r}: apply the topology"
        )
        found.__cause__ = error
        return found
    return error
