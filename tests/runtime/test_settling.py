"""The settler by itself: what it does again, for how long, and in which form."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
from tests.observe.facts import attempt

from matador import Hooks
from matador.errors import (
    ConnectionFailedError,
    LeaseLostError,
    MatadorError,
    NotConnectedError,
    QueueNotFoundError,
    SendRefusedError,
    StorageFullError,
    TransportError,
    UnstorableError,
)
from matador.model.message import Complete, DeadLetter, Message, Receipt, Retry, Settlement
from matador.runtime import settle
from matador.runtime.activity import Activity
from matador.runtime.facts import Attempt
from matador.runtime.hooks import HookSet
from matador.runtime.leases import LeaseKeeper
from matador.runtime.settle import (
    AS_IT_ARRIVED,
    Outcome,
    Settler,
    _next,
    _own_pause,
    kept_as_it_arrived,
)
from matador.testing import wait_for
from matador.transports.memory import MemoryTransport


def receipt(number: int = 1) -> Receipt:
    return Receipt("shop.events", number)


def done(number: int = 1, **more: Any) -> Outcome:
    one = receipt(number)
    return Outcome(one, Complete(one), **more)


def retried(**more: Any) -> Outcome:
    one = receipt()
    return Outcome(one, Retry(one, Message("m-1", "shop.events", b"{}")), **more)


def letter(**more: Any) -> Outcome:
    one = receipt()
    return Outcome(one, DeadLetter(one, "undeliverable", "gave up"), **more)


def accepted(settlement: Settlement) -> MatadorError | None:
    return None


class Broker(MemoryTransport):
    """Answers each settlement as it is told to; waits with its answers while ``go`` is not set."""

    def __init__(self, answer: Callable[[Settlement], MatadorError | None] | None = None) -> None:
        super().__init__()
        self.answer = answer or accepted
        self.batches: list[list[object]] = []
        self.go = asyncio.Event()
        self.go.set()

    async def settle(self, settlements: Sequence[Settlement]) -> Sequence[MatadorError | None]:
        self.batches.append([one.receipt.handle for one in settlements])
        await self.go.wait()
        return [self.answer(one) for one in settlements]

    async def renew(self, receipts: Sequence[Receipt]) -> Sequence[bool]:
        return [False for _ in receipts]


class Told(Hooks):
    def __init__(self) -> None:
        self.ids: list[str] = []

    def on_attempted(self, batch: Sequence[Attempt]) -> None:
        self.ids += [one.id for one in batch]


# -- which form comes next -----------------------------------------------------------------------

PASSING = [
    NotConnectedError("away"),
    ConnectionFailedError("refused"),
    QueueNotFoundError("gone"),
    StorageFullError("full"),
]
FULL = SendRefusedError("full", queue="shop.events.retry")
UNKNOWN = TransportError("?")


@pytest.mark.parametrize(
    ("make", "error"),
    [
        *((make, error) for make in (retried, letter, done) for error in PASSING),
        (letter, FULL),  # it has no simpler form that goes elsewhere
        (done, FULL),
        (retried, SendRefusedError("no route", queue=None)),
    ],
)
def test_what_passes_is_tried_again_in_the_same_form_for_ever(
    make: Callable[..., Outcome], error: MatadorError
) -> None:
    outcome = make(simpler=done)
    for _ in range(20):
        outcome = _next(outcome, error)
    assert outcome.tries == 0
    assert outcome.settlement == make().settlement


def test_what_can_never_be_stored_gives_way_at_once() -> None:
    outcome = _next(retried(simpler=letter, tries=3), UnstorableError("too large"))
    assert isinstance(outcome.settlement, DeadLetter)
    assert outcome.tries == 3, "the pauses go on from there"
    last = letter()
    assert _next(last, UnstorableError("too large")) is last, "there is no simpler form"


@pytest.mark.parametrize(
    ("make", "error"), [(retried, UNKNOWN), (letter, UNKNOWN), (retried, FULL)]
)
def test_what_fails_for_an_unknown_reason_gives_way_after_five_tries(
    make: Callable[..., Outcome], error: MatadorError
) -> None:
    first = outcome = make(simpler=done)
    for tries in range(1, 5):
        outcome = _next(outcome, error)
        assert (outcome.tries, outcome.settlement) == (tries, first.settlement)
    outcome = _next(outcome, error)
    assert outcome.tries == 5
    assert isinstance(outcome.settlement, Complete)


def test_the_pauses_of_a_dead_letter_go_on_growing_and_those_of_others_begin_anew() -> None:
    assert [_own_pause(letter(tries=tries)) for tries in range(1, 10)] == [
        *(0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0)
    ]
    assert [_own_pause(retried(tries=tries)) for tries in range(1, 9)] == [
        *(0.05, 0.1, 0.2, 0.4, 0.8, 0.05, 0.1, 0.2)
    ]
    assert _own_pause(letter(tries=10_000)) == 5.0


def test_a_letter_that_does_not_fit_has_two_simpler_forms() -> None:
    one, fact, then = receipt(), attempt(), lambda: asyncio.sleep(0)
    first = kept_as_it_arrived(one, "unhandled", "nobody", fact, then)
    assert first.simpler is not None
    second = first.simpler()
    assert second.simpler is not None
    last = second.simpler()
    assert last.simpler is None
    assert [each.settlement for each in (first, second, last)] == [
        DeadLetter(one, "unhandled", "nobody"),
        DeadLetter(one, "unhandled", AS_IT_ARRIVED),
        DeadLetter(one, "unhandled", AS_IT_ARRIVED, bare=True),
    ]
    for each in (first, second, last):
        assert (each.receipt, each.attempt, each.then) == (one, fact, then)
    instead = kept_as_it_arrived(one, "unhandled", "nobody", letter=lambda _: None)
    assert instead.settlement is None


# -- batches -------------------------------------------------------------------------------------


async def test_what_gathers_meanwhile_is_the_next_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settle, "_MAX_BATCH", 3)
    broker, activity = Broker(), Activity()
    activity.processing = 5
    settler = Settler(broker, activity)
    broker.go.clear()
    settler.submit(done(0))
    await wait_for(lambda: broker.batches == [[0]])
    for number in range(1, 5):
        settler.submit(done(number))
    assert (settler.backlog, activity.processing) == (5, 5)
    broker.go.set()
    await settler.drain()
    assert broker.batches == [[0], [1, 2, 3], [4]]
    assert (settler.backlog, activity.processing) == (0, 0)


async def test_hooks_are_told_what_is_safe_and_what_follows_is_done() -> None:
    refused = {2}
    broker = Broker(lambda one: LeaseLostError("lost") if one.receipt.handle in refused else None)
    told, after, failed = Told(), list[int](), list[tuple[object, str]]()

    def following(number: int) -> Callable[[], Awaitable[None]]:
        async def follow() -> None:
            assert told.ids, "after the hooks"
            after.append(number)
            if number == 1:
                raise ValueError("what follows may fail")

        return follow

    settler = Settler(
        broker,
        Activity(),
        on_error=lambda receipt, error: failed.append((receipt.handle, str(error))),
        hooks=HookSet([told]),
    )
    for number in range(1, 5):
        fact = attempt() if number != 3 else None
        settler.submit(done(number, attempt=fact, then=following(number)))
    await settler.drain()
    assert told.ids == ["m-1"] * 2, "the second was lost, the third has nothing to tell"
    assert after == [1, 3, 4]
    assert failed == [(2, "lost")]


async def test_one_that_fails_does_not_hold_up_its_neighbors() -> None:
    left = {1: 2, 3: 1}

    def answer(one: Settlement) -> MatadorError | None:
        number = one.receipt.handle
        assert isinstance(number, int)
        if left.get(number, 0):
            left[number] -= 1
            return NotConnectedError("away")
        return None

    broker, activity, told = Broker(answer), Activity(), Told()
    activity.processing = 3
    settler = Settler(broker, activity, hooks=HookSet([told]))
    for number in (1, 2, 3):
        settler.submit(done(number, attempt=attempt()))
    await wait_for(lambda: settler.backlog == 2)
    assert (told.ids, activity.processing) == (["m-1"], 2)
    await settler.drain()
    assert broker.batches == [[1, 2, 3], [1, 3], [1]]
    assert (len(told.ids), activity.processing) == (3, 0)


async def test_what_needs_no_settlement_is_done_at_once() -> None:
    broker, told = Broker(lambda _: NotConnectedError("away")), Told()
    settler = Settler(broker, Activity(), hooks=HookSet([told]))
    settler.submit(Outcome(receipt(), None, attempt()))
    await settler.drain()
    assert (broker.batches, told.ids) == ([], ["m-1"])
    settler.submit(done(1, attempt=attempt()))
    settler.submit(Outcome(receipt(2), None, attempt()))
    settler.submit(done(3, attempt=attempt()))
    await wait_for(lambda: len(told.ids) == 2)
    assert settler.backlog == 2
    assert settler.abandon() == 2


async def test_an_error_that_no_transport_should_raise_is_that_of_the_one_it_is_about() -> None:
    def answer(one: Settlement) -> MatadorError | None:
        if one.receipt.handle == 2:
            raise KeyError("a bug")
        return None

    broker, failed = Broker(answer), list[tuple[object, str]]()
    settler = Settler(
        broker, Activity(), on_error=lambda one, error: failed.append((one.handle, str(error)))
    )
    for number in (1, 2, 3):
        settler.submit(done(number))
    await wait_for(lambda: settler.backlog == 1)
    assert broker.batches[:4] == [[1, 2, 3], [1], [2], [3]]
    assert failed[0] == (2, "KeyError: 'a bug'")
    settler.abandon()
    assert await settler.settle_now(Complete(receipt(1))) is None
    assert isinstance(await settler.settle_now(Complete(receipt(2))), TransportError)


async def test_room_is_what_is_unsettled_or_what_was_asked_about() -> None:
    broker, stop = Broker(), list[bool]()
    settler = Settler(broker, Activity())
    broker.go.clear()
    for number in range(4):
        settler.submit(done(number))
    await asyncio.wait_for(settler.room(4), 10)
    waiting = asyncio.create_task(settler.room(3))
    asked = asyncio.create_task(settler.room(0, unless=lambda: bool(stop)))
    settler.nudge()
    for _ in range(5):
        await asyncio.sleep(0)
    assert not waiting.done()
    assert not asked.done()
    stop.append(True)
    settler.nudge()
    await asyncio.wait_for(asked, 10)
    assert not waiting.done()
    broker.go.set()
    await asyncio.wait_for(waiting, 10)


async def test_an_abandoned_flush_settles_nothing_more() -> None:
    broker, activity = Broker(), Activity()
    activity.processing = 2
    settler = Settler(broker, activity)
    broker.go.clear()
    settler.submit(done(1))
    await wait_for(lambda: broker.batches == [[1]])
    settler.submit(done(2))
    assert (settler.abandon(), settler.backlog, activity.processing) == (2, 0, 0)
    broker.go.set()
    settler.submit(done(3))
    for _ in range(5):
        await asyncio.sleep(0)
    assert broker.batches == [[1]]


# -- leases --------------------------------------------------------------------------------------


@pytest.mark.parametrize("now", [True, False])
async def test_a_lease_is_let_go_once_its_message_is_settled(now: bool) -> None:
    errors: list[MatadorError] = []
    broker = Broker(lambda _: errors.pop() if errors else None)
    leases = LeaseKeeper(broker, 600)
    settler, outcome, lost = Settler(broker, Activity(), leases), done(), list[bool]()
    leases.hold(outcome.receipt)
    leases.when_lost(outcome.receipt, lambda: lost.append(True))
    errors.append(NotConnectedError("away"))
    broker.go.clear()
    settlement = Complete(outcome.receipt)
    settling = asyncio.create_task(settler.settle_now(settlement)) if now else None
    if not now:
        settler.submit(outcome)
    await wait_for(lambda: len(broker.batches) == 1)
    leases._refused([outcome.receipt])
    assert (leases.held, lost) == (1, []), "its settlement is under way"
    broker.go.set()
    if settling is not None:
        assert isinstance(await settling, NotConnectedError)
        assert leases.held == 1, "it was not settled"
        assert await settler.settle_now(settlement) is None
    await settler.drain()
    assert leases.held == 0
    leases.hold(outcome.receipt)
    leases._refused([outcome.receipt])
    assert (leases.held, lost) == (0, []), "nobody is told any more"
