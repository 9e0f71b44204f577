"""Asks a broker about many queues with a few concurrent requests."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TypeVar

from matador.errors import QueueNotFoundError
from matador.model.message import QueueDepth
from matador.transports.base import Measuring, MeasuringMany

T = TypeVar("T")
R = TypeVar("R")

AT_ONCE = 8


async def few_at_once(ask: Callable[[T], Awaitable[R]], items: Iterable[T]) -> list[R]:
    """The answers, in the order of the items. The first error stops the requests and is raised.

    Example:
        >>> depths = await few_at_once(transport.depth, ["shop.events", "shop.billing"])
    """
    given = list(items)
    answers: dict[int, R] = {}
    places = iter(range(len(given)))

    async def some() -> None:
        for place in places:  # all workers share this iterator
            answers[place] = await ask(given[place])

    tasks = [asyncio.ensure_future(some()) for _ in range(min(AT_ONCE, len(given)))]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return [answers[place] for place in range(len(given))]


async def depths_of(transport: Measuring, queues: Sequence[str]) -> list[QueueDepth | None]:
    """The depth of each queue, in order; None: there is no such queue."""
    if isinstance(transport, MeasuringMany):
        return list(await transport.depths(queues))

    async def depth(name: str) -> QueueDepth | None:
        try:
            return await transport.depth(name)
        except QueueNotFoundError:
            return None

    return await few_at_once(depth, queues)
