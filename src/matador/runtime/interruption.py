"""Tells the end of a worker from a cancellation that a callback brought upon itself.

Both arrive as a ``CancelledError`` in the task of a slot. The first ends the slot. The second is a
failure of the callback like any other, and the slot goes on.
"""

from __future__ import annotations

import asyncio


class Interruption:
    """Was this worker told to stop at once? One for all of its slots.

    Whoever ends an event loop cancels all of its tasks, the sentinel among them. Nobody else knows
    the sentinel, so a cancelled one means that the loop is ending.
    """

    def __init__(self) -> None:
        self._forced = False
        self._sentinel: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to watch the event loop."""
        self._sentinel = asyncio.create_task(_forever(), name="matador-sentinel")

    async def stop(self) -> None:
        """Watch no longer. A slot that is cancelled from now on ends: the loop may be ending."""
        self._forced = True
        sentinel, self._sentinel = self._sentinel, None
        if sentinel is not None:
            sentinel.cancel()
            await asyncio.gather(sentinel, return_exceptions=True)

    def force(self) -> None:
        """The worker cuts its callbacks short from now on."""
        self._forced = True

    @property
    def loop_is_ending(self) -> bool:
        """Does somebody end the event loop? Then nothing can be settled any more."""
        sentinel = self._sentinel
        return sentinel is not None and (sentinel.cancelling() > 0 or sentinel.done())

    @property
    def happened(self) -> bool:
        """Does a cancelled slot have to end?"""
        return self._forced or self.loop_is_ending

    async def forgive(self) -> None:
        """Have the current task forget requests to cancel it that a callback has made.

        Raises:
            CancelledError: the worker is to stop by now.
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
