"""Messages of pub/sub that wait in this process: one queue, shared by its subscriptions."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence

from matador.model.message import Delivery, Message, Receipt

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
        self._waiters: deque[asyncio.Future[None]] = deque()
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
        self._wake()

    def put_back(self, heard: HeardMessage) -> None:
        """Put a held message back in front, uncounted."""
        self.held.discard(heard)
        heard.deliveries -= 1
        self._waiting.appendleft(heard)
        self._wake()

    def take(self, limit: int) -> list[Delivery]:
        """Hold up to ``limit`` messages."""
        found: list[Delivery] = []
        while self._waiting and len(found) < limit:
            heard = self._waiting.popleft()
            heard.deliveries += 1
            self.held.add(heard)
            message = heard.message
            receipt = Receipt(
                self.name,
                heard,
                heard.deliveries,
                heard.deliveries > 1,
                message.priority,
                message.ordering_key,
            )
            found.append(Delivery(message.body, message.headers, receipt))
        return found

    def wait(self) -> asyncio.Future[None]:
        """Done when there may be something to take."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        return waiter

    def _wake(self) -> None:
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return

    def pass_on(self) -> None:
        """Wake another: the one that was woken took nothing."""
        if self._waiting:
            self._wake()


class BroadcastSubscription:
    """See ``matador.transports.base.Subscription``. Made by ``RedisPubSubTransport.subscribe``."""

    def __init__(
        self, queue: BroadcastQueue, closed: Callable[[BroadcastSubscription], None]
    ) -> None:
        self.source = queue
        self._closed = closed
        self._active = True
        self._waiter: asyncio.Future[None] | None = None

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
            self._waiter = waiter = self.source.wait()
            try:
                await waiter
            except asyncio.CancelledError:
                waiter.cancel()
                self.source.pass_on()
                raise
            finally:
                self._waiter = None
        self.source.pass_on()
        return ()

    async def close(self) -> None:
        """See ``Subscription``."""
        if self._active:
            self._active = False
            self._closed(self)
            if self._waiter is not None and not self._waiter.done():
                self._waiter.set_result(None)
