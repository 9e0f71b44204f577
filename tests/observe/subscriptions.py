"""A subscription whose deliveries are changed on their way, or come a few at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from matador.model.message import Delivery
from matador.transports.base import Subscription


def _same(delivery: Delivery) -> Delivery:
    return delivery


class Changed:
    """Hands over what another subscription does."""

    def __init__(
        self,
        whole: Subscription,
        *,
        change: Callable[[Delivery], Delivery] = _same,
        most: int = 1000,
    ) -> None:
        self._whole = whole
        self._change = change
        self._most = most

    @property
    def queue(self) -> str:
        return self._whole.queue

    @property
    def active(self) -> bool:
        return self._whole.active

    async def receive(self, limit: int) -> Sequence[Delivery]:
        return [self._change(one) for one in await self._whole.receive(min(limit, self._most))]

    async def close(self) -> None:
        await self._whole.close()
