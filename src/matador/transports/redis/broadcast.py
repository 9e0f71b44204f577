"""Messages of pub/sub that wait in this process: one queue, shared by its subscriptions."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence

from matador.model.message import Delivery, Message, Receipt
from matador.transports.kit.wakeup import Waiters, Wakeup

log = logging.getLogger("matador.transports.redis")

_MOST = 10_000


class HeardMessage:
    """A message that was published; compared by identity."""

    __slots__ = ("deliveries", "message")

    def __init__(self, message: Message) -> None:
        self.message = message
        self.deliveries = 0


class BroadcastQueue:
    """Messages in order of arrival. Drops the oldest when there are too many."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.held: set[HeardMessage] = set()
        self._waiting: deque[HeardMessage] = deque()
        self.waiters = Waiters()
        self._dropped = 0

    def put(self, message: Message) -> None:
        """Add a message at the end."""
        self._waiting.append(HeardMessage(message))
        if len(self._waiting) > _MOST:
            self._waiting.popleft()
            self._dropped += 1
            if self._dropped == 1:
                log.warning(
                    "%s: %d messages wait to be handled; dropping the oldest from now on",
                    self.name,
                    _MOST,
                )
        self.waiters.wake()

    def put_back(self, heard: HeardMessage) -> None:
        """Put a held message back in front, uncounted."""
        self.held.discard(heard)
        heard.deliveries -= 1
        self._waiting.appendleft(heard)
        self.waiters.wake()

    def take(self, limit: int) -> list[Delivery]:
        """Hold up to ``limit`` messages."""
        found: list[Delivery] = []
        while self._waiting and len(found) < limit:
            heard = self._waiting.popleft()
            heard.deliveries += 1
            self.held.add(heard)
            message = heard.message
            count = heard.deliveries
            receipt = Receipt(
                self.name, heard, count, count > 1, message.priority, message.ordering_key
            )
            found.append(Delivery(message.body, message.headers, receipt, None, message.properties))
        return found

    def wake(self) -> None:
        """Wake a subscription, if there is something to take."""
        if self._waiting:
            self.waiters.wake()


class BroadcastSubscription:
    """See ``matador.transports.base.Subscription``. Made by ``RedisPubSubTransport.subscribe``."""

    def __init__(
        self, queue: BroadcastQueue, closed: Callable[[BroadcastSubscription], None]
    ) -> None:
        self.source = queue
        self._closed = closed
        self._active = True
        self._wakeup = Wakeup()

    @property
    def queue(self) -> str:
        """See ``Subscription``."""
        return self.source.name

    @property
    def active(self) -> bool:
        """See ``Subscription``."""
        return self._active

    async def receive(self, limit: int) -> Sequence[Delivery]:
        """See ``Subscription``. Yields to others first, even if messages are there."""
        await asyncio.sleep(0)
        while self._active:
            found = self.source.take(limit)
            if found:
                return found
            await self._wait()
        return ()

    async def _wait(self) -> None:
        taking = False
        try:
            await self.source.waiters.wait(self._wakeup)
            taking = self._active
        finally:
            if not taking:  # woken, but cancelled or closed at once: another one takes it
                self._wakeup.clear()
                self.source.wake()

    async def close(self) -> None:
        """See ``Subscription``."""
        if self._active:
            self._active = False
            self._closed(self)
            self._wakeup.wake()
