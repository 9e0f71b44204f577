"""Bounds the time of a shutdown, even if the broker does not answer."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

log = logging.getLogger("matador")

GRACE = 5.0
"""Seconds for giving back unfinished messages and for disconnecting."""

_LEAST = 1.0

_left_alone: set[asyncio.Task[Any]] = set()
"""Steps that were abandoned, kept here because the event loop itself has no strong references."""


class Deadline:
    """The time by which a sequence of steps must end. The steps share the time.

    Args:
        limit: seconds for all steps together.
        who: the name of the service, for the log.
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
        """Wait for a step while there is time; return whether it completed.

        A step that takes longer continues in the background. It is not canceled, because a
        half-closed connection would never be closed.
        """
        limit = self.left if at_most is None else min(self.left, at_most)
        return await self._do(step, what, limit)

    async def do_last(self, step: Coroutine[Any, Any, object], what: str) -> bool:
        """Like ``do`` for the last step, which has at least one second.

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
        log.debug("an abandoned step has failed: %s", error)
