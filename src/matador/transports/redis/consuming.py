"""The subscriptions of one queue in this process, and the watch they share."""

from __future__ import annotations

from matador.transports.redis.link import Link
from matador.transports.redis.subscription import RedisSubscription
from matador.transports.redis.watcher import Watcher


class Consuming:
    """Watches over a queue while it is consumed; tells its subscriptions what comes back."""

    def __init__(self, link: Link, base: str, lease: float, longest: float) -> None:
        self.subscriptions: set[RedisSubscription] = set()
        self._watcher = Watcher(link, base, lease=lease, longest=longest, on_claimable=self.wake)

    def wake(self) -> None:
        """Something waits to be claimed."""
        for subscription in self.subscriptions:
            subscription.claimable()

    async def close(self) -> None:
        """Stop watching."""
        await self._watcher.close()
