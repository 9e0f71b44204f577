"""Ends things in bounded time: a broker that does not answer must not hold anybody up."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

log = logging.getLogger("matador")

GRACE = 5.0
"""Seconds for giving back what could not be finished in time, and for disconnecting."""

_LEAST = 1.0

_left_alone: set[asyncio.Task[Any]] = set()
"""Steps that nobody waits for any more: the event loop itself keeps no strong references."""


class Deadline:
    """When something must have ended. The steps until then share the time.

    Args:
        limit: seconds for all steps together.
        who: what is being ended, for the log.
    """

    def __init__(self, limit: float, who: str) -> None:
        self._until = asyncio.get_running_loop().time() + limit
        self._who = who
        self._is_late = False

    @property
    def left(self) -> float:
        """The seconds that are left, at least 0."""
        return max(0.0, self._until - asyncio.get_running_loop().time())

    def expect_no_answer(self) -> None:
        """The broker did not answer in time, so the last step does not wait for it either."""
        self._is_late = True

    async def do(
        self, step: Coroutine[Any, Any, object], what: str, at_most: float | None = None
    ) -> bool:
        """Wait for a step as long as there is time; whether it was done.

        A step that takes longer goes on in the background. It is not cancelled: a connection that
        is half closed would never be closed.
        """
        limit = self.left if at_most is None else min(self.left, at_most)
        return await self._do(step, what, limit)

    async def do_last(self, step: Coroutine[Any, Any, object], what: str) -> bool:
        """``do`` for the last step, which has a second at least.

        It has no more than that if the broker did not answer in time before.
        """
        return await self._do(step, what, _LEAST if self._is_late else max(_LEAST, self.left))

    async def _do(self, step: Coroutine[Any, Any, object], what: str, limit: float) -> bool:
        doing = asyncio.create_task(step, name="matador-end")
        try:
            await asyncio.wait([doing], timeout=limit)
        except asyncio.CancelledError:
            doing.cancel()
            raise
        if doing.done():
            doing.result()
            return True
        self._is_late = True
        _left_alone.add(doing)
        doing.add_done_callback(_forget)
        log.error("%s: could not %s in time; going on without", self._who, what)
        return False


def _forget(step: asyncio.Task[Any]) -> None:
    _left_alone.discard(step)
    if not step.cancelled() and (error := step.exception()) is not None:
        log.debug("what was left alone has failed: %s", error)
