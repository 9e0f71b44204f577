"""Subscriptions claim messages when asked to, and sleep while there is nothing to claim."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from matador.errors import MatadorError
from matador.model.message import Delivery
from matador.transports.kit.transport import BaseSubscription
from matador.transports.kit.wakeup import Wakeup
from matador.transports.sqlite.claim import Claim, claim
from matador.transports.sqlite.connection import SqliteConnection
from matador.transports.sqlite.session import SqliteQueue, WriterSession


class SqliteSubscription(BaseSubscription):
    """See ``matador.transports.base.Subscription``. ``lease`` is in milliseconds."""

    def __init__(
        self,
        queue: SqliteQueue,
        connection: SqliteConnection,
        *,
        lease: int,
        give_back: Callable[[Sequence[Delivery]], Awaitable[None]],
        on_close: Callable[[SqliteSubscription], None],
    ) -> None:
        super().__init__(queue.name)
        self._queue = queue
        self._connection = connection
        self._lease = lease
        self._give_back = give_back
        self._on_close = on_close
        self._woken = Wakeup()
        # Outlives a cancelled receive(): the next one, or close(), deals with its result.
        self._claim: asyncio.Future[Sequence[Claim | MatadorError]] | None = None

    def wake(self) -> None:
        """There may be something to claim."""
        self._woken.wake()

    async def receive(self, limit: int) -> Sequence[Delivery]:
        """See ``Subscription``."""
        while self._active:
            if self._claim is None:
                self._woken.clear()
                self._claim = self._new_claim(limit)
            pending = self._claim
            await asyncio.wait([pending])  # does not cancel it when we are cancelled
            if self._claim is not pending:
                break  # close() has taken it over
            self._claim = None
            (found,) = pending.result()
            if isinstance(found, MatadorError):
                raise found
            self._queue = found.queue  # has another id if it was deleted and created again
            if not found.deliveries:
                await self._connection.watcher.wait(self._woken, found.queue, found.next_due)
            elif kept := await self._keep(found, limit):
                return kept
        return []

    def _new_claim(self, limit: int) -> asyncio.Future[Sequence[Claim | MatadorError]]:
        def work(session: WriterSession) -> Claim:
            return claim(session, session.queue(self.queue), limit, self._lease)

        return self._connection.submit(work)

    async def close(self) -> None:
        """See ``Subscription``."""
        if not self._active:
            return
        self._active = False
        self._woken.wake()
        self._on_close(self)
        await self.pause()

    async def pause(self) -> None:
        """See ``Pausing``: what a cancelled ``receive`` claims goes back."""
        pending, self._claim = self._claim, None
        if pending is not None:
            (found,) = await pending
            if isinstance(found, Claim) and found.deliveries:
                await self._give_back(found.deliveries)

    async def _keep(self, found: Claim, limit: int) -> Sequence[Delivery]:
        # Both cases happen only to what a cancelled receive() left behind.
        kept = found.deliveries[:limit]
        if self._connection.clock.now() > found.held_until - self._lease // 2:
            kept = []  # too old to be worked on safely
        if len(kept) < len(found.deliveries):
            await self._give_back(found.deliveries[len(kept) :])
        return kept
