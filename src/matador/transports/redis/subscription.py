"""A subscription to a queue of streams: reads what is new, claims what was released or is stale."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence

from matador.errors import TransportError
from matador.model.message import Delivery
from matador.transports.redis.blocking import BlockingSubscription
from matador.transports.redis.client import RedisClient, script
from matador.transports.redis.wire import Lane, claimed_of, deliveries_of
from matador.transports.redis_client.errors import has_lost_group, translate

log = logging.getLogger("matador.transports.redis")

_GROUP = "matador"
NEVER = 10**12
"""Milliseconds for which no consumer is idle."""


class RedisSubscription(BlockingSubscription):
    """See ``matador.transports.base.Subscription``. Made by ``RedisTransport.subscribe``."""

    def __init__(
        self,
        client: RedisClient,
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
        super().__init__(client, queue, block=block, give_back=give_back)
        self._base = base
        self._consumer = consumer
        self._lease = round(lease * 1000)
        self._declare = declare
        self._closed = closed
        self._lanes = {
            name: Lane(queue, base, name, consumer)
            for name in ("t", *map(str, range(levels - 1, -1, -1)))
        }
        self._rank()
        self._claimable = True  # something may have been released before

    def _rank(self) -> None:
        ranked = [lane for lane in self._lanes.values() if lane.name != "t"]
        self._ranked = sorted(ranked, key=lambda lane: -int(lane.name))
        self._by_key = {lane.key.encode(): lane for lane in ranked}

    def _lane(self, name: bytes) -> Lane:
        """A lane by its name; one created since we subscribed is read from now on."""
        known = name.decode()
        if known not in self._lanes:
            self._lanes[known] = Lane(self._queue, self._base, known, self._consumer)
            self._rank()
        return self._lanes[known]

    def claimable(self) -> None:
        """Something can be claimed: look for it, even if a read is blocked."""
        self._claimable = True
        self._interrupt()

    def _wanted(self) -> bool:
        return super()._wanted() and not self._claimable

    async def _fetch_once(self, limit: int) -> list[Delivery]:
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
        rows = await self._client.run(
            script("claim"), [self._base], [self._consumer, limit, self._lease]
        )
        if rows is None:
            await self._declare(self._queue)
            return []
        return [claimed_of(self._lane(row[0]), row) for row in rows]

    async def _read(self, limit: int) -> list[Delivery]:
        """New messages of several lanes, in order of priority."""
        found = await self._client.run(script("read"), [self._base], [self._consumer, limit])
        if found is None:
            await self._declare(self._queue)
            return []
        deliveries: list[Delivery] = []
        for name, entries in zip(found[::2], found[1::2], strict=True):
            deliveries += deliveries_of(self._lane(name), entries)
        return deliveries

    async def _wait(self, limit: int) -> list[Delivery]:
        """New messages, as soon as there are any."""
        # Each of several lanes may return its count: one is enough to wake up.
        count = limit if len(self._ranked) == 1 else 1
        try:
            found = await self._block_on(
                "XREADGROUP",
                *("GROUP", _GROUP, self._consumer, "COUNT", count),
                *("BLOCK", round(self._block * 1000), "STREAMS"),
                *(lane.key for lane in self._ranked),
                *(">" for _ in self._ranked),
            )
        except TransportError:
            raise
        except Exception as error:
            if not has_lost_group(error):
                raise translate(error, self._client.where) from error
            await self._declare(self._queue)
            return []
        deliveries: list[Delivery] = []
        for key, entries in found or ():
            deliveries += deliveries_of(self._by_key[key], entries)
        return deliveries

    async def _release_unseen(self) -> None:
        known = [
            f"{lane.name}:{id_.decode()}" for lane in self._lanes.values() for id_ in lane.held
        ]
        given_back = await self._client.run(
            script("give_back_unseen"), [self._base], [self._consumer, *known]
        )
        if given_back:
            log.info("%s: %d messages were lost on the way and released", self._queue, given_back)
            self._claimable = True

    async def _leave(self) -> None:
        with contextlib.suppress(TransportError):
            if self._client.state.status == "connected":
                await self._client.run(script("prune"), [self._base], [self._consumer, NEVER])
        await self._closed(self)
