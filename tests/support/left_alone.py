"""What a shutdown that ran out of time goes on with in the background."""

from __future__ import annotations

from matador.runtime import deadline
from matador.testing import wait_for


async def nothing_left_alone() -> None:
    """Wait until it has ended. Otherwise its sockets are closed in the middle of another test."""
    await wait_for(lambda: not deadline._left_alone, timeout=60)
