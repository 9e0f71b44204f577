"""Messages of pub/sub that wait in this process: one queue, shared by its subscriptions."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence

from matador.model.message import Delivery, Message
from matador.transports.kit.transport import BaseSubscription
from matador.transports.kit.wakeup import Waiters, Wakeup
from matador.transports.redis.wire import delivery_of

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
        self._warned = False

    def put(self, message: Message) -> None:
        """Add a message at the end."""
        self._waiting.append(HeardMessage(message))
        if len(self._waiting) > _MOST:
            self._waiting.popleft()
            if not self._warned:
                text = "%s: %d messages are waiting to be handled; dropping the oldest from now on"
                log.warning(text, self.name, _MOST)
            self._warned = True
        self.waiters.wake()

    def put_back(self, heard: HeardMessage) -> None:
        """Put a held message back in front, uncounted."""
        self.held.discard(heard)
        heard.deliveries -= 1
        self._waiting.appendleft(heard)
        self.waiters.wake()

    def take(self, limit: int) -> list[Delivery]:
        """Hold up to ``limit`` messages."""
        taken = [self._waiting.popleft() for _ in range(min(limit, len(self._waiting)))]
        self.held.update(taken)
        for heard in taken:
            heard.deliveries += 1
        return [delivery_of(heard.message, heard, heard.deliveries) for heard in taken]

    def wake(self) -> None:
        """Wake a subscription, if there is something to take."""
        if self._waiting:
            self.waiters.wake()


class BroadcastSubscription(BaseSubscription):
    """See ``matador.transports.base.Subscription``. Made by ``RedisPubSubTransport.subscribe``."""

    def __init__(
        self, source: BroadcastQueue, closed: Callable[[BroadcastSubscription], None]
    ) -> None:
        super().__init__(source.name)
        self._source = source
        self._closed = closed
        self._wakeup = Wakeup()

    async def receive(self, limit: int) -> Sequence[Delivery]:
        """See ``Subscription``. Yields to others first, even if messages are there."""
        await asyncio.sleep(0)
        while self._active:
            found = self._source.take(limit)
            if found:
                return found
            await self._wait()
        return ()

    async def _wait(self) -> None:
        taking = False
        try:
            await self._source.waiters.wait(self._wakeup)
            taking = self._active
        finally:
            if not taking:  # woken, but cancelled or closed at once: another one takes it
                self._wakeup.clear()
                self._source.wake()

    async def close(self) -> None:
        """See ``Subscription``."""
        if self._active:
            self._active = False
            self._closed(self)
            self._wakeup.wake()
