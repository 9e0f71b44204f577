"""Replies that wait for their receiver, dead letters as messages, jobs in messages, and notes."""

from __future__ import annotations

import asyncio

import pytest

from matador.model import job as names
from matador.model.message import (
    ERROR_TYPE_HEADER,
    REASON_HEADER,
    TRACEBACK_HEADER,
    DeadLetter,
    Delivery,
    Message,
    Properties,
    Receipt,
)
from matador.model.topology import Exchange, Topology, WorkQueue
from matador.transports.kit.backoff import Backoff
from matador.transports.kit.dead_letters import dead_letter_of
from matador.transports.kit.jobs import as_canceled, as_new, record_of, split_body, whole
from matador.transports.kit.notes import ignored_arguments, ignored_exchanges
from matador.transports.kit.properties import headers_with_properties, split_properties
from matador.transports.kit.replies import ReplySubscription
from matador.transports.kit.routing import RoutingTable, TopicTable
from matador.transports.kit.wakeup import Waiters, Wakeup
from matador.transports.kit.window import AckWindow

RECEIPT = Receipt("shop.events", 1, 1, False)


def reply(number: int) -> Delivery:
    return Delivery(b"%d" % number, {}, RECEIPT)


def replies() -> tuple[ReplySubscription, list[ReplySubscription]]:
    closed = list[ReplySubscription]()
    return ReplySubscription("there", closed.append), closed


async def test_replies_are_received_in_order_and_as_many_as_are_asked_for() -> None:
    subscription, _ = replies()
    for number in range(3):
        subscription.put(reply(number))
    assert [one.body for one in await subscription.receive(2)] == [b"0", b"1"]
    assert [one.body for one in await subscription.receive(2)] == [b"2"]
    waiting = asyncio.create_task(subscription.receive(2))
    await asyncio.sleep(0)
    assert not waiting.done()
    subscription.put(reply(3))
    assert [one.body for one in await waiting] == [b"3"]


async def test_a_listener_gets_what_waits_and_what_comes() -> None:
    subscription, _ = replies()
    subscription.put(reply(1))
    heard = list[bytes]()
    subscription.listen(lambda one: heard.append(one.body))
    subscription.put(reply(2))
    assert heard == [b"1", b"2"]


async def test_closing_replies_ends_the_wait_and_is_reported_once() -> None:
    subscription, closed = replies()
    waiting = asyncio.create_task(subscription.receive(1))
    await asyncio.sleep(0)
    await subscription.close()
    await subscription.close()
    assert (await waiting, closed, subscription.active) == ((), [subscription], False)
    subscription.put(reply(1))
    assert await subscription.receive(1) == ()


async def test_a_dead_letter_keeps_what_travels_with_a_message_but_its_delay() -> None:
    properties = Properties(reply_to="there", correlation_id="7")
    original = Message(
        "1", "shop.events", b"body", {"a": 1}, 5.0, 7, "ada", properties
    )  # fmt: skip
    letter = dead_letter_of(DeadLetter(RECEIPT, "undeliverable", "broken"), original)
    assert letter == Message(
        "1",
        "shop.events.undeliverable",
        b"body",
        {"a": 1, REASON_HEADER: "broken"},
        0.0,
        7,
        "ada",
        properties,
    )
    given = Message("2", "elsewhere", b"given", {"b": 2})
    letter = dead_letter_of(DeadLetter(RECEIPT, "undeliverable", "broken", given), original)
    assert (letter.id, letter.body) == ("2", b"given")
    assert letter.headers == {"b": 2, REASON_HEADER: "broken"}
    bare = dead_letter_of(DeadLetter(RECEIPT, "undeliverable", "broken", bare=True), original)
    assert bare == Message("1", "shop.events.undeliverable", b"body", {REASON_HEADER: "broken"})


def test_every_property_travels() -> None:
    sent = Properties("key", "there", "7", "type", 1.5)
    headers = headers_with_properties(Message("1", "q", b"", {}, properties=sent))
    assert split_properties(headers) == ({}, sent, None)
    empty = {"a": 1}
    assert headers_with_properties(Message("1", "q", b"", empty, properties=Properties())) is empty


async def test_pauses_reset_after_a_success_and_a_loop_waits_as_long_as_they_say() -> None:
    backoff = Backoff(0.0, 5.0)
    await backoff.sleep()
    backoff = Backoff(2.0, 5.0)
    assert [backoff.next(), backoff.next(), backoff.next()] == [2.0, 4.0, 5.0]
    backoff.reset()
    assert [backoff.next(), backoff.next()] == [2.0, 4.0]


async def test_a_receiver_that_is_already_awake_leaves_the_turn_to_the_next() -> None:
    waiters, awake, asleep = Waiters(), Wakeup(), Wakeup()
    waiters.enter(awake)
    waiters.enter(asleep)
    awake.wake()
    waiters.wake(1)
    assert (asleep.is_set, len(waiters)) == (True, 0)


async def test_several_wake_ups_before_the_wait_are_one_and_a_timeout_is_none() -> None:
    wakeup = Wakeup()
    wakeup.wake()
    wakeup.wake()
    assert await wakeup.wait(timeout=60)
    assert await wakeup.wait(timeout=0) is False
    waiting = asyncio.create_task(wakeup.wait())
    await asyncio.sleep(0)
    wakeup.wake()
    wakeup.wake()
    assert await waiting
    assert not wakeup.is_set


async def test_a_cancelled_receiver_leaves_the_line() -> None:
    waiters, wakeup = Waiters(), Wakeup()
    waiting = asyncio.create_task(waiters.wait(wakeup))
    await asyncio.sleep(0)
    assert len(waiters) == 1
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert len(waiters) == 0


