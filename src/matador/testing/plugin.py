"""The pytest plugin: fixtures for tests of code that uses Matador.

pytest loads it in every run, so it imports the rest of Matador only when a fixture is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager

    from matador.testing.clock import ManualClock
    from matador.transports.memory import MemoryTransport

pytest.register_assert_rewrite("matador.testing.compliance")


@pytest.fixture
def manual_clock() -> ManualClock:
    """A clock that only moves when the test advances it."""
    from matador.testing.clock import ManualClock

    return ManualClock()


@pytest.fixture
def memory_transport() -> MemoryTransport:
    """An unconnected in-process transport for the test."""
    from matador.transports.memory import MemoryTransport

    return MemoryTransport()


@pytest.fixture
def matador_harness(
    manual_clock: ManualClock,
) -> Callable[..., AbstractAsyncContextManager[Any]]:
    """``matador.testing.running`` with the clock of the fixture ``manual_clock``.

    Takes an application, a job queue or worker, an RPC server, a subscriber or a queue service.

    Example:
        >>> async def test_receipts(matador_harness):
        ...     async with matador_harness(app) as harness:
        ...         await harness.send(OrderPlaced("o-1", 5))
        ...         await harness.drain()
        ...         assert len(harness.handled("email-receipt")) == 1
    """
    from functools import partial

    from matador.testing.run import running

    return partial(running, clock=manual_clock)
