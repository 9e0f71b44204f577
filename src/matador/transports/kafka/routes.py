"""Exchanges on Kafka: a topic each. Every queue that is bound reads it with a group of its own.

A message is stored once, whoever wants it. Which of the messages of an exchange a queue gets, is
decided by those who consume the queue, from the bindings that they have applied.
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
from matador.transports.kafka.names import delayed_topic, exchange_topic, topic_name
from matador.transports.kafka.producer import Report
from matador.transports.kafka.store import KafkaStore, Made
from matador.transports.kafka.topics import Topics
from matador.transports.kafka.wire import published
from matador.transports.kit.backoff import Backoff
from matador.transports.kit.routing import RoutingTable

_LEAVING = 2.0  # seconds; those who have just left a group may still be in it


class Routes:
    """The exchanges, and the bindings that this process has applied."""

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
        self._bound: dict[str, dict[str, set[str]]] = {}  # of each queue: exchanges and patterns

    def exchanges(self, queue: str) -> list[str]:
        """Those to which a queue is bound."""
        return list(self._bound.get(queue, ()))

    def group(self, queue: str, exchange: str) -> str:
        """The group with which a queue reads an exchange."""
        return f"{self._group(topic_name(queue))}.{exchange_topic(exchange)}"

    def wants(self, queue: str, exchange: str) -> Callable[[str], bool]:
        """Whether a queue gets what has this routing key."""
        return lambda key: queue in self._table.queues(exchange, key)

    async def apply(self, topology: Topology) -> list[TopologyNote]:
        """Bind. A queue that was not bound to an exchange gets what is published from now on."""
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
        """See ``Routing``. Kafka does not know who reads: 1 for whatever is stored."""
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
                # The ends first: whoever stores them too, does not skip what was sent since.
                ends = await self._browser.ends(topic)
                placed = await self._browser.commits(group, topic)
                if not any(offset >= 0 for offset, _ in placed.values()):
                    await self._move(queue, topic, group, ends)
                return  # partitions that were added later are read from their beginning
            except SendUnconfirmedError:  # a new topic has no leader for a moment
                if time.monotonic() > until:
                    raise
            await backoff.sleep()

    async def extents(self, queue: str) -> dict[str, dict[int, Extent]]:
        """What a queue has before it in each of its exchanges, whether it wants it or not."""
        return {
            exchange: await self._browser.extents(
                exchange_topic(exchange), group=self.group(queue, exchange)
            )
            for exchange in self.exchanges(queue)
        }

    async def skip_all(self, queue: str, exchange: str, extents: dict[int, Extent]) -> int:
        """Let a queue that nobody consumes read on from the end; how much that leaves out."""
        ends = {number: one.end for number, one in extents.items()}
        left = sum(one.left for one in extents.values())
        topic, group = exchange_topic(exchange), self.group(queue, exchange)
        return left if await self._move(queue, topic, group, ends) else 0

    # -- inside ------------------------------------------------------------------------------------

    def _record(self, exchange: str, message: Message) -> Made:
        if message.delay > 0:
            return DelaysNotSupportedError(
                f"Kafka: what is published to the exchange {exchange!r} cannot be delayed; "
                f"send it to a queue"
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
        """False: somebody consumes it, so it has a place already."""
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
        """Those that somebody is in stay. The brokers forget groups without members, too."""
        backoff, until = Backoff(0.05, 0.5), time.monotonic() + _LEAVING
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
