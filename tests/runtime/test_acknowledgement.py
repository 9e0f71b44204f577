"""Manual acknowledgement: the decision of a handler, whenever it comes and whatever it raises."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from matador.errors import DontRetry, DoRetry
from matador.runtime.acknowledgement import Acknowledgement, decided
from matador.testing import wait_for


async def returns() -> str:
    return "done"


async def fails() -> str:
    raise ValueError("no")


def after(ack: Acknowledgement, requeue: bool | None, work: Awaitable[str]) -> Awaitable[str]:
    async def deciding() -> str:
        ack.decide(requeue)
        ack.decide(not requeue)  # only the first call counts
        return await work

    return deciding()


@pytest.mark.parametrize(("requeue", "raised"), [(None, None), (True, DoRetry), (False, DontRetry)])
@pytest.mark.parametrize("work", [returns, fails])
async def test_the_decision_of_a_handler_counts_whatever_it_raises(
    requeue: bool | None,
    raised: type[Exception] | None,
    work: Callable[[], Awaitable[str]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    ack = Acknowledgement()
    deciding = decided(after(ack, requeue, work()), ack, None)
    if raised is None:
        assert await deciding == ("done" if work is returns else None)
    else:
        with pytest.raises(raised, match=r"the handler called nack\(\)"):
            await deciding
    assert ("failed after it had called ack" in caplog.text) == (work is fails)


async def test_a_handler_that_fails_before_its_decision_has_failed() -> None:
    with pytest.raises(ValueError, match="no"):
        await decided(fails(), Acknowledgement(), None)


@pytest.mark.parametrize("requeue", [None, True])
async def test_a_decision_may_come_after_the_return_and_from_a_thread(
    requeue: bool | None,
) -> None:
    ack = Acknowledgement()
    deciding = asyncio.ensure_future(decided(returns(), ack, 600))
    await wait_for(lambda: ack._waiter is not None)
    assert not deciding.done()
    await asyncio.to_thread(ack.decide, requeue)
    (outcome,) = await asyncio.gather(deciding, return_exceptions=True)
    assert isinstance(outcome, DoRetry) if requeue else outcome == "done"


async def test_a_handler_that_never_decides_has_failed() -> None:
    with pytest.raises(DontRetry, match=r"neither ack\(\) nor nack\(\) in 0.01 s"):
        await decided(returns(), Acknowledgement(), 0.01)
