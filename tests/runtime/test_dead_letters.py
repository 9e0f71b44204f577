"""Dead letters: which ones a selection fits, what one says, and what a move does with each."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
import pytest_asyncio

from matador.errors import InvalidMessageError, MatadorError, QueueNotFoundError, UnsupportedError
from matador.model.message import (
    ERROR_TYPE_HEADER,
    REASON_HEADER,
    TRACEBACK_HEADER,
    Complete,
    Delivery,
    Message,
    Properties,
    Release,
    Retry,
    Settlement,
    StoredMessage,
)
from matador.model.topology import DeadLetters, Topology, WorkQueue
from matador.runtime import dead_letters
from matador.runtime.dead_letters import (
    Contents,
    DeadLetterOffice,
    Edit,
    Fresh,
    Letter,
    Place,
    Selection,
    delivery_of,
    without_reason,
)
from matador.testing import ManualClock, wait_for
from matador.transports.memory import MemoryTransport

TOPOLOGY = Topology(
    "shop",
    queues=["events", "billing"],
    dead_letters=DeadLetters(unhandled=False, undeliverable=True),
)
DEAD = "shop.events.undeliverable"


def letter(headers: dict[str, str | int] | None = None, **contents: Any) -> Letter:
    stored = StoredMessage("1", "m-1", DEAD, b"{}", headers or {})
    return Letter(stored, WorkQueue("events"), "undeliverable", Contents(id="m-12", **contents))


# -- choosing ------------------------------------------------------------------------------------


def is_one(payload: Any) -> bool:
    return bool(payload["n"] == 1)


def is_two(payload: Any) -> bool:
    return bool(payload["n"] == 2)


def anything(payload: Any) -> bool:
    return True


FITS: list[tuple[dict[str, Any], bool]] = [
    ({}, True),
    ({"ids": ("m-1",)}, True),
    ({"ids": ("m-2", "m-12")}, True),
    ({"ids": ("m-2", "12")}, False),
    ({"exactly": frozenset({"m-12"})}, True),
    ({"exactly": frozenset({"m-1"})}, False),
    ({"exactly": frozenset()}, False),
    ({"undecodable": False}, True),
    ({"undecodable": True}, False),
    ({"error": "TIME"}, True),
    ({"error": "first of all"}, True),
    ({"error": "refused"}, True),
    ({"error": "never said"}, False),
    ({"error": ""}, True),
    ({"error_type": "TimeoutError"}, True),
    ({"error_type": "bank.errors.TimeoutError"}, True),
    ({"error_type": "errors.TimeoutError"}, False),
    ({"error_type": "timeouterror"}, False),
    ({"error_type": "bank.errors"}, False),
    ({"name": "order.placed"}, True),
    ({"name": "order"}, False),
    ({"subscriber": "charge"}, True),
    ({"subscriber": "ship"}, True),
    ({"subscriber": "char"}, False),
    ({"subscriber": "charge, ship"}, False),
    ({"where": is_one}, True),
    ({"where": is_two}, False),
    ({"name": "order.placed", "subscriber": "other"}, False),
    ({"name": "other", "where": anything}, False),
]


@pytest.mark.parametrize(("criteria", "fits"), FITS)
def test_a_selection_fits_what_meets_every_criterion(criteria: Any, fits: bool) -> None:
    one = letter(
        {REASON_HEADER: "Refused", ERROR_TYPE_HEADER: "bank.errors.TimeoutError"},
        name="order.placed",
        receiver="charge, ship",
        first_error="first of all",
        last_error="Timed out",
        plain=lambda: {"n": 1},
    )
    assert Selection(**criteria).fits(one) is fits


UNREADABLE: list[tuple[dict[str, Any], bool]] = [
    ({"undecodable": True}, True),
    ({"undecodable": False}, False),
    ({"where": anything}, False),
    ({"error": "not json"}, True),
    ({"error_type": "Error"}, False),
]


@pytest.mark.parametrize(("criteria", "fits"), UNREADABLE)
def test_what_cannot_be_decoded_meets_no_condition_on_its_payload(
    criteria: Any, fits: bool
) -> None:
    assert Selection(**criteria).fits(letter(problem="Not JSON")) is fits


WHOLE: list[tuple[dict[str, Any], bool]] = [
    ({}, True),
    ({"queue": "events", "kind": "undeliverable"}, True),
    ({"name": "order.placed"}, False),
    ({"undecodable": False}, False),
    ({"exactly": frozenset()}, False),
]


@pytest.mark.parametrize(("criteria", "whole"), WHOLE)
def test_whole_queues_are_selected_by_nothing_else(criteria: Any, whole: bool) -> None:
    assert Selection(**criteria).whole_queues is whole


def test_the_error_of_a_letter_is_the_most_exact_that_is_known() -> None:
    reason: dict[str, str | int] = {REASON_HEADER: "gave up", TRACEBACK_HEADER: "Traceback …"}
    assert letter(reason, last_error="no money", problem="p").error == "no money"
    assert letter(reason, problem="not JSON").error == "gave up"
    assert letter(problem="not JSON").error == "not JSON"
    assert letter().error == ""
    assert letter(reason).traceback == "Traceback …"
    assert (letter().traceback, letter().reason, letter().payload) == (None, None, None)
    texts = letter(reason, problem="p", first_error="f", last_error="l").texts()
    assert list(texts) == ["gave up", "p", "f", "l"]
    assert list(letter(first_error="", last_error="l").texts()) == ["l"]


def test_only_what_is_in_flight_is_held() -> None:
    stored = StoredMessage("1", "m-1", DEAD, b"{}", state="in-flight")
    assert Letter(stored, WorkQueue("events"), "undeliverable", Contents(id="m-1")).held
    assert not letter().held


def test_a_stored_message_is_read_like_a_delivery() -> None:
    properties = Properties(correlation_id="c-1")
    stored = StoredMessage(
        "1", "m-1", DEAD, b"{}", {"a": 1}, priority=7, ordering_key="k", properties=properties
    )
    delivery = delivery_of(stored)
    assert (delivery.id, delivery.body, delivery.headers) == ("m-1", b"{}", {"a": 1})
    assert (delivery.receipt.queue, delivery.problem) == (DEAD, None)
    assert (delivery.receipt.priority, delivery.receipt.ordering_key) == (7, "k")
    assert delivery.properties is properties
    headers = {REASON_HEADER: "r", ERROR_TYPE_HEADER: "E", TRACEBACK_HEADER: "t", "mine": 1}
    assert without_reason(headers) == {"mine": 1}


# -- moving --------------------------------------------------------------------------------------


class Reader:
    """Reads bodies that are ids; renews all but those that it does not like."""

    def read(self, delivery: Delivery, queue: str) -> Contents:
        original = delivery.headers.get("from")
        return Contents(
            id=delivery.body.decode(), original_queue=None if original is None else str(original)
        )

    def renewed(self, delivery: Delivery, queue: str, edit: Edit | None = None) -> Fresh:
        if delivery.body.startswith(b"bad"):
            raise InvalidMessageError("it cannot be renewed")
        body = delivery.body if edit is None else str(edit.data).encode()
        return Fresh(body, {"renewed": 1}, Properties(type="fresh"))

    def checkpoint_id(self, delivery: Delivery, id: str, queue: str) -> str:
        return f"{queue}:{id}"


class Choosy(MemoryTransport):
    """Notes what it settles, and refuses what it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.settled: list[Settlement] = []
        self.refuses: dict[str, MatadorError] = {}
        self.breaks: MatadorError | None = None
        self.go = asyncio.Event()
        self.go.set()
        self.waits = False

    async def settle(self, settlements: Sequence[Settlement]) -> Sequence[MatadorError | None]:
        self.waits = not self.go.is_set()
        await self.go.wait()
        self.waits = False
        if self.breaks is not None and not isinstance(settlements[0], Release):
            raise self.breaks
        found: list[MatadorError | None] = []
        for one in settlements:
            refused = self.refuses.get(one.message.id) if isinstance(one, Retry) else None
            self.settled.append(one)
            found += [refused] if refused is not None else await super().settle([one])
        return found