def test_what_leaves_the_window_is_not_acknowledged() -> None:
    window = AckWindow[str]()
    for position in (1, 2, 3):
        window.add(position, str(position))
    window.finish(1)
    assert window.discard(1) == "1"
    assert (window.has_finished, window.unfinished, window.take_prefix()) == (False, 2, None)
    window.finish(2)
    assert (window.take_prefix(), len(window), window.has_finished) == (2, 1, False)
    window.finish(3)
    assert window.clear() == ["3"]
    assert (window.has_finished, window.unfinished) == (False, 0)


def test_bindings_can_be_removed_one_by_one() -> None:
    table = RoutingTable()
    table.apply(Topology("shop", queues=["a"], exchanges=["topic", Exchange("fan", "fanout")]))
    for pattern in ("orders.*", "orders.#"):
        table.bind("topic", "q", pattern)
    for key in ("one", "two"):
        table.bind("fan", "q", key)
    table.bind("nowhere", "q", "#")
    assert table.queues("topic", "orders.paid") == ["q"]
    table.unbind("topic", "q", "orders.*")
    assert table.queues("topic", "orders.paid") == ["q"]
    table.unbind("topic", "q", "orders.#")
    table.unbind("topic", "q", "orders.#")
    assert table.queues("topic", "orders.paid") == []
    table.unbind("fan", "q", "one")
    assert table.queues("fan", "") == ["q"]
    table.remove_queue("q")
    table.remove_queue("q")
    assert table.queues("fan", "") == []
    table.bind("fan", "q", "one")
    assert table.queues("fan", "") == ["q"]


def test_an_exchange_keeps_the_type_that_it_had_first() -> None:
    table = RoutingTable()
    assert table.apply(Topology("shop", queues=["a"], exchanges=[Exchange("x", "direct")])) == []
    (note,) = table.apply(Topology("shop", queues=["a"], exchanges=[Exchange("x", "fanout")]))
    assert "type is 'direct', ours would be 'fanout'" in note.text
    table.bind("x", "q", "a.b")
    assert (table.queues("x", "a.b"), table.queues("x", "other")) == (["q"], [])


def test_removing_a_pattern_leaves_those_beside_and_below_it() -> None:
    table = TopicTable()
    for pattern in ("a", "a.b", "a.c"):
        table.bind(pattern, "q")
    table.unbind("a.b", "q")
    table.unbind("a.x.y", "q")
    assert [list(table.queues(key)) for key in ("a", "a.b", "a.c")] == [["q"], [], ["q"]]
    table.unbind("a", "q")
    assert [list(table.queues(key)) for key in ("a", "a.c")] == [[], ["q"]]


def test_notes_name_the_queues_that_they_are_about() -> None:
    topology = Topology(
        "shop",
        queues=[
            "plain",
            WorkQueue("typed", type="classic"),
            WorkQueue("argued", arguments={"x-max-age": "1D"}),
        ],
        exchanges=["topic"],
    )
    assert [one.queue for one in ignored_arguments(topology)] == ["shop.typed", "shop.argued"]
    assert ["'topic'" in one.text for one in ignored_exchanges(topology)] == [True]


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (0, 0), (7, 7), ("7", 7), (2**53, 2**53), (2**53 + 1, 2**53), (-1, 0), ("x", 3), (None, 3),
        (2.9, 2),
    ],
)  # fmt: skip
def test_a_header_is_read_as_a_whole_number(value: object, number: int) -> None:
    assert whole({"h": value}, "h", 3) == number  # pyright: ignore[reportArgumentType]
    assert whole({}, "h", 3) == 3


def test_a_job_of_a_message_has_what_its_headers_say() -> None:
    headers = {
        names.NAME: "welcome",
        names.ATTEMPTS: 2,
        names.MAX_ATTEMPTS: 5,
        names.CREATED_AT: 1_500,
        names.FAILED_AT: 2_500,
        names.ERROR: "broken",
        REASON_HEADER: "another",
    }
    found = record_of("1", "q", headers, b'{"_jobData":1,"_metadata":{"a":1}}', "failed")
    assert (found.name, found.attempts, found.max_attempts) == ("welcome", 2, 5)
    assert (found.created_at, found.finished_at, found.error) == (1.5, 2.5, "broken")
    assert (found.data, found.metadata) == (b"1", b'{"a":1}')
    bare = record_of("1", "q", {REASON_HEADER: "why"}, b"1", "failed", stored_at=9.0, priority=3)
    assert (bare.created_at, bare.finished_at, bare.error) == (9.0, 9.0, "why")
    assert (bare.max_attempts, bare.priority, bare.metadata) == (1, 3, None)
    waiting = record_of("1", "q", headers, b"1", "waiting", due_at=4.0, progress=b"5", result=b"6")
    assert (waiting.finished_at, waiting.due_at) == (None, 4.0)
    assert (waiting.progress, waiting.result) == (b"5", b"6")
    assert record_of("1", "q", headers, b"1", "failed", finished_at=8.0).finished_at == 8.0


def test_a_canceled_job_says_so_and_a_new_one_says_nothing_of_its_failure() -> None:
    canceled = as_canceled({"own": "x", names.ATTEMPTS: 1}, 2, "enough", 1.5)
    assert canceled == {
        "own": "x",
        names.ATTEMPTS: 2,
        names.ERROR: "enough",
        names.FAILED_AT: 1500,
        ERROR_TYPE_HEADER: "matador.errors.JobCanceledError",
    }
    assert as_new({**canceled, names.RETRY_AT: 1, TRACEBACK_HEADER: "t"}) == {"own": "x"}


def test_a_body_without_the_wrapping_is_all_data() -> None:
    assert split_body(b"\xef\xbb\xbf{}") == (b"{}", None)
    assert split_body(b'{"_jobData":null,"_metadata":null}') == (b"null", None)
