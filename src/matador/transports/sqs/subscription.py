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
from matador.transports.sqs.deliveries import InFlightMessage, Released, lined_up
from matador.transports.sqs.queue import SqsQueue
from matador.transports.sqs.queues import SqsQueues
from matador.transports.sqs.settle import SqsSettler

_MOST_POLLS = 8
_PER_POLL = 10
_GRACE = 5.0  # seconds that a poll may take longer than it was asked to


class SqsSubscription(BaseSubscription):
    """Receives by long polling.

    A poll in flight cannot be canceled: SQS may return messages to it until it ends. So the poll
    continues when ``receive`` is canceled, and ``close`` waits for it. The next call returns its
    messages, or they are released at once instead of when their leases expire.

    SQS delivers several messages of one group of a FIFO queue together, and no more of that group
    until all are settled. The first is delivered at once; each of the others is delivered when the
    previous one is settled.
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
        self._ready: deque[InFlightMessage] = deque()
        self._polling: asyncio.Task[None] | None = None
        self._wakeup = Wakeup()

    async def receive(self, limit: int) -> Sequence[Delivery]:
        """Waits while SQS cannot be reached."""
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

    def _follow(self, behind: list[InFlightMessage]) -> bool:
        """Deliver the messages behind a settled one, one at a time."""
        if self._active:
            head = behind[0]
            head.behind = behind[1:]
            self._ready.append(head)
            self._wakeup.wake()
        return self._active

    async def _take(self, limit: int) -> list[Delivery]:
        """The ready messages, except those whose leases would soon expire."""
        fresh_until = time.monotonic() + self._lease / 2
        if any(hold.until < fresh_until for hold in self._ready):
            stale = [hold for hold in self._ready if hold.until < fresh_until]
            self._ready = deque(hold for hold in self._ready if hold.until >= fresh_until)
            await self._give_back(stale)
        taken = [self._ready.popleft() for _ in range(min(limit, len(self._ready)))]
        return [hold.delivery(self._released.times(hold.id)) for hold in taken]

    async def _poll(self, limit: int) -> None:
        """One round of polls; several concurrent ones while a single poll is always full."""
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

    async def _receive(self, queue: SqsQueue, limit: int, wait: int) -> list[InFlightMessage]:
        asked = time.monotonic()
        found = await queue.receive(limit, wait=wait, lease=self._lease)
        # A blocked event loop processes the reply late, so SQS may have delivered the messages
        # earlier.
        at = min(time.monotonic(), asked + wait)
        holds = [
            InFlightMessage(self.queue, one, self._lease, fifo=queue.fifo, at=at) for one in found
        ]
        for hold in holds:
            hold.follow = self._follow
        return holds

    async def _failed(self, queue: SqsQueue, error: BaseException) -> None:
        """Raise the error, unless the next poll may succeed."""
        if isinstance(error, QueueNotFoundError):
            self._queues.forget(queue)
            await self._queues.find(self.queue)  # makes it again if it was declared
        elif isinstance(error, SendUnconfirmedError | NotConnectedError):
            if self._client.is_connected or not self._active:
                raise error  # SQS answers, but with an error: the caller backs off
            await self._client.wait_connected()
        else:
            raise error

    async def _give_back(self, holds: Sequence[InFlightMessage]) -> None:
        """Release messages. Those that fail become visible when their leases expire."""
        deliveries = [hold.delivery(0) for hold in holds]
        await self._settler.settle([Release(delivery.receipt) for delivery in deliveries])

    async def close(self) -> None:
        """Waits for the poll in flight, which takes up to ``wait`` seconds."""
        if not self._active:
            return
        self._active = False
        self._wakeup.wake()
        self._closed(self)
        polling, self._polling = self._polling, None
        if polling is not None:
            if self._client.is_connected:
                await asyncio.wait([polling], timeout=self._wait + _GRACE)
            polling.cancel()  # SQS cannot be reached, so it returns nothing
            await asyncio.wait([polling])
            if not polling.cancelled():
                polling.exception()  # retrieve the error; no caller is left
        await self._give_back_ready()

    async def pause(self) -> None:
        """Messages of a poll in flight are released as soon as they arrive."""
        self._paused = True
        await self._give_back_ready()

    async def _give_back_ready(self) -> None:
        left, self._ready = list(self._ready), deque[InFlightMessage]()
        if left and self._client.is_connected:
            await self._give_back(left)
