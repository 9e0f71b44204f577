"""Backoff, wake-ups, the window of acknowledgements, properties in headers, routing."""

from __future__ import annotations

import asyncio
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matador.errors import QueueNotFoundError
from matador.model.message import Message, Properties
from matador.model.topology import Binding, Exchange, Topology
from matador.transports.kit.backoff import Backoff
from matador.transports.kit.properties import (
    ALL_PROPERTIES,
    PROPERTIES_HEADER,
    headers_with_properties,
    refused_properties,
    split_properties,
)
from matador.transports.kit.routing import RoutingTable, TopicTable, topic_matches
from matador.transports.kit.wakeup import Waiters, Wakeup
from matador.transports.kit.window import AckWindow


def test_waits_double_up_to_a_limit_and_start_again_after_a_success() -> None:
    backoff = Backoff(1.0, 5.0)
    assert [backoff.next() for _ in range(5)] == [1.0, 2.0, 4.0, 5.0, 5.0]
    backoff.reset()
    assert backoff.next() == 1.0


async def test_a_wakeup_that_comes_first_is_not_lost() -> None:
    wakeup = Wakeup()
    wakeup.wake()
    assert await wakeup.wait()
    assert not await wakeup.wait(timeout=0)
    waiting = asyncio.create_task(wakeup.wait(timeout=60))
    await asyncio.sleep(0)
    wakeup.wake()
    assert await waiting


async def test_a_wakeup_survives_a_cancelled_wait() -> None:
    wakeup = Wakeup()
    waiting = asyncio.create_task(wakeup.wait())
    await asyncio.sleep(0)
    wakeup.wake()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert wakeup.is_set
    wakeup.clear()
    assert not wakeup.is_set


async def test_the_longest_waiting_is_woken_first() -> None:
    waiters = Waiters()
    wakeups = [Wakeup() for _ in range(3)]
    tasks = [asyncio.create_task(waiters.wait(one)) for one in wakeups]
    await asyncio.sleep(0)
    assert len(waiters) == 3
    waiters.wake(2)
    await asyncio.gather(*tasks[:2])
    assert not tasks[2].done()
    waiters.wake()
    await tasks[2]
    assert not len(waiters)


@given(st.permutations(range(1, 9)), st.integers(0, 8))
def test_everything_finished_is_acknowledged_once_and_the_prefix_is_whole(
    order: list[int], flush_every: int
) -> None:
    window = AckWindow[str]()
    for position in range(1, 9):
        window.add(position, f"item {position}")
    finished: set[int] = set()
    highest = 0
    for count, position in enumerate(order, 1):
        window.finish(position)
        finished.add(position)
        if flush_every and count % flush_every == 0:
            prefix = window.take_prefix()
            if prefix is not None:
                assert prefix > highest
                highest = prefix
            assert set(range(1, highest + 1)) <= finished
            assert highest + 1 not in finished
    last = window.take_prefix()
    assert (last or highest) == 8
    assert len(window) == 0


def test_what_finished_out_of_order_can_be_taken_one_by_one() -> None:
    window = AckWindow[str]()
    for position in (3, 5, 6, 9):
        window.add(position, str(position))
    window.finish(9)
    window.finish(5)
    assert window.has_finished
    assert window.take_prefix() is None
    assert window.take_rest() == [5, 9]
    assert (len(window), window.unfinished) == (2, 2)
    assert window.discard(3) == "3"
    assert window.discard(3) is None
    assert window.clear() == ["6"]


def test_properties_travel_in_one_header() -> None:
    sent = Properties(reply_to="there", correlation_id="7", expires_at=1.5)
    headers = headers_with_properties(Message("1", "q", b"", {"a": 1}, properties=sent))
    assert set(headers) == {"a", PROPERTIES_HEADER}
    assert split_properties(headers) == ({"a": 1}, sent, None)
    plain = {"a": 1}
    assert headers_with_properties(Message("1", "q", b"", plain)) is plain
    assert split_properties(plain) == (plain, None, None)


