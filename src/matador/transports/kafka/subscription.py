"""One receiver of a queue; all receivers of a process share its consumers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from matador.errors import QueueNotFoundError
from matador.model.message import Delivery
from matador.transports.kafka.consumer import QueueConsumer
from matador.transports.kafka.topics import Topics
from matador.transports.kit.transport import BaseSubscription
from matador.transports.kit.wakeup import Wakeup, wait_in_lines


class KafkaSubscription(BaseSubscription):
    """See ``matador.transports.base.Subscription``.

    A queue has a consumer for its own topic, and one for each exchange that it is bound to.
    """

    def __init__(
        self,
        consumers: Sequence[QueueConsumer],
        topics: Topics,
        prefetch: int,
        find: Callable[[str], Awaitable[Sequence[QueueConsumer]]],
        closed: Callable[[KafkaSubscription], object],
    ) -> None:
        super().__init__(consumers[0].queue)
        self._consumers: list[QueueConsumer] = []
        self._topics = topics
        self._prefetch = prefetch
        self._find = find
        self._closed = closed
        self._wakeup = Wakeup()
        self._join(consumers)

    async def receive(self, limit: int) -> Sequence[Delivery]:
        """See ``Subscription``. Waits while Kafka cannot be reached."""
        while self._active:
            for consumer in list(self._consumers):
                try:
                    holds = await consumer.receive(self._wakeup, limit)
                except QueueNotFoundError:
                    self._topics.forget(consumer.topic)
                    await self._topics.find(consumer.topic)  # made again if it was declared
                    continue
                if holds:
                    self._next_turn(consumer)
                    return [hold.delivery() for hold in holds]
            if self._active and not all(one.is_joined(self._wakeup) for one in self._consumers):
                await self.refresh()
            elif self._active and not any(one.has_news for one in self._consumers):
                await wait_in_lines(self._wakeup, [one.waiters for one in self._consumers])
        return ()

    async def refresh(self) -> None:
        """Receive from all that belongs to the queue now, with new consumers for those that have
        failed. If that does not succeed, the caller hears of it and backs off."""
        consumers = await self._find(self.queue)
        if self._active:
            self._join(consumers)
            self._wakeup.wake()

    def read_ahead(self, messages: int) -> None:
        for consumer in self._consumers:
            consumer.read_ahead(messages)

    async def pause(self) -> None:
        for consumer in self._consumers:
            await consumer.hold_nothing()

    async def close(self) -> None:
        """See ``Subscription``. With the last one of a queue, its groups are left."""
        if self._active:
            self._active = False
            self._closed(self)
            for consumer in self._consumers:
                await consumer.part(self._wakeup)

    def _join(self, consumers: Sequence[QueueConsumer]) -> None:
        self._consumers = list(consumers)
        for consumer in consumers:
            if not consumer.is_joined(self._wakeup):
                consumer.join(self._wakeup, self._prefetch)

    def _next_turn(self, served: QueueConsumer) -> None:
        """The next time the others come first; whoever waits for them need not wait for us."""
        if len(self._consumers) > 1 and served in self._consumers:
            self._consumers.remove(served)
            for other in self._consumers:
                if other.has_news:
                    other.waiters.wake()
            self._consumers.append(served)
