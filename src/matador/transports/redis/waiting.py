"""A receiver that waits on the server, on a connection of its own: what both kinds share."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from matador.errors import (
    ConnectionFailedError,
    NotConnectedError,
    SendFailedError,
    TransportError,
)
from matador.model.message import Delivery
from matador.transports.redis.channel import Argument, Channel
from matador.transports.redis.link import Link
from matador.transports.redis_client.errors import is_gone

log = logging.getLogger("matador.transports.redis")

_FIRST_PAUSE = 0.05
_LONGEST_PAUSE = 1.0
_LAST_CALL = 2.0  # seconds for a read to end when the subscription does
_TROUBLE = (NotConnectedError, SendFailedError, ConnectionFailedError)


class WaitingSubscription(ABC):
    """See ``matador.transports.base.Subscription``.

    A read that waits on the server outlives a ``receive`` that is cancelled: it is called off, and
    what it brings all the same goes to the next ``receive`` or back to the queue.
    """

    def __init__(
        self,
        link: Link,
        queue: str,
        *,
        block: float,
        give_back: Callable[[Sequence[Delivery]], Awaitable[None]],
    ) -> None:
        self._link = link
        self._queue = queue
        self._block = block
        self._give_back = give_back
        self._active = True
        self._missed = False
        self._channel: Channel | None = None
        self._client = 0
        self._blocked: asyncio.Future[Any] | None = None
        self._fetching: asyncio.Task[list[Delivery]] | None = None
        self._receivers = 0
        self._chores: set[asyncio.Future[None]] = set()

    @property
    def queue(self) -> str:
        """See ``Subscription``."""
        return self._queue

    @property
    def active(self) -> bool:
        """See ``Subscription``."""
        return self._active

    @abstractmethod
    async def _fetch_once(self, limit: int) -> list[Delivery]:
        """What there is, or nothing after a while."""

    @abstractmethod
    async def _recover(self) -> None:
        """Give back what was sent to us on a connection that was lost: we have not seen it."""

    @abstractmethod
    async def _leave(self) -> None:
        """Tidy up; the connection is closed already."""

    # -- receiving ---------------------------------------------------------------------------------

    async def receive(self, limit: int) -> Sequence[Delivery]:
        """See ``Subscription``."""
        while self._active:
            if self._fetching is None:
                self._fetching = asyncio.create_task(self._fetch(limit))
            fetching = self._fetching
            self._receivers += 1
            try:
                await asyncio.wait([fetching])  # does not cancel it when we are cancelled
            except asyncio.CancelledError:
                self._receivers -= 1
                self._leave_behind(fetching)
                raise
            self._receivers -= 1
            if self._fetching is not fetching:
                continue  # close() has taken it over, or another receive
            self._fetching = None
            deliveries = fetching.result()
            if len(deliveries) > limit:
                self._do(self._give_back(deliveries[limit:]))
                deliveries = deliveries[:limit]
            if deliveries:
                return deliveries
        return ()

    def _leave_behind(self, fetching: asyncio.Task[list[Delivery]]) -> None:
        """Nobody may be waiting any more: call the read off, give back what it brings."""

        def ended(_: object) -> None:
            if self._receivers == 0 and self._fetching is fetching:
                self._fetching = None
                if not fetching.cancelled() and fetching.exception() is None:
                    deliveries = fetching.result()
                    if deliveries:
                        self._do(self._give_back(deliveries))

        if self._receivers == 0:
            self._interrupt()
            fetching.add_done_callback(ended)

    async def close(self) -> None:
        """See ``Subscription``."""
        if not self._active:
            return
        self._active = False
        fetching, self._fetching = self._fetching, None
        if fetching is not None:
            await self._end(fetching)
        await self._drop()
        for chore in list(self._chores):
            await asyncio.wait([chore], timeout=_LAST_CALL)
        await self._leave()

    async def _end(self, fetching: asyncio.Task[list[Delivery]]) -> None:
        self._interrupt()
        done, _ = await asyncio.wait([fetching], timeout=_LAST_CALL)
        if not done:
            fetching.cancel()
            await asyncio.wait([fetching])
        elif fetching.exception() is None and fetching.result():
            await self._give_back(fetching.result())

    # -- fetching: one at a time -------------------------------------------------------------------

    async def _fetch(self, limit: int) -> list[Delivery]:
        """What there is, or nothing after a while. Comes back by itself from a lost connection."""
        pause = _FIRST_PAUSE
        while True:
            try:
                if self._missed:
                    await self._recover()
                    self._missed = False
                return await self._fetch_once(limit)
            except _TROUBLE as error:
                log.debug("reading %s: %s", self._queue, error)
                self._missed = True
                await self._drop()
                if not self._active:
                    return []
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
                await self._link.wait_connected()

    async def _wait_for(self, *command: Argument) -> Any:
        """The answer to a command that waits; the error is that of redis-py."""
        channel = await self._connected()
        if not self._wanted():
            return None
        self._blocked = channel.call(*command, patience=self._block)
        try:
            return await self._blocked
        except Exception as error:
            if is_gone(error):
                raise self._link.translated(channel, error) from error
            raise
        finally:
            self._blocked = None

    def _wanted(self) -> bool:
        """Is there still a reason to wait?"""
        return self._active and self._receivers > 0

    async def _connected(self) -> Channel:
        if self._channel is None or self._channel.lost.done():
            await self._drop()
            self._channel = channel = await self._link.open()
            try:
                self._client = await channel.call("CLIENT", "ID")
            except Exception as error:
                raise self._link.translated(channel, error) from error
        return self._channel

    def _interrupt(self) -> None:
        """Have a read that waits come back at once."""
        if self._blocked is not None:
            self._do(self._call_off(self._blocked))

    async def _call_off(self, blocked: asyncio.Future[Any]) -> None:
        """Have the server answer a read at once."""
        while not blocked.done():
            try:
                await self._link.call("CLIENT", "UNBLOCK", self._client)
            except TransportError:
                return  # not allowed, or not connected: it ends by itself before long
            # Not blocked yet, perhaps: the server may see this before the read.
            await asyncio.wait([blocked], timeout=_FIRST_PAUSE)

    async def _drop(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.close()

    def _do(self, work: Awaitable[None]) -> None:
        """Do something beside; ``close`` waits for it."""
        task = asyncio.ensure_future(work)
        self._chores.add(task)
        task.add_done_callback(self._chores.discard)
