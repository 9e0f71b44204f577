"""The queues that this process reads with share groups, a preview of Kafka's.

Dead letters and exchanges are read with consumer groups as ever: dead letters are taken out by
their places, and a queue begins to read an exchange where it was bound.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping

from matador.errors import (
    ConfigurationError,
    MatadorError,
    SendFailedError,
    UnsupportedError,
)
from matador.model.message import TopologyNote
from matador.model.topology import Topology
from matador.transports.kafka.browse import KafkaBrowser
from matador.transports.kafka.client import KafkaClient
from matador.transports.kafka.delays import BrokerClock
from matador.transports.kafka.names import delayed_topic, topic_name
from matador.transports.kafka.share_consumer import ShareQueue
from matador.transports.kafka.share_delays import SharedDelays
from matador.transports.kafka.share_groups import (
    check_group,
    prepare_group,
    require_share_groups,
    share_group,
)
from matador.transports.kafka.store import KafkaStore
from matador.transports.kafka.topics import Topics
from matador.transports.kit.backoff import Backoff


class Shares:
    """Made with the option ``groups=share``; without it there is nothing in it."""

    def __init__(
        self,
        client: KafkaClient,
        topics: Topics,
        store: KafkaStore,
        browser: KafkaBrowser,
        clock: BrokerClock,
        group: Callable[[str], str],
    ) -> None:
        self._client = client
        self._topics = topics
        self._store = store
        self._browser = browser
        self._clock = clock
        self._group = group
        self._queues: dict[str, ShareQueue] = {}
        self._delays: dict[str, SharedDelays] = {}
        self._leaving: set[ShareQueue] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._finding = asyncio.Lock()

    async def require(self) -> None:
        """Make sure that there are share groups, if they are asked for.

        Raises:
            ConfigurationError: the broker or the client library has none.
        """
        if self._client.address.shares:
            await require_share_groups(self._client)

    async def find(self, queue: str) -> ShareQueue:
        """Who reads a queue. Joined if nobody does yet.

        Raises:
            ConfigurationError: its group cannot be set up, or a consumer group has read it.
        """
        async with self._finding:
            if (found := self._queues.get(queue)) is not None:
                return found
            topic = topic_name(queue)
            await self._topics.find(topic, queue=queue)
            await self._refuse_switch(queue, topic)
            group = share_group(self._group(topic))
            limits = await prepare_group(self._client, group)
            made = ShareQueue(self._client, self._store, queue, topic, group, limits, self._left)
            self._queues[queue] = made
            if queue not in self._delays and await self._has_delays(topic):
                self._delays[queue] = SharedDelays(
                    self._client, queue, topic, self._group(topic), self._clock
                )
            return made

    async def leave(self, queue: str) -> None:
        """Read it no more."""
        found = [self._queues.get(queue), self._delays.pop(queue, None)]
        leaving = [one for one in self._leaving if one.queue == queue]
        await asyncio.gather(*[one.close() for one in (*found, *leaving) if one is not None])

    async def close(self) -> None:
        """Read nothing more."""
        queues = [*self._queues.values(), *self._leaving]
        delays, self._delays = list(self._delays.values()), {}
        await asyncio.gather(*[one.close() for one in (*queues, *delays)], *self._tasks)

    async def check(self, topology: Topology) -> list[TopologyNote]:
        """What is wrong with the settings of the groups of a topology."""
        if not self._client.address.shares:
            return []
        names = [topology.full_name(queue.name) for queue in topology.queues]
        return [
            TopologyNote(name, text)
            for name in names
            for text in await check_group(self._client, share_group(self._group(topic_name(name))))
        ]

    async def apply(self, topology: Topology) -> list[TopologyNote]:
        """Set up the groups before anybody reads; what of a topology cannot be honoured.

        Raises:
            ConfigurationError: a group cannot be set up.
        """
        if not self._client.address.shares:
            return []
        for queue in topology.queues:
            topic = topic_name(topology.full_name(queue.name))
            await prepare_group(self._client, share_group(self._group(topic)))
        return [
            TopologyNote(
                topology.full_name(queue.name),
                "with groups=share what is finished cannot be read again: retention is ignored",
            )
            for queue in topology.queues
            if queue.retention is not None
        ]

    def refuse(self, what: str, queue: str) -> None:
        """Raise for what cannot be done with share groups.

        Raises:
            UnsupportedError: they are in use.
        """
        if self._client.address.shares:
            raise UnsupportedError(
                f"{queue!r} cannot be {what}: the client library of Kafka does not say how far a "
                f"share group has come; use kafka-share-groups.sh, or groups=consumer"
            )

    async def _refuse_switch(self, queue: str, topic: str) -> None:
        """A share group begins at the first message that is there, handled or not."""
        group = self._group(topic)
        commits = await self._commits(group, topic)
        if any(offset > 0 for offset, _ in commits.values()):
            raise ConfigurationError(
                f"{queue!r} was read by the consumer group {group!r}: a share group would get all "
                f"of its messages again, the handled ones, too; use another queue, or delete the "
                f"consumer group once everything is handled"
            )

    async def _commits(self, group: str, topic: str) -> Mapping[int, tuple[int, str | None]]:
        """A broker that has just come back does not know them at once."""
        until, backoff = time.monotonic() + self._client.address.timeout, Backoff(0.1, 1.0)
        while True:
            try:
                return await self._browser.commits(group, topic)
            except SendFailedError:
                if time.monotonic() > until:
                    raise
            await backoff.sleep()

    async def _has_delays(self, topic: str) -> bool:
        try:
            await self._topics.find(delayed_topic(topic))
        except MatadorError:
            return False
        return True

    def _left(self, queue: ShareQueue) -> None:
        if self._queues.get(queue.queue) is queue:
            del self._queues[queue.queue]
        self._leaving.add(queue)
        queue.stopped.add_done_callback(lambda _: self._leaving.discard(queue))
        if (delays := self._delays.pop(queue.queue, None)) is not None:
            task = asyncio.get_running_loop().create_task(delays.close())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
