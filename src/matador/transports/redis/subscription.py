"""A subscription to a queue of streams: reads new messages and claims released and stale ones."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

from matador.errors import TransportError
from matador.model.message import Delivery
from matador.transports.redis.blocking import BlockingSubscription, QueueSource
from matador.transports.redis.wire import Lane, claimed_of, deliveries_of

_GROUP = "matador"


class RedisSubscription(BlockingSubscription):
    """A subscription to streams. Created by ``RedisTransport.subscribe``."""

    def __init__(self, source: QueueSource, levels: int) -> None:
        super().__init__(source)
        self._lanes: dict[str, Lane] = {}
        for name in ("t", *map(str, range(levels))):
            self._lane(name)
        self._claimable = True  # messages may have been released before

    def _lane(self, name: str) -> Lane:
        """A lane by name; a lane created after the subscription is read from now on."""
        if name not in self._lanes:
            source = self._source
            self._lanes[name] = Lane(source.queue, source.base, name, source.consumer)
            ranked = [lane for lane in self._lanes.values() if lane.name != "t"]
            self._ranked = sorted(ranked, key=lambda lane: -int(lane.name))
            self._by_key = {lane.key.encode(): lane for lane in ranked}
        return self._lanes[name]

    def claimable(self) -> None:
        """Claim messages now, even if a read is blocked."""
        self._claimable = True
        self._interrupt()

    def _wanted(self) -> bool:
        return super()._wanted() and not self._claimable

    async def _fetch_once(self, limit: int) -> list[Delivery]:
        if self._claimable:
            self._claimable = False
            rows = await self._run("claim", limit, self._source.lease)
            if len(rows) == limit:
                self._claimable = True  # there may be more
            if rows:
                return [claimed_of(self._lane(row[0].decode()), row) for row in rows]
        if len(self._ranked) > 1:
            # New messages of several lanes, in order of priority.
            found = await self._run("read", limit)
            if found:
                return [
                    delivery
                    for name, entries in zip(found[::2], found[1::2], strict=True)
                    for delivery in deliveries_of(self._lane(name.decode()), entries)
                ]
        return await self._wait(limit)

    async def _wait(self, limit: int) -> list[Delivery]:
        """New messages, as soon as there are any."""
        # Each of several lanes may return its count: one is enough to wake up.
        count = limit if len(self._ranked) == 1 else 1
        found = await self._block_on(
            "XREADGROUP",
            *("GROUP", _GROUP, self._source.consumer, "COUNT", count),
            *("BLOCK", round(self._source.block * 1000), "STREAMS"),
            *(lane.key for lane in self._ranked),
            *(">" for _ in self._ranked),
        )
        deliveries: list[Delivery] = []
        for key, entries in found or ():
            deliveries += deliveries_of(self._by_key[key], entries)
        return deliveries

    def _arrived(self) -> Iterable[str]:
        # Iterate over copies: another thread may renew leases and remove lost ones.
        return (
            f"{lane.name}:{id_.decode()}"
            for lane in self._lanes.values()
            for id_ in tuple(lane.held)
        )

    async def close(self) -> None:
        await super().close()
        with contextlib.suppress(TransportError):
            if self._client.state.status == "connected":
                await self._run("prune")
