"""Topics: found by name, made from a topology, made again when they were deleted."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from confluent_kafka import TopicCollection, TopicPartition
from confluent_kafka.admin import (
    ConfigResource,  # pyright: ignore[reportPrivateImportUsage] - public
    NewTopic,  # pyright: ignore[reportPrivateImportUsage] - public
    OffsetSpec,  # pyright: ignore[reportPrivateImportUsage] - public
    ResourceType,  # pyright: ignore[reportPrivateImportUsage] - public
)

from matador.errors import ConfigurationError, MatadorError, QueueNotFoundError
from matador.model.message import TopologyNote
from matador.model.topology import Topology
from matador.transports.kafka.client import KafkaClient
from matador.transports.kafka.delays import PARTITIONS
from matador.transports.kafka.errors import error_of
from matador.transports.kafka.names import delayed_topic, exchange_topic, topic_name
from matador.transports.kafka.server_settings import settings_of, whole_of
from matador.transports.kit.backoff import Backoff
from matador.transports.kit.errors import queue_not_found
from matador.transports.kit.notes import ignored_limits

_DEFAULT_PARTITIONS = 4
_LIMIT = "max.message.bytes"
_SLACK = 1 << 20  # bytes by which a dead letter may be larger than what it came from


class Topics:
    """The topics by their names on Kafka."""

    def __init__(self, client: KafkaClient) -> None:
        self._client = client
        self._address = client.address
        self._declared: dict[str, tuple[int, Mapping[str, str]]] = {}
        self._partitions: dict[str, int] = {}
        self._finding: dict[str, asyncio.Lock] = {}
        self.retentions: dict[str, float] = {}
        """Seconds for which finished messages can be read again, for topics that promise it."""

    def knows(self, topic: str) -> bool:
        """Whether it was there when we last looked."""
        return topic in self._partitions

    def forget(self, topic: str) -> None:
        """Look for it again: it may have been deleted."""
        self._partitions.pop(topic, None)

    def declare_one(self, topic: str, partitions: int, settings: Mapping[str, str]) -> None:
        """Have a topic made when it is looked for, if it is not there."""
        self._declared[topic] = partitions, settings

    def undeclare(self, topics: Iterable[str]) -> None:
        """Never make them again, unless they are declared again."""
        for topic in topics:
            self._declared.pop(topic, None)
            self.retentions.pop(topic, None)
            self.forget(topic)

    async def find(self, topic: str, *, queue: str | None = None) -> int:
        """How many partitions it has. A declared one that was deleted is made again.

        Raises:
            QueueNotFoundError: there is no such topic.
        """
        if (known := self._partitions.get(topic)) is not None:
            return known
        async with self._finding.setdefault(topic, asyncio.Lock()):
            if (known := self._partitions.get(topic)) is not None:
                return known
            found = (await self.describe([topic]))[topic]
            if isinstance(found, QueueNotFoundError):
                if topic not in self._declared or not self._address.create:
                    raise queue_not_found(queue or topic, self._client.where, self._declared)
                await self._make([topic])
                found = (await self.describe([topic]))[topic]
            if isinstance(found, MatadorError):
                raise found
            self._partitions[topic] = len(found.partitions)
        return self._partitions[topic]

    async def describe(self, topics: Sequence[str]) -> dict[str, Any]:
        """Each topic as the client library describes it, or why it cannot be described."""
        names = TopicCollection(list(topics))
        return await self._client.ask(lambda admin: admin.describe_topics(names))

    async def _make(self, topics: Sequence[str]) -> None:
        replication = self._address.replication or -1
        new = [
            NewTopic(one, self._declared[one][0], replication, config=dict(self._declared[one][1]))
            for one in topics
        ]
        until, backoff = time.monotonic() + self._address.timeout, Backoff(0.1, 1.0)
        made = await self._client.ask(lambda admin: admin.create_topics(new))
        while any(map(_lacks_brokers, made.values())) and time.monotonic() < until:
            await backoff.sleep()
            made = await self._client.ask(lambda admin: admin.create_topics(new))
        for topic, outcome in made.items():
            if isinstance(outcome, MatadorError):
                code = error_of(outcome.__cause__) if outcome.__cause__ else None
                if code is None or code.name() != "TOPIC_ALREADY_EXISTS":
                    raise ConfigurationError(
                        f"Kafka: the topic {topic!r} cannot be made: {outcome}; make it yourself, "
                        f"or check the options partitions and replication"
                    ) from outcome
        await self._wait_for(topics)

    async def _wait_for(self, topics: Sequence[str]) -> None:
        """A topic that was made is there for everybody a little later, and its partitions take
        records a little later still. Until then some are refused and those behind them are not."""
        backoff = Backoff(0.02, 0.5)
        until = time.monotonic() + self._address.timeout
        while True:
            found = await self.describe(topics)
            missing = [one for one in found.values() if isinstance(one, QueueNotFoundError)]
            if (not missing and await self._are_led(found)) or time.monotonic() > until:
                return
            await backoff.sleep()

    async def _are_led(self, found: Mapping[str, Any]) -> bool:
        """Whether all partitions of topics answer."""
        places: Any = {
            TopicPartition(topic, partition.id): OffsetSpec.latest()
            for topic, one in found.items()
            if not isinstance(one, MatadorError)
            for partition in one.partitions
        }
        answers = await self._client.ask(lambda admin: admin.list_offsets(places))
        return not any(isinstance(one, MatadorError) for one in answers.values())

    async def wait_until_gone(self, topics: Sequence[str]) -> None:
        """A topic that was deleted is there a little longer."""
        backoff = Backoff(0.02, 0.5)
        until = time.monotonic() + self._address.timeout
        while time.monotonic() < until:
            found = await self.describe(topics)
            if all(isinstance(one, QueueNotFoundError) for one in found.values()):
                return
            await backoff.sleep()

    # -- topology ----------------------------------------------------------------------------------

    async def declare(self, topology: Topology) -> list[TopologyNote]:
        """Make what is missing. What is there is used as it is; ``exact`` queues are not made
        unless they say ``create``.

        Raises:
            QueueNotFoundError: a topic is missing, and the option ``create`` is off.
            ConfigurationError: a topic that cannot be made.
        """
        wanted = self.wanted(topology)
        self._declared |= wanted
        for queue in topology.queues:
            if queue.retention is not None:
                self.retentions[topic_name(topology.full_name(queue.name))] = queue.retention
        found = await self.describe(list(wanted))
        missing = [topic for topic, one in found.items() if isinstance(one, QueueNotFoundError)]
        if missing and not self._address.create:
            raise queue_not_found(missing[0], self._client.where)
        if missing:
            await self._widen(topology, missing)
            await self._make(missing)
        for topic in wanted:
            self.forget(topic)
            one = found[topic]
            if not isinstance(one, MatadorError):
                self._partitions[topic] = len(one.partitions)
            elif topic in missing:
                self._partitions[topic] = wanted[topic][0]
            else:
                raise one
        await self._introduce(
            [topic_name(topology.full_name(queue.name)) for queue in topology.queues]
        )
        return list(_notes(topology))

    async def _widen(self, topology: Topology, missing: Sequence[str]) -> None:
        """Have the topics of delays and dead letters take what is in a queue that others made."""
        letters: dict[str, list[str]] = {}
        for queue, _, full_name in topology.dead_letter_names():
            letters.setdefault(queue.name, []).append(topic_name(full_name))
        for queue in topology.queues:
            name = topic_name(topology.full_name(queue.name))
            new = {delayed_topic(name), *letters.get(queue.name, ())}.intersection(missing)
            if not new or name in missing:
                continue
            await self._wait_for([name])  # its settings are unknown while it is being made
            found = await settings_of(self._client, ConfigResource(ResourceType.TOPIC, name))
            limit = whole_of(found.get(_LIMIT), 0)
            for topic in new:
                partitions, settings = self._declared[topic]
                if limit > int(settings[_LIMIT]):
                    self._declared[topic] = partitions, {**settings, _LIMIT: str(limit)}

    async def _introduce(self, topics: Iterable[str]) -> None:
        """Have the producer know them: else the first message waits for half a second."""
        for topic in topics:
            refresh = partial(self._client.producer.refresh, topic, self._address.timeout)
            with suppress(MatadorError):  # it asks again when it sends
                await self._client.blocking(refresh)

    def wanted(self, topology: Topology) -> dict[str, tuple[int, Mapping[str, str]]]:
        """The topics of a topology that are ours to make: partitions and settings."""
        wanted: dict[str, tuple[int, Mapping[str, str]]] = {}
        stamped = {"message.timestamp.type": "LogAppendTime", "cleanup.policy": "delete"}
        kept = stamped | {
            "retention.ms": "-1",
            _LIMIT: str(self._address.max_message_size + _SLACK),
        }
        for queue in topology.queues:
            name = topic_name(topology.full_name(queue.name))
            if queue.create:
                partitions = self._address.partitions or queue.concurrency or _DEFAULT_PARTITIONS
                retention = max(self._address.retention, queue.retention or 0.0)
                wanted[name] = partitions, stamped | {"retention.ms": str(round(retention * 1000))}
            wanted[delayed_topic(name)] = PARTITIONS, kept
        for exchange in topology.exchanges:
            wanted[exchange_topic(exchange.name)] = (
                self._address.partitions or _DEFAULT_PARTITIONS,
                stamped | {"retention.ms": str(round(self._address.retention * 1000))},
            )
        for queue, kind, full_name in topology.dead_letter_names():
            ttl = topology.letters_of(queue)[kind].ttl
            limited = {} if ttl is None else {"retention.ms": str(max(1, round(ttl * 1000)))}
            wanted[topic_name(full_name)] = 1, kept | limited
        return wanted


def _lacks_brokers(outcome: object) -> bool:
    """Whether brokers are missing for the replicas: for a moment only, if one is just starting."""
    cause = outcome.__cause__ if isinstance(outcome, MatadorError) else None
    error = error_of(cause) if cause is not None else None
    return error is not None and error.name() == "INVALID_REPLICATION_FACTOR"


def _notes(topology: Topology) -> Iterator[TopologyNote]:
    for queue in topology.queues:
        name = topology.full_name(queue.name)
        if topic_name(name) != name:
            yield TopologyNote(
                name, f"Kafka does not allow this name; the topic is {topic_name(name)!r}"
            )
        if queue.priorities:
            yield TopologyNote(name, "Kafka has no priorities: they are ignored")
    yield from ignored_limits(topology, "Kafka")
    for queue, kind, name in topology.dead_letter_names():
        letters = topology.letters_of(queue)[kind]
        if letters.max_length is not None:
            yield TopologyNote(name, "Kafka has no length limit: max_length is ignored")
        if letters.ttl is not None:
            yield TopologyNote(
                name, "Kafka deletes whole segments: dead letters stay for longer than their ttl"
            )
