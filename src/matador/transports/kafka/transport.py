"""The Kafka transport."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Unpack

from matador.errors import MatadorError, UnsupportedError
from matador.model.capabilities import Capabilities
from matador.model.message import (
    Delivery,
    Finding,
    Message,
    QueueDepth,
    Settlement,
    StoredMessage,
    TopologyNote,
)
from matador.model.topology import Topology
from matador.transports.kafka.browse import KafkaBrowser
from matador.transports.kafka.client import KafkaClient
from matador.transports.kafka.consumer import QueueConsumer
from matador.transports.kafka.delays import BrokerClock
from matador.transports.kafka.doctor import check, examine
from matador.transports.kafka.names import delayed_topic, is_dead_letters, topic_name
from matador.transports.kafka.options import KafkaOptions, read_kafka_address
from matador.transports.kafka.purge import Purger
from matador.transports.kafka.settle import KafkaSettler
from matador.transports.kafka.store import KafkaStore
from matador.transports.kafka.subscription import KafkaSubscription
from matador.transports.kafka.topics import Topics
from matador.transports.kafka.transactions import KafkaTransactions
from matador.transports.kit.notes import ignored_arguments, ignored_exchanges
from matador.transports.kit.properties import ALL_PROPERTIES
from matador.transports.kit.transport import BaseTransport


class KafkaTransport(BaseTransport):
    """Messages in Apache Kafka.

    A queue is a topic with a consumer group of its own. A message is committed after it was
    handled, and only once its retry or dead letter is stored. Messages with one ordering key are
    handled one at a time and in order, retries included.

    Args:
        url: ``kafka://user:password@host:9092,host:9092/?replication=3``; ``kafkas://`` for TLS.
        name: for logs and metrics.
        group: in front of the names of the consumer groups (``billing.shop.events``); without it a
            group is named like its topic. All workers and tools of a queue must use the same.
        partitions: of the topics that are made here; 0: as many as the queue's concurrency, or 4.
        replication: of the topics that are made here; 0: the default of the brokers.
        retention: seconds after which Kafka deletes messages of a queue, handled or not.
        create: make the topics of a topology that are missing.
        transactional: store a retry or a dead letter and commit its original in one transaction.
        timeout: seconds for connecting, for an answer, and for a confirmation.
        session: seconds after which a worker that is not heard of loses its partitions.
        revoke_wait: seconds for which a partition that goes to another worker waits for handlers
            that run.
        linger: seconds for which the client collects messages; a batch does not wait for it.
        compression: ``none``, ``gzip``, ``snappy``, ``lz4`` or ``zstd``.
        max_message_size: bytes, headers and key included.
        client_id: shown by the brokers.
        sasl_mechanism: ``PLAIN`` (if there is a user), ``SCRAM-SHA-256``, ``SCRAM-SHA-512`` …
        config: more settings of librdkafka, by their names; only as a keyword.

    Every other option can be given in the address (``?replication=3``) or as a keyword, which wins.

    Raises:
        ConfigurationError: the address is malformed, or an option is invalid.

    Example:
        >>> KafkaTransport("kafka://localhost:9092", partitions=8).capabilities.ordering
        'partition'
    """

    def __init__(self, url: str, **options: Unpack[KafkaOptions]) -> None:
        address = read_kafka_address(url, options)
        super().__init__(address.name)
        self._address = address
        self._client = KafkaClient(address, self._change_state)
        self._topics = Topics(self._client)
        self._store = KafkaStore(self._client, self._topics)
        self._transactions = KafkaTransactions(self._client) if address.transactional else None
        self._settler = KafkaSettler(self._store, self._transactions)
        self._clock = BrokerClock()
        self._browser = KafkaBrowser(self._client, self._topics, self._group)
        self._purger = Purger(self._client, self._browser)
        self._consumers: dict[str, QueueConsumer] = {}
        self._leaving: set[QueueConsumer] = set()
        self._subscriptions: set[KafkaSubscription] = set()
        self._capabilities = Capabilities(
            delivery_modes=frozenset({"at-least-once", "at-most-once"}),
            delays=True,
            dead_letters="manual",
            attempt_tracking=True,
            concurrency="partition",
            ordering="partition",
            priorities=False,
            purge=True,
            depth=True,
            replay=True,
            properties=ALL_PROPERTIES,
            max_message_size=address.max_message_size,
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._address.where!r}, {self.state.status})"

    @property
    def capabilities(self) -> Capabilities:
        """See ``Transport``."""
        return self._capabilities

    async def _open(self) -> None:
        await self._client.start()

    async def _close(self) -> None:
        """Others get what is still held."""
        await asyncio.gather(*[one.close() for one in list(self._subscriptions)])
        consumers = [*self._consumers.values(), *self._leaving]
        await asyncio.gather(*[one.close() for one in consumers])
        if self._transactions is not None:
            await self._transactions.close()
        await self._client.stop()

    async def apply_topology(self, topology: Topology) -> Sequence[TopologyNote]:
        """See ``Transport``."""
        await self._client.require()
        notes = await self._topics.declare(topology)
        return [*ignored_arguments(topology), *ignored_exchanges(topology), *notes]

    async def send(self, messages: Sequence[Message]) -> Sequence[MatadorError | None]:
        """See ``Transport``."""
        await self._client.require()
        return await self._store.send(messages)

    async def subscribe(self, queue: str, *, prefetch: int) -> KafkaSubscription:
        """See ``Transport``. All subscriptions of a queue share one member of its group."""
        await self._client.require()
        consumer = await self._consumer(queue)
        subscription = KafkaSubscription(
            consumer, self._topics, prefetch, self._consumer, self._subscriptions.discard
        )
        self._subscriptions.add(subscription)
        return subscription

    async def settle(self, settlements: Sequence[Settlement]) -> Sequence[MatadorError | None]:
        """See ``Transport``."""
        await self._client.require()
        return await self._settler.settle(settlements)

    # -- optional abilities ------------------------------------------------------------------------

    browses_dead_letters = True

    async def browse(
        self, queue: str, *, after: str | None = None, limit: int | None = None
    ) -> AsyncIterator[StoredMessage]:
        """See ``Browsing`` and ``BrowsingDeadLetters``: for dead letters only."""
        await self._client.require()
        async for stored in self._browser.browse(queue, after, limit):
            yield stored

    async def take(self, queue: str, positions: Sequence[str]) -> Sequence[Delivery | None]:
        """See ``Browsing``. Joins the group of the dead letters until all are settled."""
        await self._client.require()
        if not is_dead_letters(queue):
            raise UnsupportedError(f"{queue!r} is consumed by its group; dead letters can be taken")
        if not positions:
            return []
        member = await self._consumer(queue)
        try:
            return await self._browser.take(queue, positions, member)
        finally:
            member.let_go()

    async def purge(self, queue: str) -> int:
        """See ``Purging``. What waits behind a message that another process holds stays."""
        await self._client.require()
        return await self._purger.purge(queue, self._consumers.get(queue))

    async def depth(self, queue: str) -> QueueDepth:
        """See ``Measuring``."""
        await self._client.require()
        return await self._browser.depth(queue)

    async def read(
        self, queue: str, *, after: str | None = None, limit: int = 1000
    ) -> Sequence[StoredMessage]:
        """See ``Replaying``. In order of the time when Kafka stored them."""
        await self._client.require()
        return await self._browser.read(queue, after, limit)

    async def examine(self) -> Sequence[Finding]:
        """See ``Examining``."""
        await self._client.require()
        return await examine(self._client)

    async def check_topology(self, topology: Topology) -> Sequence[TopologyNote]:
        """See ``Checking``: partitions, replicas, retention and cleanup that get in the way."""
        await self._client.require()
        return await check(self._client, self._topics, topology)

    # -- inside ------------------------------------------------------------------------------------

    def _group(self, topic: str) -> str:
        return topic if self._address.group is None else f"{self._address.group}.{topic}"

    async def _consumer(self, queue: str) -> QueueConsumer:
        topic = topic_name(queue)
        await self._topics.find(topic, queue=queue)
        delays = await self._has_delays(topic)
        if (found := self._consumers.get(queue)) is not None:
            return found
        consumer = QueueConsumer(
            self._client,
            queue,
            topic,
            self._group(topic),
            self._clock,
            delays=delays,
            closed=self._left,
        )
        self._consumers[queue] = consumer
        return consumer

    async def _has_delays(self, topic: str) -> bool:
        try:
            await self._topics.find(delayed_topic(topic))
        except MatadorError:
            return False
        return True

    def _left(self, consumer: QueueConsumer) -> None:
        if self._consumers.get(consumer.queue) is consumer:
            del self._consumers[consumer.queue]
        self._leaving.add(consumer)
        consumer.stopped.add_done_callback(lambda _: self._leaving.discard(consumer))
