"""Answers that arrive in this process: handed out once, kept by nobody else."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from matador.model.message import Delivery
from matador.transports.kit.transport import BaseSubscription
from matador.transports.kit.wakeup import Wakeup

MOST_REPLIES = 100_000
"""How many replies wait for their receiver; more than anybody has requests in flight."""

REPLY_PREFIX = "matador.reply."
"""How reply addresses begin, on brokers without such addresses of their own.

A message to one that does not exist is dropped: whoever asked is gone.
"""


class ReplySubscription(BaseSubscription):
    """See ``Replying.replies``. Holds a limited number: the oldest go when there are more."""

    def __init__(self, address: str, closed: Callable[[ReplySubscription], object]) -> None:
        super().__init__(address)
        self._closed = closed
        self._arrived: deque[Delivery] = deque(maxlen=MOST_REPLIES)
        self._wakeup = Wakeup()
        self._listener: Callable[[Delivery], object] | None = None

    def put(self, answer: Delivery) -> None:
        """One more has arrived."""
        if self._listener is not None:
            self._listener(answer)
            return
        self._arrived.append(answer)
        self._wakeup.wake()

    def listen(self, listener: Callable[[Delivery], object]) -> None:
        """Have each reply given to ``listener`` as soon as it arrives, and not to ``receive``.

        It saves a turn of the event loop. ``receive`` then waits until the subscription is closed.
        The listener must be quick, and raise nothing.
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
