"""The subscriptions of one queue of streams in this process, and the watch they share."""

from __future__ import annotations

import asyncio
import logging

from matador.transports.redis.link import Link
from matador.transports.redis.scripts import script
from matador.transports.redis.subscription import RedisSubscription
from matador.transports.redis.watcher import Watcher

log = logging.getLogger("matador.transports.redis")

_PRUNE_EVERY = 60.0
_UNSEEN = 3_600_000  # milliseconds; consumers not seen for that long are gone


class Consuming:
    """Looks after a queue while it is consumed; tells its subscriptions what comes back.

    Args:
        link: the server.
        base: the queue's key.
        lease: seconds.
        longest: seconds; it looks at the queue at least that often.
    """

    def __init__(self, link: Link, base: str, *, lease: float, longest: float) -> None:
        self._link = link
        self._base = base
        self._lease = round(lease * 1000)
        self._pruned = asyncio.get_running_loop().time()
        self.subscriptions: set[RedisSubscription] = set()
        self._watcher = Watcher(link, base, tend=self._tend, longest=min(longest, lease / 4))

    def wake(self) -> None:
        """Something waits to be claimed."""
        for subscription in self.subscriptions:
            subscription.claimable()

    async def close(self) -> None:
        """Stop watching."""
        await self._watcher.close()

    async def _tend(self) -> int:
        found = await self._link.run(script("tend"), [self._base], [self._lease])
        if found is None:  # the queue is gone; who looks for something to claim makes it again
            self.wake()
            return -1
        due, claimable, problem = found
        if problem:
            log.error("%s: delayed messages or stale ones: %s", self._base, problem.decode())
        if claimable:
            self.wake()
        now = asyncio.get_running_loop().time()
        if now > self._pruned + _PRUNE_EVERY:
            self._pruned = now
            await self._link.run(script("prune"), [self._base], [_UNSEEN])
        return due
