"""Moves the delayed messages of a queue that is read by a share group.

The topic in which they wait is read by a consumer group: there is one place for each level, and it
is kept by a commit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

from confluent_kafka import Message as KafkaMessage
from confluent_kafka import TopicPartition

from matador.errors import MatadorError
from matador.transports.kafka.client import KafkaClient
from matador.transports.kafka.delays import BrokerClock, DelayMover
from matador.transports.kafka.deliveries import Hold, Partition
from matador.transports.kafka.poller import Poller

_NO_TOPIC = ""


class SharedDelays:
    """A member of the group that moves what is due; see ``Owner``. Nothing is delivered by it."""

    def __init__(
        self, client: KafkaClient, queue: str, topic: str, group: str, clock: BrokerClock
    ) -> None:
        self._lock = asyncio.Lock()
        self.stopped: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        mover = DelayMover(topic, client.producer, clock)
        self._poller = Poller(client, queue, _NO_TOPIC, group, self, mover)
        self._poller.start()

    async def close(self) -> None:
        """Leave the group."""
        self._poller.stop()
        await asyncio.shield(self.stopped)

    def ended(self) -> None:
        """See ``Owner``."""
        if not self.stopped.done():
            self.stopped.set_result(None)

    # -- what cannot happen without a topic --------------------------------------------------------

    def arrived(self, messages: list[tuple[Partition, KafkaMessage]]) -> None:
        """See ``Owner``."""

    def gained(self, partitions: Sequence[Partition]) -> None:
        """See ``Owner``."""

    def lost(self, partitions: Iterable[Partition]) -> None:
        """See ``Owner``."""

    async def give_up(self, partitions: Sequence[Partition]) -> list[TopicPartition]:
        """See ``Owner``."""
        return []

    def failed(self, error: MatadorError) -> None:
        """See ``Owner``. The client library tries again."""

    def doubt(self) -> None:
        """See ``Owner``."""

    async def verify(self, partition: Partition) -> MatadorError | None:
        """See ``Keeper``."""
        return None

    def commit(self, partition: Partition) -> asyncio.Future[MatadorError | None]:
        """See ``Keeper``."""
        done: asyncio.Future[MatadorError | None] = asyncio.get_running_loop().create_future()
        done.set_result(None)
        return done

    @property
    def committing(self) -> asyncio.Lock:
        """See ``Keeper``."""
        return self._lock

    async def membership(self) -> Any:
        """See ``Keeper``."""
        return None

    def done(self, hold: Hold, successor: Hold | None = None) -> None:
        """See ``Keeper``."""

    def all_done(self, partition: Partition, holds: Sequence[Hold]) -> None:
        """See ``Keeper``."""
