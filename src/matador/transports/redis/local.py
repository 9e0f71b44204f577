"""What was heard and waits in this process to be handled: one queue, shared by its receivers."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence

from matador.model.message import Delivery, Message, Receipt

log = logging.getLogger("matador.transports.redis")

_MOST = 10_000


class Heard:
    """A message that was heard; told apart by identity."""

    __slots__ = ("deliveries", "message")

    def __init__(self, message: Message) -> None:
        self.message = message
        self.deliveries = 0


class LocalQueue:
    """Messages in order of arrival. Holds a limited number: the oldest go when there are more."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.held: set[Heard] = set()
        self._waiting: deque[Heard] = deque()
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._dropped = 0

    def put(self, message: Message) -> None:
        """Add a message at the end."""
        self._waiting.append(Heard(message))
        if len(self._waiting) > _MOST:
            self._waiting.popleft()
            self._dropped += 1
            if self._dropped == 1:
                log.warning(
                    "%s: %d messages wait to be handled, the oldest are dropped from now on",
                    self.name,
                    _MOST,
                )
        self._wake()

    def put_back(self, heard: Heard) -> None:
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
        """Whoever was woken did not take: wake another."""
        if self._waiting:
            self._wake()


class LocalSubscription:
    """See ``matador.transports.base.Subscription``. Takes messages when they are asked for."""

    def __init__(self, queue: LocalQueue, closed: Callable[[LocalSubscription], None]) -> None:
        self.local = queue
        self._closed = closed
        self._active = True
        self._waiter: asyncio.Future[None] | None = None

    @property
    def queue(self) -> str:
        """See ``Subscription``."""
        return self.local.name

    @property
    def active(self) -> bool:
        """See ``Subscription``."""
        return self._active

    async def receive(self, limit: int) -> Sequence[Delivery]:
        """See ``Subscription``. Gives others a turn first, even if messages are there."""
        await asyncio.sleep(0)
        while self._active:
            found = self.local.take(limit)
            if found:
                return found
            self._waiter = waiter = self.local.wait()
            try:
                await waiter
            except asyncio.CancelledError:
                waiter.cancel()
                self.local.pass_on()
                raise
            finally:
                self._waiter = None
        self.local.pass_on()
        return ()

    async def close(self) -> None:
        """See ``Subscription``."""
        if self._active:
            self._active = False
            self._closed(self)
            if self._waiter is not None and not self._waiter.done():
                self._waiter.set_result(None)
