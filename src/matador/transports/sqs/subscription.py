"""Receives from one queue by long polling."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence

from matador.errors import NotConnectedError, QueueNotFoundError, SendUnconfirmedError
from matador.model.message import Delivery, Release
from matador.transports.kit.transport import BaseSubscription
from matador.transports.kit.wakeup import Wakeup
from matador.transports.sqs.client import SqsClient
from matador.transports.sqs.deliveries import Hold, Released, lined_up
from matador.transports.sqs.queue import SqsQueue
from matador.transports.sqs.queues import SqsQueues
from matador.transports.sqs.settle import SqsSettler

_MOST_POLLS = 8
_PER_POLL = 10
_GRACE = 5.0  # seconds that a poll may take longer than it was asked to


class SqsSubscription(BaseSubscription):
    """See ``matador.transports.base.Subscription``.

    A poll that is on its way cannot be taken back: SQS may hand out messages to it until it ends.
    So it goes on when ``receive`` is cancelled, and ``close`` waits for it: what it brings is
    returned by the next call, or goes back at once instead of when its lease is over.

    Of a FIFO queue SQS hands out several messages of one group together, and no more of it until
    all are settled. The first is delivered, the others one after the other as they are settled.
    """

    def __init__(
        self,
        client: SqsClient,
        queues: SqsQueues,
        queue: SqsQueue,
        settler: SqsSettler,
        released: Released,
        *,
        wait: int,
        lease: int,
        closed: Callable[[SqsSubscription], None],
    ) -> None:
        super().__init__(queue.name)
        self._client = client
        self._queues = queues
        self._settler = settler
        self._released = released
        self._wait = wait
        self._lease = lease
        self._closed = closed
        self._polls = 1
        self._paused = False
        self._ready: deque[Hold] = deque()
        self._polling: asyncio.Task[None] | None = None
        self._wakeup = Wakeup()

    async def receive(self, limit: int) -> Sequence[Delivery]:
        """See ``Subscription``. Waits while SQS cannot be reached."""
        self._paused = False
        while self._active:
            if self._ready and (taken := await self._take(limit)):
                return taken
            polling = self._polling
            if polling is None:
                self._polling = polling = asyncio.create_task(self._poll(limit))
                polling.add_done_callback(lambda _: self._wakeup.wake())
            await self._wakeup.wait()
            if self._active and polling.done():
                self._polling = None
                polling.result()
        return ()

    def _follow(self, behind: list[Hold]) -> bool:
        """Deliver those behind a message that was settled, one after the other."""
        if self._active:
            head = behind[0]
            head.behind = behind[1:]
            self._ready.append(head)
            self._wakeup.wake()
        return self._active

    async def _take(self, limit: int) -> list[Delivery]:
        """What is ready; nothing that has waited for so long that its lease would soon be over."""
        fresh_until = time.monotonic() + self._lease / 2
        if any(hold.until < fresh_until for hold in self._ready):
            stale = [hold for hold in self._ready if hold.until < fresh_until]
            self._ready = deque(hold for hold in self._ready if hold.until >= fresh_until)
            await self._give_back(stale)
        taken = [self._ready.popleft() for _ in range(min(limit, len(self._ready)))]
        return [hold.delivery(self._released.times(hold.id)) for hold in taken]

    async def _poll(self, limit: int) -> None:
        """One round of polls: several at once while there is more than one can bring."""
        queue = await self._queues.find(self.queue)
        polls = min(-(-limit // _PER_POLL), self._polls)
        shares = [min(_PER_POLL, limit - at * _PER_POLL) for at in range(polls)]
        wait = self._wait if polls == 1 else 0
        rounds = [self._receive(queue, share, wait) for share in shares]
        outcomes = await asyncio.gather(*rounds, return_exceptions=True)
        found = [hold for holds in outcomes if isinstance(holds, list) for hold in holds]
        full = len(found) == sum(shares) and shares[-1] == _PER_POLL
        self._polls = min(2 * polls, _MOST_POLLS) if full else 1
        heads = lined_up(found)
        early = [hold for hold in heads if hold.remaining > 0]
        self._ready.extend(hold for hold in heads if hold.remaining <= 0)
        deferred = await asyncio.gather(*[self._settler.defer(hold) for hold in early])
        if self._paused:
            await self._give_back_ready()
        for outcome in (*outcomes, *deferred):
            if isinstance(outcome, BaseException):
                await self._failed(queue, outcome)

    async def _receive(self, queue: SqsQueue, limit: int, wait: int) -> list[Hold]:
        asked = time.monotonic()
        found = await queue.receive(limit, wait=wait, lease=self._lease)
        # A blocked event loop sees the answer late: SQS handed the messages out before.
        at = min(time.monotonic(), asked + wait)
        holds = [Hold(self.queue, one, self._lease, fifo=queue.fifo, at=at) for one in found]
        for hold in holds:
            hold.follow = self._follow
        return holds

    async def _failed(self, queue: SqsQueue, error: BaseException) -> None:
        """Raise it, unless the next poll may do better."""
        if isinstance(error, QueueNotFoundError):
            self._queues.forget(queue)
            await self._queues.find(self.queue)  # makes it again if it was declared
        elif isinstance(error, SendUnconfirmedError | NotConnectedError):
            if self._client.is_connected or not self._active:
                raise error  # SQS answers, but with an error: the caller backs off
            await self._client.wait_connected()
        else:
            raise error

    async def _give_back(self, holds: Sequence[Hold]) -> None:
        """Those that fail go back when their lease is over."""
        deliveries = [hold.delivery(0) for hold in holds]
        await self._settler.settle([Release(delivery.receipt) for delivery in deliveries])

    async def close(self) -> None:
        """See ``Subscription``. Takes as long as the poll that is on its way: up to ``wait``."""
        if not self._active:
            return
        self._active = False
        self._wakeup.wake()
        self._closed(self)
        polling, self._polling = self._polling, None
        if polling is not None:
            if self._client.is_connected:
                await asyncio.wait([polling], timeout=self._wait + _GRACE)
            polling.cancel()  # SQS is gone, and nothing comes of it
            await asyncio.wait([polling])
            if not polling.cancelled():
                polling.exception()  # nobody is left to tell
        await self._give_back_ready()

    async def pause(self) -> None:
        """See ``Pausing``. What a poll on its way brings goes back as soon as it is there."""
        self._paused = True
        await self._give_back_ready()

    async def _give_back_ready(self) -> None:
        left, self._ready = list(self._ready), deque[Hold]()
        if left and self._client.is_connected:
            await self._give_back(left)
