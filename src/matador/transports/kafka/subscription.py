"""One receiver of a queue; all receivers of a process share a consumer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from matador.errors import QueueNotFoundError
from matador.model.message import Delivery
from matador.transports.kafka.consumer import QueueConsumer
from matador.transports.kafka.topics import Topics
from matador.transports.kit.transport import BaseSubscription
from matador.transports.kit.wakeup import Wakeup


class KafkaSubscription(BaseSubscription):
    """See ``matador.transports.base.Subscription``."""

    def __init__(
        self,
        consumer: QueueConsumer,
        topics: Topics,
        prefetch: int,
        join: Callable[[str], Awaitable[QueueConsumer]],
        closed: Callable[[KafkaSubscription], object],
    ) -> None:
        super().__init__(consumer.queue)
        self._consumer = consumer
        self._topics = topics
        self._prefetch = prefetch
        self._join = join
        self._closed = closed
        self._wakeup = Wakeup()
        consumer.join(self._wakeup, prefetch)

    async def receive(self, limit: int) -> Sequence[Delivery]:
        """See ``Subscription``. Waits while Kafka cannot be reached."""
        while self._active:
            try:
                holds = await self._consumer.receive(self._wakeup, limit)
            except QueueNotFoundError:
                self._topics.forget(self._consumer.topic)
                await self._topics.find(self._consumer.topic)  # made again if it was declared
                continue
            if holds:
                return [hold.delivery() for hold in holds]
            if self._active:
                await self._join_again()
        return ()

    async def _join_again(self) -> None:
        """The consumer has failed: with another one, or the caller hears of it and backs off."""
        consumer = await self._join(self.queue)
        if self._active:
            self._consumer = consumer
            consumer.join(self._wakeup, self._prefetch)

    async def close(self) -> None:
        """See ``Subscription``. With the last one of a queue, its group is left."""
        if self._active:
            self._active = False
            self._closed(self)
            await self._consumer.part(self._wakeup)
