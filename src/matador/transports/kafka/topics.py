"""Topics: their names, how they are created from a topology, and when they are deleted.

A queue is a topic of the same name. Beside it are ``NAME.delayed`` for messages that wait, and one
topic for each kind of dead letter. An exchange is the topic ``NAME.exchange``. A declared topic
that was deleted is created again when it is needed.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from typing import Any, TypeAlias

from confluent_kafka import TopicCollection, TopicPartition
from confluent_kafka.admin import (
    ConfigResource,  # pyright: ignore[reportPrivateImportUsage] - public
    NewTopic,  # pyright: ignore[reportPrivateImportUsage] - public
    OffsetSpec,  # pyright: ignore[reportPrivateImportUsage] - public
    ResourceType,  # pyright: ignore[reportPrivateImportUsage] - public
)

from matador.errors import ConfigurationError, MatadorError, QueueNotFoundError
from matador.model.message import TopologyNote
from matador.model.topology import DEAD_LETTER_KINDS, Topology
from matador.transports.kafka.client import KafkaClient
from matador.transports.kafka.errors import error_of
from matador.transports.kit.backoff import Backoff
from matador.transports.kit.errors import queue_not_found
from matador.transports.kit.notes import ignored_limits

DELAY_LEVELS = 15
"""How many partitions of a topic of delayed messages hold messages; one more tells the time."""

Shape: TypeAlias = tuple[int, Mapping[str, str]]
"""How many partitions a topic has, and its settings."""

_LOG = logging.getLogger(__name__)
_ILLEGAL = re.compile(r"[^A-Za-z0-9._-]", re.ASCII)
_MAX_NAME = 249
_DELAYED = ".delayed"
_EXCHANGE = ".exchange"
_LETTERS = tuple(f".{kind}" for kind in DEAD_LETTER_KINDS)
_DEFAULT_PARTITIONS = 4
_SIZE_LIMIT = "max.message.bytes"
_LETTER_HEADROOM = 1 << 20  # bytes by which a dead letter may be larger than its message
_MIN_CHECK, _MAX_CHECK = 0.2, 10.0  # seconds between checks of temporary queues


# -- names -----------------------------------------------------------------------------------------


@lru_cache(1000)
def topic_name(queue: str) -> str:
    """The topic of a queue: its own name, with an escape for characters that Kafka rejects.

    Raises:
        ConfigurationError: the name is too long for Kafka.

    Example:
        >>> topic_name("shop.events"), topic_name("Owner:orders")
        ('shop.events', 'Owner-3Aorders')
    """
    name = _ILLEGAL.sub(lambda found: "".join(f"-{byte:02X}" for byte in found[0].encode()), queue)
    if len(name) > _MAX_NAME:
        raise ConfigurationError(
            f"Kafka: the topic {name[:40]!r}… has {len(name)} characters, and Kafka allows "
            f"{_MAX_NAME}; choose a shorter name or namespace"
        )
    return name


def delayed_topic(topic: str) -> str:
    """The topic for delayed messages of a queue.

    Example:
        >>> delayed_topic("shop.events")
        'shop.events.delayed'
    """
    return topic + _DELAYED


def exchange_topic(exchange: str) -> str:
    """The topic of an exchange; a queue of the same name has another one.

    Example:
        >>> exchange_topic("shop.orders")
        'shop.orders.exchange'
    """
    return topic_name(exchange + _EXCHANGE)


def is_dead_letters(queue: str) -> bool:
    """Whether a name is that of a queue of dead letters."""
    return queue.endswith(_LETTERS)


# -- topics ----------------------------------------------------------------------------------------


class Topics:
    """Finds topics, and creates those that were declared."""

    def __init__(self, client: KafkaClient) -> None:
        self._client = client
        self._address = client.address
        self._declared: dict[str, Shape] = {}
        self._partitions: dict[str, int] = {}
        self._finding: dict[str, asyncio.Lock] = {}
        self.retentions: dict[str, float] = {}
        """Seconds for which finished messages can be read again, for topics that promise it."""

    def is_known(self, topic: str) -> bool:
        """Whether the topic existed at the last check."""
        return topic in self._partitions

    def forget(self, topic: str) -> None:
        """Look for the topic again when it is needed: it may have been deleted."""
        self._partitions.pop(topic, None)

    def declare_one(self, topic: str, partitions: int, settings: Mapping[str, str]) -> None:
        """Create a missing topic when it is needed."""
        self._declared[topic] = partitions, settings

    def undeclare(self, topics: Iterable[str]) -> None:
        """Do not create these topics again until they are declared again."""
        for topic in topics:
            self._declared.pop(topic, None)
            self.retentions.pop(topic, None)
            self.forget(topic)

    async def find(self, topic: str, *, queue: str | None = None) -> int:
        """How many partitions a topic has. Creates a declared topic that is missing.

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
                await self._create([topic])
                found = (await self.describe([topic]))[topic]
            if isinstance(found, MatadorError):
                raise found
            self._partitions[topic] = len(found.partitions)
        return self._partitions[topic]

    async def describe(self, topics: Sequence[str]) -> dict[str, Any]:
        """Each topic as the client library describes it, or why it cannot be described."""
        names = TopicCollection(list(topics))
        return await self._client.ask(lambda admin: admin.describe_topics(names))

    async def _create(self, topics: Sequence[str]) -> set[str]:
        """Create declared topics. Returns those that exist already: another program has created
        them a moment ago."""
        existing: set[str] = set()
        replication = self._address.replication or -1
        new = [
            NewTopic(one, self._declared[one][0], replication, config=dict(self._declared[one][1]))
            for one in topics
        ]
        until, backoff = time.monotonic() + self._address.timeout, Backoff(0.1, 1.0)
        created = await self._client.ask(lambda admin: admin.create_topics(new))
        while any(map(_lacks_brokers, created.values())) and time.monotonic() < until:
            await backoff.sleep()
            created = await self._client.ask(lambda admin: admin.create_topics(new))
        for topic, outcome in created.items():
            if isinstance(outcome, MatadorError):
                code = error_of(outcome.__cause__) if outcome.__cause__ else None
                if code is None or code.name() != "TOPIC_ALREADY_EXISTS":
                    raise ConfigurationError(
                        f"Kafka: the topic {topic!r} cannot be created: {outcome}; create it "
                        f"yourself, or check the options partitions and replication"
                    ) from outcome
                existing.add(topic)
        await self._wait_until_led(topics)
        return existing

    async def _wait_until_led(self, topics: Sequence[str]) -> None:
        """Wait until all brokers know new topics, and their partitions accept records.

        Before that, a partition may reject a record and accept the one behind it.
        """
        backoff = Backoff(0.02, 0.5)
        until = time.monotonic() + self._address.timeout
        while True:
            found = await self.describe(topics)
            missing = [one for one in found.values() if isinstance(one, QueueNotFoundError)]
            if (not missing and await self._are_led(found)) or time.monotonic() > until:
                return
            await backoff.sleep()

    async def _are_led(self, found: Mapping[str, Any]) -> bool:
        """Whether all partitions of the topics answer."""
        places: Any = {
            TopicPartition(topic, partition.id): OffsetSpec.latest()
            for topic, one in found.items()
            if not isinstance(one, MatadorError)
            for partition in one.partitions
        }
        answers = await self._client.ask(lambda admin: admin.list_offsets(places))
        return not any(isinstance(one, MatadorError) for one in answers.values())

    async def wait_until_gone(self, topics: Sequence[str]) -> None:
        """Wait until the brokers have forgotten deleted topics."""
        backoff = Backoff(0.02, 0.5)
        until = time.monotonic() + self._address.timeout
        while time.monotonic() < until:
            found = await self.describe(topics)
            if all(isinstance(one, QueueNotFoundError) for one in found.values()):
                return
            await backoff.sleep()

    # -- topology ----------------------------------------------------------------------------------

    async def declare(self, topology: Topology) -> list[TopologyNote]:
        """Create missing topics, and use the others as they are. ``exact`` queues are created only
        if they have ``create``.

        Raises:
            QueueNotFoundError: a topic is missing, and the option ``create`` is off.
            ConfigurationError: a topic cannot be created.
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
            await self._create_all(topology, missing)
        for topic in wanted:
            self.forget(topic)
            one = found[topic]
            if not isinstance(one, MatadorError):
                self._partitions[topic] = len(one.partitions)
            elif topic in missing:
                self._partitions[topic] = wanted[topic][0]
            else:
                raise one
        for queue in topology.queues:
            await self._introduce(topic_name(topology.full_name(queue.name)))
        return list(_notes(topology))

    async def _create_all(self, topology: Topology, missing: Sequence[str]) -> None:
        """Create topics. Those of delayed messages and dead letters must accept whatever the queue
        of another program accepts, so the queues come first."""
        companions: dict[str, list[str]] = {}
        for queue in topology.queues:
            name = topic_name(topology.full_name(queue.name))
            companions[name] = [delayed_topic(name)]
        for queue, _, full_name in topology.dead_letter_names():
            name = topic_name(topology.full_name(queue.name))
            companions[name].append(topic_name(full_name))
        created = [topic for topic in missing if topic in companions]
        if created:
            existing = await self._create(created)
            created = [topic for topic in created if topic not in existing]
        for name, topics in companions.items():
            new = set(topics).intersection(missing)
            if not new or name in created:
                continue
            await self._wait_until_led([name])  # another process may be creating it
            found = await self._client.settings_of(ConfigResource(ResourceType.TOPIC, name))
            limit = int_setting(found, _SIZE_LIMIT, 0)
            for topic in new:
                partitions, settings = self._declared[topic]
                if limit > int(settings[_SIZE_LIMIT]):
                    self._declared[topic] = partitions, {**settings, _SIZE_LIMIT: str(limit)}
        if rest := [topic for topic in missing if topic not in companions]:
            await self._create(rest)

    async def _introduce(self, topic: str) -> None:
        """Make the producer look up a topic now: the first message would wait half a second."""
        refresh = partial(self._client.producer.refresh, topic, self._address.timeout)
        with suppress(MatadorError):  # the producer looks again when it sends
            await self._client.blocking(refresh)

    def wanted(self, topology: Topology) -> dict[str, Shape]:
        """The topics of a topology that the transport creates."""
        wanted: dict[str, Shape] = {}
        stamped = {"message.timestamp.type": "LogAppendTime", "cleanup.policy": "delete"}
        kept = stamped | {
            "retention.ms": "-1",
            _SIZE_LIMIT: str(self._address.max_message_size + _LETTER_HEADROOM),
        }
        for queue in topology.queues:
            name = topic_name(topology.full_name(queue.name))
            if queue.create:
                partitions = self._address.partitions or queue.concurrency or _DEFAULT_PARTITIONS
                retention = max(self._address.retention, queue.retention or 0.0)
                wanted[name] = partitions, stamped | {"retention.ms": str(round(retention * 1000))}
            wanted[delayed_topic(name)] = DELAY_LEVELS + 1, kept
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


def int_setting(settings: Mapping[str, str], name: str, default: int) -> int:
    """A setting of a broker or a topic as a whole number; the default if it is none."""
    try:
        return int(settings.get(name, default))
    except ValueError:
        return default


def _lacks_brokers(outcome: object) -> bool:
    """Whether too few brokers run for the replicas; one may be starting."""
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


# -- temporary queues ------------------------------------------------------------------------------


class TemporaryQueues:
    """Deletes the temporary queues of the applied topologies once they are unused for long enough.

    Every process that has applied a topology does so.

    Args:
        in_use: whether this process consumes a queue.
        group: the consumer group of a topic.
        delete: deletes a queue.
    """

    def __init__(
        self,
        client: KafkaClient,
        in_use: Callable[[str], bool],
        group: Callable[[str], str],
        delete: Callable[[str], Awaitable[None]],
    ) -> None:
        self._client = client
        self._in_use = in_use
        self._group = group
        self._delete = delete
        self._expires: dict[str, float] = {}
        self._used: dict[str, float] = {}
        self._task: asyncio.Task[None] | None = None

    def apply(self, topology: Topology) -> None:
        """Add the temporary queues of a topology; they count as used now."""
        for queue in topology.queues:
            if queue.expires is not None:
                name = topology.full_name(queue.name)
                self._expires[name] = queue.expires
                self._used[name] = time.monotonic()
        if self._expires and (self._task is None or self._task.done()):
            self._task = asyncio.create_task(self._run())

    def forget(self, queue: str) -> None:
        """Stop checking a queue that is deleted."""
        self._expires.pop(queue, None)

    async def close(self) -> None:
        task, self._task = self._task, None
        if task is not None and not task.done():
            task.cancel()
            await asyncio.wait([task])

    async def _run(self) -> None:
        while self._expires:
            wait = min(self._expires.values()) / 4
            await asyncio.sleep(min(_MAX_CHECK, max(_MIN_CHECK, wait)))
            for queue in list(self._expires):
                try:
                    await self._check(queue)
                except MatadorError as error:
                    _LOG.info("could not check whether %s is used: %s", queue, error)

    async def _check(self, queue: str) -> None:
        if self._in_use(queue):
            self._used[queue] = time.monotonic()
            return
        if time.monotonic() < self._used[queue] + self._expires[queue]:
            return
        group = self._group(topic_name(queue))
        answers = await self._client.ask(lambda admin: admin.describe_consumer_groups([group]))
        for answer in answers.values():
            if not isinstance(answer, MatadorError) and answer.members:
                self._used[queue] = time.monotonic()  # another process consumes it
        if time.monotonic() >= self._used[queue] + self._expires.get(queue, float("inf")):
            await self._delete(queue)
