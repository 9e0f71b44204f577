"""Subscriptions claim messages when asked to, and sleep while there is nothing to claim."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from matador.errors import MatadorError
from matador.model.job_limits import NO_LIMITS, JobLimits
from matador.model.message import Delivery
from matador.transports.kit.transport import BaseSubscription
from matador.transports.kit.wakeup import Wakeup
from matador.transports.sqlite.claim import Claim, claim, discard
from matador.transports.sqlite.connection import SqliteConnection
from matador.transports.sqlite.session import SqliteQueue, WriterSession


class SqliteSubscription(BaseSubscription):
    """Claims messages of one queue for its receiver. ``lease`` is in milliseconds.

    ``consumer``: the user of a temporary queue, which keeps it; None if it is not temporary.
    """

    def __init__(
        self,
        queue: SqliteQueue,
        connection: SqliteConnection,
        *,
        lease: int,
        consumer: object = None,
        give_back: Callable[[Sequence[Delivery]], Awaitable[None]],
        on_close: Callable[[SqliteSubscription], None],
    ) -> None:
        super().__init__(queue.name)
        self._queue = queue
        self._connection = connection
        self._lease = lease
        self._consumer = consumer
        self._give_back = give_back
        self._on_close = on_close
        self._limits = NO_LIMITS
        self._limited = False
        self._woken = Wakeup()
        # Outlives a cancelled receive(): the next one, or close(), deals with its result.
        self._claim: asyncio.Future[Sequence[Claim | MatadorError]] | None = None
        self._since = 0  # how many changes of the file were noticed before that claim

    def wake(self) -> None:
        """There may be something to claim."""
        self._woken.wake()

    def set_limits(self, limits: JobLimits) -> None:
        self._limits = NO_LIMITS if limits == NO_LIMITS else limits
        self._woken.wake()

    @property
    def limited(self) -> bool:
        return self._limited

    @property
    def limits_keys(self) -> bool:
        """Whether the end of a job may make another one with its key ready."""
        return self._limits.per_key is not None

    async def receive(self, limit: int) -> Sequence[Delivery]:
        while self._active:
            if self._claim is None:
                self._woken.clear()
                self._since = self._connection.watcher.changes
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
            self._limited = not found.deliveries and found.limited
            if not found.deliveries:
                await self._connection.watcher.wait(
                    self._woken,
                    found.queue,
                    found.next_due,
                    since=self._since,
                    not_before=found.not_before,
                    parked=self.limits_keys,
                )
            elif kept := await self._keep(found, limit):
                return kept
        return []

    def _new_claim(self, limit: int) -> asyncio.Future[Sequence[Claim | MatadorError]]:
        return self._connection.submit(lambda session: self._work(session, limit))

    def _work(self, session: WriterSession, limit: int) -> Claim:
        return claim(session, session.queue(self.queue), limit, self._lease, self._limits)

    async def close(self) -> None:
        if not self._active:
            return
        self._active = False
        self._woken.wake()
        self._on_close(self)
        await self.pause()

    async def pause(self) -> None:
        """Stop receiving; give back what a cancelled ``receive`` has claimed."""
        pending, self._claim = self._claim, None
        if pending is not None:
            (found,) = await pending
            if isinstance(found, Claim) and found.deliveries:
                await self._return(found.deliveries)
        if self._consumer is not None:
            consumer = self._consumer
            await self._connection.write(lambda session: session.leave(self.queue, consumer))

    async def _return(self, deliveries: Sequence[Delivery]) -> None:
        await self._give_back(deliveries)

    async def _keep(self, found: Claim, limit: int) -> Sequence[Delivery]:
        # Both cases happen only to the claim of a cancelled receive().
        kept = found.deliveries[:limit]
        if self._connection.clock.now() > found.held_until - self._lease // 2:
            kept = []  # too old to be worked on safely
        if len(kept) < len(found.deliveries):
            await self._give_back(found.deliveries[len(kept) :])
        return kept


class SqliteReplies(SqliteSubscription):
    """Replies are deleted in the transaction that claims them: they are never settled."""

    def _work(self, session: WriterSession, limit: int) -> Claim:
        found = super()._work(session, limit)
        discard(session, found.deliveries)
        return found

    _left: Sequence[Delivery] = ()

    async def receive(self, limit: int) -> Sequence[Delivery]:
        # A cancelled call may have claimed more than the next one asks for.
        found = self._left or await super().receive(limit)
        self._left = found[limit:]
        return found[:limit]

    async def _keep(self, found: Claim, limit: int) -> Sequence[Delivery]:
        return found.deliveries  # they are nowhere else

    async def _return(self, deliveries: Sequence[Delivery]) -> None:
        """Drop them: their callers have stopped waiting."""
