"""Replies that arrive in this process. Each is handed out once and stored nowhere else."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from matador.model.message import Delivery
from matador.transports.kit.transport import BaseSubscription
from matador.transports.kit.wakeup import Wakeup

MOST_REPLIES = 100_000
"""The maximum number of replies that wait for their receiver; more than a client has in flight."""

REPLY_PREFIX = "matador.reply."
"""The prefix of reply addresses on brokers without native ones.

A message to an address that does not exist is dropped: the caller has ended.
"""


class ReplySubscription(BaseSubscription):
    """The subscription of ``Replying.replies``. Holds a limited number of replies and drops the
    oldest."""

    def __init__(self, address: str, closed: Callable[[ReplySubscription], object]) -> None:
        super().__init__(address)
        self._closed = closed
        self._arrived: deque[Delivery] = deque(maxlen=MOST_REPLIES)
        self._wakeup = Wakeup()
        self._listener: Callable[[Delivery], object] | None = None

    def put(self, answer: Delivery) -> None:
        if self._listener is not None:
            self._listener(answer)
            return
        self._arrived.append(answer)
        self._wakeup.wake()

    def listen(self, listener: Callable[[Delivery], object]) -> None:
        """Pass each reply to ``listener`` as soon as it arrives, instead of to ``receive``.

        This saves one iteration of the event loop. ``receive`` then waits until the subscription is
        closed. The listener must be quick, and raise nothing.
        """
        while self._arrived:
            listener(self._arrived.popleft())
        self._listener = listener

    async def receive(self, limit: int) -> Sequence[Delivery]:
        while self._active:
            if self._arrived:
                return [self._arrived.popleft() for _ in range(min(limit, len(self._arrived)))]
            await self._wakeup.wait()
        return ()

    async def close(self) -> None:
        if self._active:
            self._active = False
            self._closed(self)
            self._wakeup.wake()
