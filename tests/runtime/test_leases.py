"""Leases are renewed in time, all of them, and whatever happens meanwhile."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from functools import partial

import pytest

from matador.errors import NotConnectedError
from matador.model.message import Delivery, Receipt
from matador.runtime.context import Context
from matador.runtime.leases import LeaseKeeper
from matador.runtime.way import Scope
from matador.testing import ManualClock, make_receipt

LEASE = 36.0
TURN = 12  # seconds between two renewals
SOON = 3  # seconds between two that fail


class Renewals:
    """What a transport is asked to renew: when, and how it answers."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self.asked: list[tuple[float, list[str]]] = []
        self.errors: deque[Exception | None] = deque()
        self.lost: set[str] = set()
        self.short = False

    @property
    def times(self) -> list[float]:
        return [when for when, _ in self.asked]

    async def renew(self, receipts: Sequence[Receipt]) -> Sequence[bool]:
        self.asked.append((self._clock.monotonic(), [one.queue for one in receipts]))
        error = self.errors.popleft() if self.errors else None
        if error is not None:
            raise error
        kept = [one.queue not in self.lost for one in receipts]
        return kept[:-1] if self.short else kept


class Keeping:
    """A keeper whose time is passed by hand."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self.transport = Renewals(clock)
        self.keeper = LeaseKeeper(self.transport, LEASE)

    async def passes(self, seconds: float) -> None:
        """Let time pass, a second at a time, and let the keeper do what it wants to."""
        for _ in range(int(seconds)):
            self._clock.advance(1)
            for _ in range(5):
                await _turn()


async def _turn() -> None:
    """One turn of the loop, whatever ``asyncio.sleep`` is meanwhile."""
    turned = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_soon(turned.set_result, None)
    await turned


def receipt(name: str) -> Receipt:
    return make_receipt(queue=name)


@pytest.fixture
def keeping(manual_clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> Keeping:
    monkeypatch.setattr(asyncio, "sleep", manual_clock.sleep)
    return Keeping(manual_clock)


async def test_a_lease_is_renewed_three_times_before_it_would_pass(keeping: Keeping) -> None:
    keeping.keeper.start()
    await _turn()
    keeping.keeper.hold(receipt("a"))
    await keeping.passes(LEASE)
    assert keeping.transport.times == [TURN, 2 * TURN, 3 * TURN]
    await keeping.keeper.stop()
    await keeping.passes(LEASE)
    assert len(keeping.transport.asked) == 3, "stopped is stopped"


async def test_failed_renewals_are_tried_again_soon(
    keeping: Keeping, caplog: pytest.LogCaptureFixture
) -> None:
    keeping.keeper.start()
    await _turn()
    keeping.keeper.hold(receipt("a"))
    keeping.transport.errors.extend([NotConnectedError("gone"), OSError("gone"), ValueError("odd")])
    await keeping.passes(LEASE)
    failed = [TURN, TURN + SOON, TURN + 2 * SOON]
    assert keeping.transport.times == [*failed, TURN + 3 * SOON, 2 * TURN + 3 * SOON]
    assert keeping.keeper.held == 1, "a renewal that failed says nothing about the lease"
    assert caplog.text.count("could not renew the leases of 1 messages") == 3
    await keeping.keeper.stop()


async def test_an_answer_that_makes_no_sense_ends_no_renewing(keeping: Keeping) -> None:
    keeping.keeper.start()
    await _turn()
    for name in ("a", "b"):
        keeping.keeper.hold(receipt(name))
    keeping.transport.short = True
    await keeping.passes(TURN)
    keeping.transport.short = False
    await keeping.passes(TURN)
    assert keeping.transport.times == [TURN, TURN + SOON]
    assert keeping.keeper.held == 2
    await keeping.keeper.stop()


async def test_only_what_is_held_is_renewed_and_all_of_it_at_once(keeping: Keeping) -> None:
    keeping.keeper.start()
    await _turn()
    await keeping.passes(TURN)
    assert keeping.transport.asked == [], "nothing to renew, nobody is asked"
    first, second = receipt("a"), receipt("b")
    keeping.keeper.hold(first)
    keeping.keeper.hold(second)
    await keeping.passes(TURN)
    keeping.keeper.let_go(first)
    await keeping.passes(TURN)
    assert [names for _, names in keeping.transport.asked] == [["a", "b"], ["b"]]
    await keeping.keeper.stop()


async def test_who_lost_a_lease_is_told_and_the_others_are_kept(keeping: Keeping) -> None:
    keeping.keeper.start()
    await _turn()
    contexts: dict[str, Context] = {}
    for name in ("a", "b"):
        held = receipt(name)
        keeping.keeper.hold(held)
        scope = Scope(None, None, partial(keeping.keeper.when_lost, held))
        delivery = Delivery(b"", {}, held)
        contexts[name] = Context(scope, delivery, id=name, attempt=1, metadata={})
    keeping.transport.lost.add("a")
    await keeping.passes(2 * TURN)
    assert (contexts["a"].lease_lost, contexts["b"].lease_lost) == (True, False)
    assert [names for _, names in keeping.transport.asked] == [["a", "b"], ["b"]]
    await keeping.keeper.stop()


async def test_what_is_being_settled_is_not_called_lost(
    keeping: Keeping, caplog: pytest.LogCaptureFixture
) -> None:
    keeping.keeper.start()
    await _turn()
    settled, failed = receipt("settled"), receipt("failed")
    keeping.keeper.hold(settled)
    keeping.keeper.hold(failed)
    with keeping.keeper.settling([settled, failed]):
        # The broker has settled them, and its answer arrives after that to the renewal.
        keeping.transport.lost |= {"settled", "failed"}
        await keeping.passes(TURN)
        keeping.keeper.let_go(settled)
    assert keeping.transport.times == [TURN]
    assert "lost the lease" not in caplog.text
    await keeping.passes(TURN)
    assert [names for _, names in keeping.transport.asked][1:] == [["failed"]]
    assert caplog.text.count("lost the lease of a message of failed") == 1
    await keeping.keeper.stop()


async def test_in_doubt_a_delivery_is_still_ours(keeping: Keeping) -> None:
    kept, lost, unknown = receipt("kept"), receipt("lost"), receipt("unknown")
    keeping.keeper.hold(kept)
    keeping.keeper.hold(lost)
    assert await keeping.keeper.confirm(kept)
    keeping.transport.errors.append(NotConnectedError("gone"))
    assert await keeping.keeper.confirm(kept)
    keeping.transport.lost.add("lost")
    assert not await keeping.keeper.confirm(lost)
    assert keeping.keeper.held == 1, "what was lost is not renewed any more"
    assert not await keeping.keeper.confirm(unknown)
    assert keeping.keeper.certain <= LEASE / 3


async def test_a_thread_renews_what_is_held_and_the_event_loop_learns_what_was_lost(
    keeping: Keeping,
) -> None:
    loop, twin, told = asyncio.get_running_loop(), keeping.transport, list[str]()
    await keeping.keeper.renew_with(twin, loop)
    assert twin.asked == [], "nothing to renew, nobody is asked"
    for name in ("a", "b"):
        held = receipt(name)
        keeping.keeper.hold(held)
        keeping.keeper.when_lost(held, partial(told.append, name))
    await keeping.keeper.renew_with(twin, loop)
    await _turn()
    assert (told, keeping.keeper.held) == ([], 2)
    twin.lost.add("a")
    await keeping.keeper.renew_with(twin, loop)
    assert told == [], "the event loop hears of it in its own time"
    await _turn()
    assert (told, keeping.keeper.held) == (["a"], 1)
