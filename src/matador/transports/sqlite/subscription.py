"""A subscription: claims when it is asked to, sleeps while there is nothing to claim."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from matador.errors import MatadorError
from matador.model.message import Delivery
from matador.transports.sqlite.claiming import Claim
from matador.transports.sqlite.clock import DatabaseClock
from matador.transports.sqlite.session import Queue
from matador.transports.sqlite.watcher import Watcher


class SqliteSubscription:
    """See ``matador.transports.base.Subscription``. Made by ``SqliteTransport.subscribe``."""

    def __init__(
        self,
        queue: Queue,
        *,
        claim: Callable[[str, int], asyncio.Future[Sequence[Claim | MatadorError]]],
        give_back: Callable[[Sequence[Delivery]], Awaitable[None]],
        watcher: Watcher,
        clock: DatabaseClock,
        patience: int,
        closed: Callable[[SqliteSubscription], None],
    ) -> None:
        self._queue = queue
        self._new_claim = claim
        self._give_back = give_back
        self._watcher = watcher
        self._clock = clock
        self._patience = patience
        self._closed = closed
        self._active = True
        self._woken = asyncio.Event()
        # Outlives a cancelled receive(): the next one, or close(), takes care of what it brings.
        self._claim: asyncio.Future[Sequence[Claim | MatadorError]] | None = None

    @property
    def queue(self) -> str:
        """See ``Subscription``."""
        return self._queue.name

    @property
    def queue_id(self) -> int:
        """See ``Waiter``."""
        return self._queue.id

    @property
    def active(self) -> bool:
        """See ``Subscription``."""
        return self._active

    def wake(self) -> None:
        """See ``Waiter``."""
        self._woken.set()

    async def receive(self, limit: int) -> Sequence[Delivery]:
        """See ``Subscription``."""
        while self._active:
            if self._claim is None:
                self._woken.clear()
                self._claim = self._new_claim(self.queue, limit)
            pending = self._claim
            await asyncio.wait([pending])  # does not cancel it when we are cancelled
            if self._claim is not pending:
                break  # close() has taken it over
            self._claim = None
            (claim,) = pending.result()
            if isinstance(claim, MatadorError):
                raise claim
            self._queue = claim.queue  # of another number, if it was deleted and made again
            if claim.deliveries:
                kept = await self._keep(claim, limit)
                if kept:
                    return kept
            else:
                await self._sleep(claim.next_due)
        return []

    async def close(self) -> None:
        """See ``Subscription``."""
        if not self._active:
            return
        self._active = False
        self._woken.set()
        pending, self._claim = self._claim, None
        self._closed(self)
        if pending is not None:
            (claim,) = await pending
            if isinstance(claim, Claim) and claim.deliveries:
                await self._give_back(claim.deliveries)

    async def _keep(self, claim: Claim, limit: int) -> Sequence[Delivery]:
        # Both happen only to what a cancelled receive() left behind.
        kept = claim.deliveries[:limit]
        if self._clock.now() > claim.held_until - self._patience:
            kept = []  # too old to be worked on safely
        if len(kept) < len(claim.deliveries):
            await self._give_back(claim.deliveries[len(kept) :])
        return kept

    async def _sleep(self, next_due: int) -> None:
        self._watcher.add(self, next_due)
        try:
            await self._woken.wait()
        finally:
            self._watcher.discard(self)
