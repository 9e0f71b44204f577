"""The transport: connects the parts of this package, and keeps the consumers of each queue."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import UTC, datetime
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
from matador.transports.kafka.consumer import KafkaSubscription, QueueConsumer
from matador.transports.kafka.delays import BrokerClock
from matador.transports.kafka.doctor import check, examine
from matador.transports.kafka.exchanges import Exchanges
from matador.transports.kafka.options import KafkaOptions, read_kafka_address
from matador.transports.kafka.reader import KafkaLog
from matador.transports.kafka.replies import Replies
from matador.transports.kafka.settle import KafkaSettler, KafkaTransactions
from matador.transports.kafka.store import KafkaStore
from matador.transports.kafka.topics import (
    TemporaryQueues,
    Topics,
    delayed_topic,
    exchange_topic,
    is_dead_letters,
    topic_name,
)
from matador.transports.kit.notes import ignored_arguments
from matador.transports.kit.properties import ALL_PROPERTIES
from matador.transports.kit.replies import ReplySubscription
from matador.transports.kit.transport import BaseTransport


class KafkaTransport(BaseTransport):
    """Messages in Apache Kafka.

    A queue is a topic with a consumer group of its own. A worker commits a message after it has
    handled it, and after its retry or dead letter is stored. Workers handle messages with one
    ordering key one at a time and in order, retries included. If a worker dies after it has stored
    a retry and before it has committed the original, both are handled, and the retry comes behind
    later messages of its key. The option ``transactional`` prevents that.

    Args:
        url: ``kafka://user:password@host:9092,host:9092/?replication=3``; ``kafkas://`` for TLS.
        name: for logs and metrics.
        start: where a consumer group without commits starts to read its queue: ``beginning``, or
            ``end`` for messages that are sent from then on.
        group: a prefix for the names of the consumer groups (``billing.shop.events``). Without it,
            a group has the name of its topic. All workers and tools of a queue must use the same.
        partitions: of topics that the transport creates; 0: the concurrency of the queue, or 4.
        replication: of topics that the transport creates; 0: the default of the brokers.
        retention: seconds after which Kafka deletes the messages of a queue, handled or not.
        create: create the missing topics of a topology.
        transactional: store a retry or a dead letter and commit its original in one transaction.
        timeout: seconds for connecting, for an answer, and for a confirmation.
        session: seconds after which a worker that sends no heartbeats loses its partitions.
        revoke_wait: seconds for which a partition that moves to another worker waits for running
            handlers.
        linger: the longest time in seconds for which the client collects messages. Messages that
            are sent together leave at once.
        compression: ``none``, ``gzip``, ``snappy``, ``lz4`` or ``zstd``.
        max_message_size: bytes, headers and key included.
        batch_size: how many messages are read at a time.
        client_id: shown by the brokers.
        sasl_mechanism: ``PLAIN`` (if there is a user), ``SCRAM-SHA-256``, ``SCRAM-SHA-512`` …
        config: more settings of librdkafka, by name; only as a keyword.

    All other options can be given in the address (``?replication=3``) or as keywords, which win.

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
        self._replies = Replies(self._client, self._topics, self._browser)
        self._exchanges = Exchanges(
            self._client, self._topics, self._store, self._browser, self._group
        )
        self._temporary = TemporaryQueues(
            self._client, self._in_use, self._group, self.delete_queue
        )
        self._consumers: dict[tuple[str, str], QueueConsumer] = {}
        self._leaving: set[QueueConsumer] = set()
        self._started: set[str] = set()  # topics whose group has a commit
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
            routing=True,
            properties=ALL_PROPERTIES,
            max_message_size=address.max_message_size,
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._address.where!r}, {self.state.status})"

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    async def _open(self) -> None:
        await self._client.start()

    async def _close(self) -> None:
        await self._temporary.close()
        await asyncio.gather(*[one.close() for one in list(self._subscriptions)])
        await self._replies.close()
        consumers = [*self._consumers.values(), *self._leaving]
        await asyncio.gather(*[one.close() for one in consumers])
        if self._transactions is not None:
            await self._transactions.close()
        await self._client.stop()

    async def apply_topology(self, topology: Topology) -> Sequence[TopologyNote]:
        await self._client.require()
        notes = await self._topics.declare(topology)
        notes += await self._exchanges.apply(topology)
        self._temporary.apply(topology)
        queues = {topology.full_name(one.queue) for one in topology.bindings}
        for subscription in [one for one in self._subscriptions if one.queue in queues]:
            await subscription.refresh()
        return [*ignored_arguments(topology), *notes]

    async def send(self, messages: Sequence[Message]) -> Sequence[MatadorError | None]:
        await self._client.require()
        return await self._store.send(messages)

    async def subscribe(self, queue: str, *, prefetch: int) -> KafkaSubscription:
        """All subscriptions of a queue share one member of each of its groups."""
        await self._client.require()
        consumers = await self._all_consumers(queue)
        subscription = KafkaSubscription(
            consumers, self._topics, prefetch, self._all_consumers, self._subscriptions.discard
        )
        self._subscriptions.add(subscription)
        return subscription

    async def settle(self, settlements: Sequence[Settlement]) -> Sequence[MatadorError | None]:
        await self._client.require()
        return await self._settler.settle(settlements)

    # -- optional abilities ------------------------------------------------------------------------

    browses_dead_letters = True

    async def browse(
        self, queue: str, *, after: str | None = None, limit: int | None = None
    ) -> AsyncIterator[StoredMessage]:
        """For dead letters only."""
        await self._client.require()
        async for stored in self._browser.browse(queue, after, limit):
            yield stored

    async def take(self, queue: str, positions: Sequence[str]) -> Sequence[Delivery | None]:
        """For dead letters only. Joins their group until all of them are settled."""
        await self._client.require()
        if not is_dead_letters(queue):
            raise UnsupportedError(f"{queue!r} is consumed by its group; dead letters can be taken")
        if not positions:
            return []
        consumer = await self._consumer(queue)
        try:
            return await self._browser.take(queue, positions, consumer)
        finally:
            consumer.release()

    async def purge(self, queue: str) -> int:
        """Messages behind one that another process has in flight stay."""
        await self._client.require()
        purged = await self._browser.purge(queue, self._consumers.get((queue, topic_name(queue))))
        for exchange, extents in (await self._exchanges.extents(queue)).items():
            consumer = self._consumers.get((queue, exchange_topic(exchange)))
            if consumer is None:
                purged += await self._exchanges.skip_all(queue, exchange, extents)
                continue
            for number, one in extents.items():
                purged += await consumer.skip(number, one.start, one.end)
        return purged

    async def depth(self, queue: str) -> QueueDepth:
        """Includes unread messages of exchanges, whether they match a binding or not."""
        await self._client.require()
        own = await self._browser.depth(queue)
        found = [
            one
            for extents in (await self._exchanges.extents(queue)).values()
            for one in extents.values()
        ]
        in_flight = sum(one.in_flight for one in found)
        ready = max(0, sum(one.left for one in found) - in_flight)
        return QueueDepth(
            ready=own.ready + ready,
            delayed=own.delayed,
            in_flight=own.in_flight + in_flight,
            consumers=own.consumers,
        )

    async def oldest_due(self, queue: str) -> datetime | None:
        """Includes unread messages of exchanges, whether they match a binding or not."""
        await self._client.require()
        topic, now = topic_name(queue), datetime.now(UTC)
        places = {topic: await self._browser.extents(topic, queue=queue)}
        for exchange, extents in (await self._exchanges.extents(queue)).items():
            places[exchange_topic(exchange)] = extents
        found = [await self._browser.oldest_due(*place, now) for place in places.items()]
        return min((one for one in found if one is not None), default=None)

    async def read(
        self, queue: str, *, after: str | None = None, limit: int = 1000
    ) -> Sequence[StoredMessage]:
        """In order of the time at which Kafka stored the messages."""
        await self._client.require()
        return await self._browser.read(queue, after, limit)

    async def publish(
        self, exchange: str, messages: Sequence[Message]
    ) -> Sequence[int | MatadorError]:
        """1 for each stored message: Kafka does not know how many queues will read it."""
        await self._client.require()
        return await self._exchanges.publish(exchange, messages)

    async def unbind(self, exchange: str, queue: str, pattern: str) -> None:
        """Affects this process only. The queue skips what it has not read yet."""
        await self._client.require()
        await self._exchanges.unbind(exchange, queue, pattern)
        for subscription in [one for one in self._subscriptions if one.queue == queue]:
            await subscription.refresh()

    async def delete_queue(self, queue: str) -> None:
        await self._client.require()
        self._temporary.forget(queue)
        members = [one for (name, _), one in self._consumers.items() if name == queue]
        await asyncio.gather(*[one.close() for one in members])
        await self._exchanges.delete_queue(queue)

    async def reply_address(self) -> str:
        await self._client.require()
        return await self._replies.address()

    async def replies(self) -> ReplySubscription:
        """Replies stay in one topic, ``matador.replies``, for an hour."""
        await self._client.require()
        return await self._replies.subscribe()

    async def offsets(self, queue: str) -> Mapping[int, tuple[int, int]]:
        """Messages of an open transaction are behind the ends."""
        await self._client.require()
        return await self._browser.committed_offsets(topic_name(queue), queue)

    async def read_offsets(
        self, queue: str, partition: int, start: int, end: int
    ) -> AsyncIterator[StoredMessage]:
        await self._client.require()
        async for stored in self._browser.read_offsets(queue, partition, start, end):
            yield stored

    def log(self) -> KafkaLog:
        return KafkaLog(self._address)

    async def examine(self) -> Sequence[Finding]:
        await self._client.require()
        return await examine(self._client)

    async def check_topology(self, topology: Topology) -> Sequence[TopologyNote]:
        """Checks partitions, replicas, retention and cleanup."""
        await self._client.require()
        return await check(self._client, self._topics, topology)

    # -- consumers ---------------------------------------------------------------------------------

    def _group(self, topic: str) -> str:
        return topic if self._address.group is None else f"{self._address.group}.{topic}"

    async def _consumer(self, queue: str) -> QueueConsumer:
        topic = topic_name(queue)
        await self._topics.find(topic, queue=queue)
        delays = await self._has_delays(topic)
        if self._address.start == "end" and not is_dead_letters(queue):
            await self._start_at_end(queue, topic)
        if (found := self._consumers.get((queue, topic))) is not None:
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
        self._consumers[queue, topic] = consumer
        return consumer

    async def _start_at_end(self, queue: str, topic: str) -> None:
        """Move the group once. A topic that is recreated later is read from its beginning."""
        if topic not in self._started:
            await self._exchanges.start_at_end(queue, topic, self._group(topic))
            self._started.add(topic)

    async def _all_consumers(self, queue: str) -> list[QueueConsumer]:
        """The consumers of the topic of a queue, and of its exchanges."""
        return [
            await self._consumer(queue),
            *[self._exchange_consumer(queue, one) for one in self._exchanges.of(queue)],
        ]

    def _exchange_consumer(self, queue: str, exchange: str) -> QueueConsumer:
        topic = exchange_topic(exchange)
        if (found := self._consumers.get((queue, topic))) is not None:
            return found
        consumer = self._consumers[queue, topic] = QueueConsumer(
            self._client,
            queue,
            topic,
            self._exchanges.group(queue, exchange),
            self._clock,
            accepts=self._exchanges.filter(queue, exchange),
            closed=self._left,
        )
        return consumer

    def _in_use(self, queue: str) -> bool:
        return any(one.queue == queue for one in self._subscriptions)

    async def _has_delays(self, topic: str) -> bool:
        try:
            await self._topics.find(delayed_topic(topic))
        except MatadorError:
            return False
        return True

    def _left(self, consumer: QueueConsumer) -> None:
        if self._consumers.get((consumer.queue, consumer.topic)) is consumer:
            del self._consumers[consumer.queue, consumer.topic]
        self._leaving.add(consumer)
        consumer.stopped.add_done_callback(lambda _: self._leaving.discard(consumer))
