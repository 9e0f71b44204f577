"""Patterns of bindings, against a reference that is slow and plainly right."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from matador.model.topology import Exchange
from matador.transports.kit.routing import RoutingTable, TopicTable, topic_matches

WORDS = st.sampled_from(["a", "b", "c", "*", "#", ""])
PATTERNS = st.lists(WORDS, max_size=5).map(".".join)
KEYS = st.lists(st.sampled_from(["a", "b", "c", ""]), max_size=5).map(".".join)
BINDINGS = st.lists(st.tuples(PATTERNS, st.sampled_from(["one", "two", "three"])), max_size=12)


def matches(pattern: list[str], key: list[str]) -> bool:
    """AMQP's rules, word by word."""
    if not pattern:
        return not key
    first, *rest = pattern
    if first == "#":
        return any(matches(rest, key[taken:]) for taken in range(len(key) + 1))
    return bool(key) and first in ("*", key[0]) and matches(rest, key[1:])


def words(text: str) -> list[str]:
    return text.split(".") if text else []


@given(PATTERNS, KEYS)
def test_a_pattern_matches_what_amqp_says(pattern: str, key: str) -> None:
    assert topic_matches(pattern, key) == matches(words(pattern), words(key))


@given(BINDINGS, st.sets(st.integers(0, 11)), KEYS)
def test_a_table_finds_each_queue_once_also_after_unbinding(
    bindings: list[tuple[str, str]], gone: set[int], key: str
) -> None:
    table = TopicTable()
    for pattern, queue in bindings:
        table.bind(pattern, queue)
    removed = {bindings[place] for place in gone if place < len(bindings)}
    for pattern, queue in removed:
        table.unbind(pattern, queue)
        table.unbind(pattern, queue)
    left = set(bindings) - removed
    expected = {queue for pattern, queue in left if matches(words(pattern), words(key))}
    assert set(table.queues(key)) == expected
    if not left:
        assert table._next == {}, "nothing is kept of what was removed"


@given(BINDINGS, st.sampled_from(["topic", "direct", "fanout"]), KEYS, st.data())
def test_routes_follow_the_type_of_the_exchange(
    bindings: list[tuple[str, str]], type_: str, key: str, data: st.DataObject
) -> None:
    table = RoutingTable()
    table.declare(Exchange("e", type_))  # type: ignore[arg-type] - one of the three
    for pattern, queue in bindings:
        table.bind("e", queue, pattern)
        table.queues("e", key)  # fills the cache, which must not be stale afterwards
    removed: set[tuple[str, str]] = set()
    if bindings:
        removed = data.draw(st.sets(st.sampled_from(bindings)))
    for pattern, queue in removed:
        table.unbind("e", queue, pattern)
    left = set(bindings) - removed

    def fits(pattern: str) -> bool:
        if type_ == "topic":
            return matches(words(pattern), words(key))
        return type_ == "fanout" or pattern == key

    found = table.queues("e", key)
    assert len(found) == len(set(found))
    assert set(found) == {queue for pattern, queue in left if fits(pattern)}
    table.remove_queue("one")
    assert "one" not in table.queues("e", key)