@pytest_asyncio.fixture
async def transport() -> AsyncIterator[Choosy]:
    transport = Choosy()
    await transport.connect()
    await transport.apply_topology(TOPOLOGY)
    yield transport
    await transport.disconnect()


class Desk:
    """An office, and what is in its queues."""

    def __init__(self, transport: Choosy, *, forgets: bool = True) -> None:
        self.transport = transport
        self.clock = ManualClock()
        self.checked = 0
        self.forgotten: list[str] = []
        self.office = DeadLetterOffice(
            transport,
            TOPOLOGY,
            Reader(),
            self.clock,
            self._check,
            self._forget if forgets else None,
        )

    def _check(self) -> None:
        self.checked += 1

    async def _forget(self, id: str) -> None:
        self.forgotten.append(id)

    async def put(self, *ids: str, queue: str = DEAD, **options: Any) -> None:
        sent = [Message(f"t-{one}", queue, one.encode(), **options) for one in ids]
        assert not any(await self.transport.send(sent))

    async def ids(self, queue: str = DEAD) -> list[str]:
        return [one.body.decode() async for one in self.transport.browse(queue)]


async def test_what_is_sent_back_keeps_its_priority_and_its_key(transport: Choosy) -> None:
    desk = Desk(transport)
    await desk.put("a", priority=7, ordering_key="k", headers={REASON_HEADER: "r"})
    told: list[int] = []
    moved = await desk.office.redrive(Selection(), progress=told.append)
    assert (moved.done, moved.gone, moved.held, moved.failed) == (1, 0, 0, [])
    assert told == [1, 0]
    (settled,) = transport.settled
    assert isinstance(settled, Retry)
    message = settled.message
    assert (message.id, message.queue, message.delay) == ("a", "shop.events", 0.0)
    assert (message.priority, message.ordering_key) == (7, "k")
    assert (message.headers, message.properties) == ({"renewed": 1}, Properties(type="fresh"))
    assert desk.forgotten == [], "its steps are needed"
    assert desk.checked > 0


