"""A stream of deliveries from one queue, or from its dead letters."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

from matador.errors import NotConnectedError, SendUnconfirmedError
from matador.model.message import Delivery
from matador.transports.bullmq.link import Link
from matador.transports.bullmq.taking import Source


class BullMQSubscription:
    """See ``matador.transports.base.Subscription``. Nothing is taken before it is asked for.

    What is under way when ``receive`` is cancelled goes on: jobs that it takes are returned by the
    next call, and a sign that it uses up is given to another.
    """

    def __init__(
        self,
        link: Link,
        queue: str,
        source: Source,
        *,
        give_back: Callable[[Sequence[Delivery]], Awaitable[None]],
        closed: Callable[[BullMQSubscription], None],
    ) -> None:
        self._link = link
        self._queue = queue
        self._source = source
        self._give_back = give_back
        self._closed = closed
        self._ending: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._ready: deque[Delivery] = deque()
        self._taking: asyncio.Task[float] | None = None
        self._waiting: asyncio.Task[None] | None = None
        self._receivers = 0

    @property
    def queue(self) -> str:
        """See ``Subscription``."""
        return self._queue

    @property
    def active(self) -> bool:
        """See ``Subscription``."""
        return not self._ending.done()

    async def receive(self, limit: int) -> Sequence[Delivery]:
        """See ``Subscription``. A lost connection is waited for."""
        self._receivers += 1
        try:
            while self.active:
                taking = self._taking or asyncio.create_task(self._take(limit))
                self._taking = taking
                try:
                    wait = await asyncio.shield(taking)
                except SendUnconfirmedError:  # the connection is lost: there will be another
                    continue
                except NotConnectedError:
                    if not self.active:
                        break
                    raise
                finally:
                    if taking.done():
                        self._taking = None
                if self._ready:
                    return [self._ready.popleft() for _ in range(min(limit, len(self._ready)))]
                if self._waiting is None or self._waiting.done():
                    self._waiting = asyncio.create_task(self._wait(wait))
                await asyncio.wait(
                    [self._waiting, self._ending], return_when=asyncio.FIRST_COMPLETED
                )
        finally:
            self._receivers -= 1
        return ()

    async def _take(self, limit: int) -> float:
        if self._ready:
            return 0.0
        session = await self._link.wait_connected()
        found, wait = await self._source.take(session, limit)
        self._ready.extend(found)
        return wait

    async def _wait(self, seconds: float) -> None:
        try:
            session = await self._link.wait_connected()
            woken = await self._source.wait(session, seconds)
        except (SendUnconfirmedError, NotConnectedError):
            return  # found out by whoever takes next
        if woken and not self._receivers:
            await self._source.wake_another(session)

    async def close(self) -> None:
        """See ``Subscription``."""
        if not self.active:
            return
        self._ending.set_result(None)
        self._closed(self)
        waiting, self._waiting = self._waiting, None
        if waiting is not None and not waiting.done():
            waiting.cancel()
            await asyncio.wait([waiting])
            if self._link.state.status == "connected":
                await self._source.wake_another(await self._link.session())
        taking = self._taking
        if taking is not None:
            if self._link.state.status != "connected":
                taking.cancel()
            await asyncio.wait([taking])
            if not taking.cancelled():
                taking.exception()  # nobody is left to be told
        if self._ready:
            left = list(self._ready)
            self._ready.clear()
            await self._give_back(left)
