"""Distinguishes the shutdown of a worker from a cancellation that a callback caused itself.

Both arrive as a ``CancelledError`` in the task of a slot. The first ends the slot. The second is an
ordinary failure of the callback, and the slot continues.
"""

from __future__ import annotations

import asyncio


class Interruption:
    """Detects whether the worker must stop at once. Shared by all of its slots.

    The runner that ends an event loop cancels all of its tasks, including the sentinel task. No
    other code has access to the sentinel, so its cancellation means that the loop is ending.
    """

    def __init__(self) -> None:
        self._forced = False
        self._sentinel: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start to watch the event loop."""
        self._sentinel = asyncio.create_task(_forever(), name="matador-sentinel")

    async def stop(self) -> None:
        """Stop watching. A slot that is canceled from now on ends: the loop may be ending."""
        self._forced = True
        sentinel, self._sentinel = self._sentinel, None
        if sentinel is not None:
            sentinel.cancel()
            await asyncio.gather(sentinel, return_exceptions=True)

    def force(self) -> None:
        """Record that the worker interrupts its callbacks from now on."""
        self._forced = True

    @property
    def loop_is_ending(self) -> bool:
        """Whether the event loop is ending. Then nothing can be settled any more."""
        sentinel = self._sentinel
        return sentinel is not None and (sentinel.cancelling() > 0 or sentinel.done())

    @property
    def happened(self) -> bool:
        """Whether a canceled slot must end."""
        return self._forced or self.loop_is_ending

    async def forgive(self) -> None:
        """Drop the cancellation requests that a callback made for the current task.

        Raises:
            CancelledError: the worker must stop now.
        """
        task = asyncio.current_task()
        assert task is not None
        while task.cancelling():
            task.uncancel()
        try:
            await asyncio.sleep(0)  # before Python 3.13 a request is still delivered here
        except asyncio.CancelledError:
            if self.happened:
                raise


async def _forever() -> None:
    await asyncio.Event().wait()
