"""A receiver of one queue: reads what is new on a connection of its own, claims what came back."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from matador.errors import (
    ConnectionFailedError,
    NotConnectedError,
    SendFailedError,
    TransportError,
)
from matador.model.message import Delivery
from matador.transports.redis.channel import Channel
from matador.transports.redis.entries import Lane, claimed_of, deliveries_of
from matador.transports.redis.errors import has_lost_group
from matador.transports.redis.link import Link
from matador.transports.redis.scripts import script

log = logging.getLogger("matador.transports.redis")

_GROUP = "matador"
_FIRST_PAUSE = 0.05
_LONGEST_PAUSE = 1.0
_LAST_CALL = 2.0  # seconds for a read to end when the subscription does
_TROUBLE = (NotConnectedError, SendFailedError, ConnectionFailedError)


class RedisSubscription:
    """See ``matador.transports.base.Subscription``. Made by ``RedisTransport.subscribe``.

    A read that waits on the server outlives a ``receive`` that is cancelled: it is called off, and
    what it brings all the same goes to the next ``receive`` or back to the queue.
    """

    def __init__(
        self,
        link: Link,
        queue: str,
        base: str,
        *,
        levels: int,
        consumer: str,
        lease: float,
        block: float,
        give_back: Callable[[Sequence[Delivery]], Awaitable[None]],
        declare: Callable[[str], Awaitable[None]],
        closed: Callable[[RedisSubscription], Awaitable[None]],
    ) -> None:
        self._link = link
        self._queue = queue
        self._base = base
        self._consumer = consumer
        self._lease = round(lease * 1000)
        self._block = block
        self._give_back = give_back
        self._declare = declare
        self._closed = closed
        self._lanes = {
            name: Lane(queue, base, name, consumer)
            for name in ("t", *map(str, range(levels - 1, -1, -1)))
        }
        self._ranked = [lane for lane in self._lanes.values() if lane.name != "t"]
        self._by_key = {lane.key.encode(): lane for lane in self._ranked}
        self._active = True
        self._claimable = True  # something may have come back before we were here
        self._channel: Channel | None = None
        self._client = 0
        self._blocked: asyncio.Future[Any] | None = None
        self._missed = False
        self._fetching: asyncio.Task[list[Delivery]] | None = None
        self._receivers = 0
        self._chores: set[asyncio.Task[None]] = set()

    @property
    def queue(self) -> str:
        """See ``Subscription``."""
        return self._queue

    @property
    def active(self) -> bool:
        """See ``Subscription``."""
        return self._active

    def claimable(self) -> None:
        """Something waits to be claimed: look for it, even if a read is waiting for news."""
        self._claimable = True
        if self._blocked is not None:
            self._do(self._call_off(self._blocked))

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
            if self._blocked is not None:
                self._do(self._call_off(self._blocked))
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
        with contextlib.suppress(TransportError):
            if self._link.state.status == "connected":
                await self._link.run(script("leave"), [self._base], [self._consumer])
        await self._closed(self)

    async def _end(self, fetching: asyncio.Task[list[Delivery]]) -> None:
        if self._blocked is not None:
            self._do(self._call_off(self._blocked))
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

    async def _fetch_once(self, limit: int) -> list[Delivery]:
        if self._missed:
            await self._recover()
        if self._claimable:
            self._claimable = False
            claimed = await self._claim(limit)
            if len(claimed) == limit:
                self._claimable = True  # there may be more
            if claimed:
                return claimed
        if len(self._ranked) > 1:
            found = await self._read(limit)
            if found:
                return found
        return await self._wait(limit)

    async def _claim(self, limit: int) -> list[Delivery]:
        rows = await self._link.run(
            script("claim"), [self._base], [self._consumer, limit, self._lease]
        )
        if rows is None:
            await self._declare(self._queue)
            return []
        return [claimed_of(self._lanes[row[0].decode()], row) for row in rows]

    async def _read(self, limit: int) -> list[Delivery]:
        """What is new in several lanes, in order of priority."""
        found = await self._link.run(script("read"), [self._base], [self._consumer, limit])
        if found is None:
            await self._declare(self._queue)
            return []
        deliveries: list[Delivery] = []
        for name, entries in zip(found[::2], found[1::2], strict=True):
            deliveries += deliveries_of(self._lanes[name.decode()], entries)
        return deliveries

    async def _wait(self, limit: int) -> list[Delivery]:
        """What is new, as soon as it is there."""
        channel = await self._connected()
        if self._claimable or not self._active:
            return []
        # With several lanes each may give its count: one is enough to wake up.
        count = limit if len(self._ranked) == 1 else 1
        self._blocked = channel.call(
            "XREADGROUP",
            *("GROUP", _GROUP, self._consumer, "COUNT", count),
            *("BLOCK", round(self._block * 1000), "STREAMS"),
            *(lane.key for lane in self._ranked),
            *(">" for _ in self._ranked),
            patience=self._block,
        )
        try:
            found = await self._blocked
        except Exception as error:
            if has_lost_group(error):
                await self._declare(self._queue)
                return []
            raise self._link.translated(channel, error) from error
        finally:
            self._blocked = None
        deliveries: list[Delivery] = []
        for key, entries in found or ():
            deliveries += deliveries_of(self._by_key[key], entries)
        return deliveries

    async def _connected(self) -> Channel:
        if self._channel is None or self._channel.lost.done():
            await self._drop()
            self._channel = channel = await self._link.open()
            try:
                self._client = await channel.call("CLIENT", "ID")
            except Exception as error:
                raise self._link.translated(channel, error) from error
        return self._channel

    async def _recover(self) -> None:
        """Give back what was sent to us on a connection that was lost: we have not seen it."""
        known = [
            f"{lane.name}:{id_.decode()}" for lane in self._lanes.values() for id_ in lane.held
        ]
        given_back = await self._link.run(script("recover"), [self._base], [self._consumer, *known])
        self._missed = False
        if given_back:
            log.info("%s: %d messages were lost on the way and are back", self._queue, given_back)
            self._claimable = True

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