@pytest.mark.parametrize(
    "text",
    ["", "7", '{"reply_to": 7}', "{", '"\ud800"', '{"a":' * 100_000 + "1" + "}" * 100_000],
    ids=lambda text: ascii(text[:20]),
)
def test_properties_that_cannot_be_read_are_a_problem_not_an_error(text: str) -> None:
    headers, properties, problem = split_properties({PROPERTIES_HEADER: text, "a": 1})
    assert (headers, properties) == ({"a": 1}, None)
    assert PROPERTIES_HEADER in str(problem)


def test_only_properties_that_are_not_carried_are_refused() -> None:
    properties = Properties(type="t", reply_to="r")
    assert refused_properties(properties, ALL_PROPERTIES, "Tiny") is None
    error = refused_properties(properties, frozenset({"type"}), "Tiny")
    assert "Tiny does not carry the message property reply_to" in str(error)


@pytest.mark.parametrize(
    ("pattern", "key", "matches"),
    [
        ("user.#", "user", True),
        ("user.#", "user.a.b", True),
        ("user.#", "users", False),
        ("#", "", True),
        ("#", "a.b.c", True),
        ("*", "a", True),
        ("*", "", False),
        ("*", "a.b", False),
        ("*.b", "a.b", True),
        ("#.b", "b", True),
        ("#.b", "a.x.b", True),
        ("a.#.b", "a.b", True),
        ("a.#.b", "a.x.y.b", True),
        ("a.#.b", "a.x.y", False),
        ("#.#", "a", True),
        ("a.*.#", "a", False),
        ("a", "*", False),
        ("#.a.#", "x.a.y.a", True),
    ],
)
def test_topics_match_as_in_amqp(pattern: str, key: str, matches: bool) -> None:
    assert topic_matches(pattern, key) is matches


_WORDS = st.lists(st.sampled_from(["a", "b"]), max_size=5).map(".".join)
_PATTERNS = st.lists(st.sampled_from(["a", "b", "*", "#"]), min_size=1, max_size=5).map(".".join)


@given(_PATTERNS, _WORDS.filter(bool))
def test_the_trie_agrees_with_a_regular_expression(pattern: str, key: str) -> None:
    parts = {"#": r"(\.[^.]+)*", "*": r"\.[^.]+"}
    expression = "".join(parts.get(word, rf"\.{word}") for word in pattern.split("."))
    assert topic_matches(pattern, key) is (re.fullmatch(expression, f".{key}") is not None)


def test_many_wildcards_are_looked_up_quickly() -> None:
    table = TopicTable()
    table.bind(".".join(["#"] * 30), "q")
    assert list(table.queues(".".join(["a"] * 100))) == ["q"]


def test_exchanges_route_by_their_type_and_a_queue_gets_a_message_once() -> None:
    table = RoutingTable()
    table.apply(
        Topology(
            "shop",
            queues=["all", "paid"],
            exchanges=["topic", Exchange("direct", "direct"), Exchange("fan", "fanout")],
            bindings=[
                Binding("topic", "all", "#"),
                Binding("topic", "paid", "orders.paid"),
                Binding("topic", "paid", "orders.*"),
                Binding("direct", "paid", "orders.*"),
                Binding("fan", "all", "whatever"),
            ],
        )
    )
    assert sorted(table.queues("topic", "orders.paid")) == ["shop.all", "shop.paid"]
    assert table.queues("topic", "") == ["shop.all"]
    assert table.queues("direct", "orders.paid") == []
    assert table.queues("direct", "orders.*") == ["shop.paid"]
    assert table.queues("fan", "x") == ["shop.all"]
    with pytest.raises(QueueNotFoundError, match=r"no exchange 'topics'.*did you mean 'topic'"):
        table.queues("topics", "x")
