"""Transports that fail when they are told to, for tests of what happens then."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Any

from matador.errors import MatadorError
from matador.model.message import Delivery, Message, Settlement
from matador.transports.base import Subscription
from matador.transports.memory import MemoryTransport


class FaultyTransport(MemoryTransport):
    """A ``MemoryTransport`` whose next calls raise what is put into its lists.

    ``settled`` has every settlement that was carried out, ``tried`` the time of every attempt.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.connect_errors: deque[BaseException] = deque()
        self.send_errors: deque[BaseException] = deque()
        self.refuse_queues: set[str] = set()
        self.subscribe_errors: dict[str, BaseException] = {}
        self.receive_errors: deque[BaseException] = deque()
        self.settle_errors: deque[BaseException] = deque()
        self.settled: list[Settlement] = []
        self.tried: list[float] = []
        self.limits: list[int] = []
        self.slow_close = asyncio.Event()
        self.slow_close.set()

    async def connect(self) -> None:
        if self.connect_errors:
            raise self.connect_errors.popleft()
        await super().connect()

    async def send(self, messages: Sequence[Message]) -> Sequence[MatadorError | None]:
        if self.send_errors:
            raise self.send_errors.popleft()
        taken = [message for message in messages if message.queue not in self.refuse_queues]
        outcomes = iter(await super().send(taken))
        return [
            MatadorError(f"{message.queue} is full")
            if message.queue in self.refuse_queues
            else next(outcomes)
            for message in messages
        ]

    async def subscribe(self, queue: str, *, prefetch: int) -> Subscription:
        if queue in self.subscribe_errors:
            raise self.subscribe_errors[queue]
        return _FaultySubscription(self, await super().subscribe(queue, prefetch=prefetch))

    async def settle(self, settlements: Sequence[Settlement]) -> Sequence[MatadorError | None]:
        self.tried.append(asyncio.get_running_loop().time())
        if self.settle_errors:
            raise self.settle_errors.popleft()
        outcomes = await super().settle(settlements)
        pairs = zip(settlements, outcomes, strict=True)
        self.settled += [settlement for settlement, error in pairs if error is None]
        return outcomes


class _FaultySubscription:
    def __init__(self, transport: FaultyTransport, inner: Subscription) -> None:
        self._transport = transport
        self._inner = inner

    @property
    def queue(self) -> str:
        return self._inner.queue

    @property
    def active(self) -> bool:
        return self._inner.active

    async def receive(self, limit: int) -> Sequence[Delivery]:
        self._transport.limits.append(limit)
        if self._transport.receive_errors:
            raise self._transport.receive_errors.popleft()
        return await self._inner.receive(limit)

    async def close(self) -> None:
        await self._transport.slow_close.wait()
        await self._inner.close()
