"""What a run of a callback leaves behind: nothing."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest
from tests.support.shop import OrderPlaced, subscribed

from matador import Context, Envelope
from matador.events.hooks import HookSet
from matador.events.runner import Runner
from matador.runtime.interruption import Interruption
from matador.runtime.threads import Threads
from matador.testing import make_envelope, make_receipt


class Failure(Exception):
    """Can be referred to weakly, unlike those of Python itself."""


@pytest.fixture
def no_collector() -> Iterator[None]:
    """Cycles stay: whoever makes one is found out."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


async def plain(envelope: Envelope[OrderPlaced]) -> None:
    raise Failure(envelope.id)


async def with_context(envelope: Envelope[OrderPlaced], ctx: Context) -> None:
    raise Failure(envelope.id)


def in_a_thread(envelope: Envelope[OrderPlaced]) -> None:
    raise Failure(envelope.id)


@pytest.mark.parametrize("callback", [plain, with_context, in_a_thread])
@pytest.mark.usefixtures("no_collector")
async def test_a_failure_is_not_kept_by_its_own_traceback(callback: Callable[..., Any]) -> None:
    threads = Threads(1)
    runner = Runner(
        hooks=HookSet(),
        sender=cast("Any", None),
        leases=None,
        threads=threads,
        interruption=Interruption(),
        transport_name="memory",
        timeouts={},
    )
    envelope = make_envelope(OrderPlaced("o-1", 5))
    ran = await runner.run(envelope, subscribed(callback), make_receipt(), None)
    threads.close()
    assert isinstance(ran.error, Failure)
    held = weakref.ref(ran.error)
    del ran
    if callback is in_a_thread:  # a future knows it, too: a knot that can be undone
        await asyncio.sleep(0)
        gc.collect()
    assert held() is None