@pytest.mark.parametrize(
    ("original", "home"),
    [("shop.billing", "shop.billing"), ("gone.queue", "shop.events"), (None, "shop.events")],
)
async def test_a_letter_goes_back_to_where_it_was_first(
    transport: Choosy, original: str | None, home: str
) -> None:
    desk = Desk(transport)
    await desk.put("a", headers={} if original is None else {"from": original})
    (place,) = await desk.office.choose()
    assert (place.dead_letters, place.id, place.home) == (DEAD, "a", home)
    await desk.office.redrive([place])
    assert await desk.ids(home) == ["a"]


async def test_what_cannot_be_moved_stays_and_says_why(transport: Choosy) -> None:
    desk = Desk(transport)
    await desk.put("a", "bad-1", "refused", "b")
    transport.refuses["refused"] = MatadorError("the queue is full")
    moved = await desk.office.redrive(Selection())
    assert (moved.done, moved.gone, moved.held) == (2, 0, 0)
    assert sorted(moved.failed) == [
        ("bad-1", "it cannot be renewed"),
        ("refused", "the queue is full"),
    ]
    assert await desk.ids() == ["bad-1", "refused"]
    assert await desk.ids("shop.events") == ["a", "b"]
    transport.refuses.clear()
    assert (await desk.office.purge(Selection())).done == 2, "they were given back"


async def test_a_broker_that_fails_keeps_nothing_held(transport: Choosy) -> None:
    desk = Desk(transport)
    await desk.put("a", "b")
    transport.breaks = MatadorError("down")
    with pytest.raises(MatadorError, match="down"):
        await desk.office.redrive(Selection())
    assert [type(one) for one in transport.settled] == [Release, Release]
    transport.breaks = None
    assert (await desk.office.redrive(Selection())).done == 2


async def test_a_purge_forgets_the_steps_of_what_it_deleted(transport: Choosy) -> None:
    desk = Desk(transport)
    await desk.put("a", "b")
    (first, _) = await desk.office.choose()
    told: list[int] = []
    assert (await desk.office.purge([first], progress=told.append)).done == 1
    assert (desk.forgotten, sum(told)) == (["shop.events:a"], 1)
    assert isinstance(transport.settled[0], Complete)
    assert (await Desk(transport, forgets=False).office.purge(Selection())).done == 1


async def test_an_edited_letter_goes_back_with_its_new_payload(transport: Choosy) -> None:
    desk = Desk(transport)
    await desk.put("a")
    (place,) = await desk.office.choose()
    assert (await desk.office.redrive_edited(place, "edited")).done == 1
    assert await desk.ids("shop.events") == ["edited"]


async def test_a_move_that_is_cancelled_finishes_its_batch(
    transport: Choosy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letters, "BATCH", 2)
    desk = Desk(transport)
    await desk.put("a", "b", "c")
    transport.go.clear()
    moving = asyncio.create_task(desk.office.redrive(Selection()))
    await wait_for(lambda: transport.waits)
    moving.cancel()
    transport.go.set()
    await asyncio.gather(moving, return_exceptions=True)
    assert moving.cancelled()
    assert await desk.ids("shop.events") == ["a", "b"]
    assert await desk.ids() == ["c"]


