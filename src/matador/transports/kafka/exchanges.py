"""Exchanges: an exchange is a topic, which each bound queue reads with a group of its own.

Kafka stores a published message once. The consumers of a queue read all of them, and handle those
that match the bindings that they have applied.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition

from matador.errors import (
    DelaysNotSupportedError,
    LeaseLostError,
    MatadorError,
    QueueNotFoundError,
    SendUnconfirmedError,
    TransportError,
)
from matador.model.message import Message, TopologyNote
from matador.model.topology import Topology
from matador.transports.kafka.browse import Extent, KafkaBrowser
from matador.transports.kafka.client import KafkaClient
from matador.transports.kafka.producer import Report
from matador.transports.kafka.store import KafkaStore, RecordOrError
from matador.transports.kafka.topics import Topics, delayed_topic, exchange_topic, topic_name
from matador.transports.kafka.wire import published
from matador.transports.kit.backoff import Backoff
from matador.transports.kit.routing import RoutingTable

_LEAVE_TIME = 2.0  # seconds; a group may still list members that have just left


class Exchanges:
    """Publishes to exchanges, and keeps the bindings that this process has applied."""

    def __init__(
        self,
        client: KafkaClient,
        topics: Topics,
        store: KafkaStore,
        browser: KafkaBrowser,
        group: Callable[[str], str],
    ) -> None:
        self._client = client
        self._topics = topics
        self._store = store
        self._browser = browser
        self._group = group
        self._table = RoutingTable()
        self._bound: dict[str, dict[str, set[str]]] = {}  # queue: exchange: patterns

    def of(self, queue: str) -> list[str]:
        """The exchanges that a queue is bound to."""
        return list(self._bound.get(queue, ()))

    def group(self, queue: str, exchange: str) -> str:
        """The group with which a queue reads an exchange."""
        return f"{self._group(topic_name(queue))}.{exchange_topic(exchange)}"

    def filter(self, queue: str, exchange: str) -> Callable[[str], bool]:
        """A function that says whether the queue gets messages with a routing key."""
        return lambda key: queue in self._table.queues(exchange, key)

    async def apply(self, topology: Topology) -> list[TopologyNote]:
        """Bind queues. A new binding gets the messages that are published from now on."""
        notes = self._table.apply(topology)
        bound = [
            (topology.full_name(one.queue), one.exchange, one.pattern) for one in topology.bindings
        ]
        pairs = {(queue, exchange) for queue, exchange, _ in bound}
        await asyncio.gather(
            *[
                self.start_at_end(queue, exchange_topic(exchange), self.group(queue, exchange))
                for queue, exchange in pairs
                if exchange not in self._bound.get(queue, {})
            ]
        )
        for queue, exchange, pattern in bound:
            self._bound.setdefault(queue, {}).setdefault(exchange, set()).add(pattern)
        return notes

    async def publish(self, exchange: str, messages: Sequence[Message]) -> list[int | MatadorError]:
        """For each message 1, or why it is not stored. Kafka does not know how many queues read
        it."""
        reports = await self._store.put([self._record(exchange, one) for one in messages])
        return [self._outcome(exchange, report) for report in reports]

    async def unbind(self, exchange: str, queue: str, pattern: str) -> None:
        self._table.unbind(exchange, queue, pattern)
        patterns = self._bound.get(queue, {}).get(exchange)
        if patterns is not None:
            patterns.discard(pattern)
            if not patterns:
                del self._bound[queue][exchange]
                await self._forget_groups([self.group(queue, exchange)])

    async def delete_queue(self, queue: str) -> None:
        topic = topic_name(queue)
        self._table.remove_queue(queue)
        groups = [self.group(queue, one) for one in self._bound.pop(queue, {})]
        gone = [topic, delayed_topic(topic)]
        self._topics.undeclare(gone)
        answers = await self._client.ask(lambda admin: admin.delete_topics(gone))
        for answer in answers.values():
            if isinstance(answer, MatadorError) and not isinstance(answer, QueueNotFoundError):
                raise answer
        await self._topics.wait_until_gone(gone)
        await self._forget_groups([*groups, self._group(topic)])

    async def start_at_end(self, queue: str, topic: str, group: str) -> None:
        """Store the end of each partition of a topic as the position of a group that has none.

        Raises:
            TransportError: that could not be stored.
        """
        backoff, until = Backoff(0.1, 1.0), time.monotonic() + self._client.address.timeout
        while True:
            try:
                # Read the ends first. If another worker commits them meanwhile, nothing that was
                # sent since is skipped.
                ends = await self._browser.ends(topic)
                placed = await self._browser.commits(group, topic)
                if not any(offset >= 0 for offset, _ in placed.values()):
                    await self._move(queue, topic, group, ends)
                return  # a partition that is added later is read from its beginning
            except SendUnconfirmedError:  # a new topic has no leader for a moment
                if time.monotonic() > until:
                    raise
            await backoff.sleep()

    async def extents(self, queue: str) -> dict[str, dict[int, Extent]]:
        """What the groups of a queue have yet to read in its exchanges, matching or not."""
        return {
            exchange: await self._browser.extents(
                exchange_topic(exchange), group=self.group(queue, exchange)
            )
            for exchange in self.of(queue)
        }

    async def skip_all(self, queue: str, exchange: str, extents: dict[int, Extent]) -> int:
        """Move the group of a queue without consumers to the end; return how many it skips."""
        ends = {number: one.end for number, one in extents.items()}
        left = sum(one.left for one in extents.values())
        topic, group = exchange_topic(exchange), self.group(queue, exchange)
        return left if await self._move(queue, topic, group, ends) else 0

    # -- inside ------------------------------------------------------------------------------------

    def _record(self, exchange: str, message: Message) -> RecordOrError:
        if message.delay > 0:
            return DelaysNotSupportedError(
                f"Kafka: messages for the exchange {exchange!r} cannot be delayed; send them to a "
                f"queue"
            )
        try:
            limit = self._client.address.max_message_size
            return published(message, exchange_topic(exchange), limit=limit)
        except MatadorError as error:
            return error

    def _outcome(self, exchange: str, report: Report) -> int | MatadorError:
        if isinstance(report, QueueNotFoundError):
            missing = QueueNotFoundError(
                f"there is no exchange {exchange!r}; declare it in Topology(exchanges=[...])"
            )
            missing.__cause__ = report
            return missing
        return report if isinstance(report, MatadorError) else 1

    async def _move(self, queue: str, topic: str, group: str, ends: dict[int, int]) -> bool:
        """Commit offsets for a group; False if it has members, which commit themselves."""
        places = [TopicPartition(topic, number, end) for number, end in ends.items()]
        moved = [ConsumerGroupTopicPartitions(group, places)]
        answers = await self._client.ask(
            lambda admin: admin.alter_consumer_group_offsets(moved), queue=queue
        )
        for answer in answers.values():
            if isinstance(answer, LeaseLostError):
                return False
            if isinstance(answer, MatadorError):
                raise answer
        return True

    async def _forget_groups(self, groups: list[str]) -> None:
        """Delete groups, except those with members. The brokers expire the others as well."""
        backoff, until = Backoff(0.05, 0.5), time.monotonic() + _LEAVE_TIME
        while groups and time.monotonic() < until:
            answers = await self._client.ask(
                lambda admin, asked=groups: admin.delete_consumer_groups(asked)
            )
            groups = [
                group
                for group, answer in answers.items()
                if isinstance(answer, TransportError) and not isinstance(answer, QueueNotFoundError)
            ]
            if groups:
                await backoff.sleep()