async def test_batches_are_of_one_queue_each(
    transport: Choosy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letters, "BATCH", 2)
    desk, taken = Desk(transport), list[tuple[str, int]]()
    take = transport.take

    async def noted(queue: str, positions: Sequence[str]) -> Sequence[Delivery | None]:
        taken.append((queue, len(positions)))
        return await take(queue, positions)

    monkeypatch.setattr(transport, "take", noted)
    await desk.put("a", "b", "c")
    await desk.put("d", queue="shop.billing.undeliverable")
    assert (await desk.office.redrive(Selection())).done == 4
    assert taken == [(DEAD, 2), (DEAD, 1), ("shop.billing.undeliverable", 1)]


async def test_letters_that_others_hold_are_counted_apart_from_those_that_are_gone(
    transport: Choosy,
) -> None:
    desk = Desk(transport)
    await desk.put("a", "b", "c")
    places = await desk.office.choose()
    subscription = await transport.subscribe(DEAD, prefetch=2)
    first, second = await subscription.receive(2)
    await transport.settle([Complete(first.receipt)])
    told: list[int] = []
    moved = await desk.office.redrive(places, progress=told.append)
    assert (moved.done, moved.gone, moved.held, moved.failed) == (1, 1, 1, [])
    assert sum(told) == 2, "the one that is held is not finished"
    moving = asyncio.create_task(desk.office.redrive(places, patience=5))
    await transport.settle([Release(second.receipt)])
    assert (await moving).done == 1
    await subscription.close()


@pytest.mark.parametrize(("limit", "found"), [(None, 3), (2, 2), (0, 0), (9, 3)])
async def test_a_limit_is_kept_over_all_queues(
    transport: Choosy, limit: int | None, found: int
) -> None:
    desk = Desk(transport)
    await desk.put("a", "b")
    await desk.put("c", queue="shop.billing.undeliverable")
    assert len(await desk.office.choose(limit=limit)) == found
    ids = [one.id async for one in desk.office.browse(limit=limit)]
    assert ids == ["a", "b", "c"][:found]
    (queue, kind), _ = desk.office.queues()
    assert len([one async for one in desk.office.browse_queue(queue, kind, limit=1)]) == 1


def test_queues_are_chosen_by_name_and_kind(transport: Choosy) -> None:
    office = Desk(transport).office
    names = [(queue.name, kind) for queue, kind in office.queues()]
    assert names == [("events", "undeliverable"), ("billing", "undeliverable")]
    for given in ("billing", "shop.billing"):
        ((queue, _),) = office.queues(Selection(queue=given))
        assert queue.name == "billing"
    assert office.queues(Selection(kind="unhandled")) == []
    with pytest.raises(QueueNotFoundError):
        office.queues(Selection(queue="nothing"))
    assert office.patience == 1.0


async def test_whole_queues_are_counted_by_the_broker_and_others_are_read(
    transport: Choosy, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk, browsed = Desk(transport), list[str]()
    browse = transport.browse

    def noted(queue: str, **options: Any) -> AsyncIterator[StoredMessage]:
        browsed.append(queue)
        return browse(queue, **options)

    monkeypatch.setattr(transport, "browse", noted)
    await desk.put("a", "b")
    assert await desk.office.count() == 2
    assert await desk.office.count(Selection(queue="billing")) == 0
    assert browsed == []
    assert await desk.office.count(Selection(ids=("a",))) == 1
    assert browsed


async def test_a_queue_that_was_never_created_has_no_dead_letters() -> None:
    transport = Choosy()
    await transport.connect()
    await transport.apply_topology(Topology("shop", queues=["billing"]))
    desk = Desk(transport)
    await desk.put("a", queue="shop.billing.undeliverable")
    assert await desk.office.count() == 1
    await transport.disconnect()


async def test_a_transport_that_cannot_browse_says_so() -> None:
    transport = MemoryTransport(without=["browse", "depth"])
    office = DeadLetterOffice(transport, TOPOLOGY, Reader(), ManualClock(), lambda: None, None)
    for asked in (office.choose(), office.count(), office.redrive([Place(DEAD, "1", "a", "h")])):
        with pytest.raises(UnsupportedError, match="memory cannot browse messages"):
            await asked
