"""The topology: names, limits, every problem at once."""

from __future__ import annotations

from dataclasses import fields
from datetime import timedelta
from typing import Any

import pytest

from matador.errors import ConfigurationError, InvalidTopologyError, QueueNotFoundError
from matador.model.topology import (
    Binding,
    DeadLetterQueue,
    DeadLetters,
    RetryQueues,
    Topology,
    WorkQueue,
)

# -- names ----------------------------------------------------------------------------------------

GOOD = ["a", "A", "shop", "shop-1", "shop_1", "S2"]
BAD = ["", " ", "1shop", "-shop", "_shop", "sh op", "shöp", "shop.eu", "shop/eu", "shop\n", "a\x00"]


@pytest.mark.parametrize("name", GOOD)
def test_good_names(name: str) -> None:
    topology = Topology(name, queues=[name])
    assert topology.full_name(name) == f"{name}.{name}"


@pytest.mark.parametrize("name", [*BAD, None, 5])
def test_a_bad_namespace_is_a_problem(name: Any) -> None:
    with pytest.raises(InvalidTopologyError, match=r"namespace .* must start with a letter"):
        Topology(name, queues=["events"])


@pytest.mark.parametrize("name", BAD)
def test_a_bad_queue_name_is_a_problem(name: str) -> None:
    with pytest.raises(InvalidTopologyError, match=r"queue .* must start with a letter"):
        Topology("shop", queues=[name])


@pytest.mark.parametrize("name", [None, 5, b"events"])
def test_a_queue_name_must_be_a_string(name: Any) -> None:
    with pytest.raises(ConfigurationError, match="name must be a string"):
        Topology("shop", queues=[name])


def test_dots_need_exact() -> None:
    with pytest.raises(InvalidTopologyError, match=r"dots need exact=True"):
        Topology("shop", queues=["legacy.orders"])
    topology = Topology("shop", queues=[WorkQueue("legacy.orders", exact=True)])
    assert topology.full_name("legacy.orders") == "legacy.orders"


@pytest.mark.parametrize("name", ["", " ", "a b", "a\n", ".a"])
def test_even_an_exact_name_must_be_one(name: str) -> None:
    with pytest.raises(InvalidTopologyError, match="invalid name"):
        Topology("shop", queues=[WorkQueue(name, exact=True)])


def test_there_must_be_a_queue() -> None:
    with pytest.raises(InvalidTopologyError, match="at least one"):
        Topology("shop", queues=[])


@pytest.mark.parametrize(
    "queues",
    [
        ["events", "events"],
        ["events", WorkQueue("events", concurrency=2)],
        ["events", WorkQueue("events", exact=True)],
    ],
    ids=str,
)
def test_names_are_unique(queues: list[str | WorkQueue]) -> None:
    with pytest.raises(InvalidTopologyError, match="duplicate queue 'events'"):
        Topology("shop", queues=queues)


def test_an_exact_name_may_not_be_the_full_name_of_another_queue() -> None:
    with pytest.raises(InvalidTopologyError, match="another queue has this full name"):
        Topology("shop", queues=["events", WorkQueue("shop.events", exact=True)])


def test_every_problem_is_listed_at_once() -> None:
    with pytest.raises(InvalidTopologyError, match="Topology validation failed") as caught:
        Topology("1", queues=["a b", "x", "x", WorkQueue("y", fallback="z")])
    assert len(caught.value.problems) == 4


# -- fallbacks ------------------------------------------------------------------------------------


def test_a_fallback_must_be_a_queue_and_a_close_one_is_suggested() -> None:
    with pytest.raises(
        InvalidTopologyError, match="unknown fallback queue 'event'; did you mean 'events'"
    ):
        Topology("shop", queues=["events", WorkQueue("billing", fallback="event")])


@pytest.mark.parametrize("length", [1, 2, 3])
def test_fallbacks_may_not_go_round_in_a_circle(length: int) -> None:
    queues = [WorkQueue(f"q{i}", fallback=f"q{(i + 1) % length}") for i in range(length)]
    with pytest.raises(InvalidTopologyError, match="its fallbacks form a cycle") as caught:
        Topology("shop", queues=[*queues, WorkQueue("outside", fallback="q0")])
    assert len(caught.value.problems) == length


def test_fallbacks_in_a_row_are_fine() -> None:
    a, b = WorkQueue("a", fallback="b"), WorkQueue("b", fallback="c")
    assert Topology("shop", queues=[a, b, "c"]).queue("a").fallback == "b"


# -- options --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"concurrency": 0}, "concurrency must be at least 1"),
        ({"concurrency": -1}, "concurrency must be at least 1"),
        ({"concurrency": 1.5}, "concurrency must be a whole number"),
        ({"concurrency": True}, "concurrency must be a whole number"),
        ({"consumer_timeout": -1}, "consumer_timeout must be at least 0"),
        ({"consumer_timeout": float("nan")}, "consumer_timeout must be a finite number"),
        ({"consumer_timeout": float("inf")}, "consumer_timeout must be a finite number"),
        ({"consumer_timeout": "1"}, "consumer_timeout must be seconds or a timedelta"),
        ({"consumer_timeout": timedelta(seconds=-1)}, "consumer_timeout must be at least 0"),
        ({"retention": -1}, "retention must be at least 0"),
    ],
    ids=str,
)
def test_options_of_a_queue_are_checked(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigurationError, match=f"queue 'q': {problem}"):
        WorkQueue("q", **options)


def test_times_may_be_seconds_or_timedeltas() -> None:
    queue = WorkQueue("q", consumer_timeout=timedelta(minutes=1), retention=5)
    assert (queue.consumer_timeout, queue.retention) == (60.0, 5.0)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"default_delay": -1}, "default_delay must be at least 0"),
        ({"max_delay": -1}, "max_delay must be at least 0"),
        ({"default_delay": 10, "max_delay": 5}, r"max_delay \(5 s\) must be at least"),
        ({"default_delay": 301}, "max_delay"),
    ],
    ids=str,
)
def test_delays_of_retries_are_checked(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        RetryQueues(**options)


def test_retries_have_defaults_and_a_part_can_be_changed() -> None:
    assert RetryQueues() == RetryQueues(default_delay=1, max_delay=300, enabled=True)
    assert RetryQueues(default_delay=2).max_delay == 300
    assert RetryQueues(default_delay=5, max_delay=5).default_delay == 5
    assert not RetryQueues(enabled=False).enabled


@pytest.mark.parametrize(
    ("options", "problem"),
    [({"max_length": 0}, "max_length"), ({"max_length": "1"}, "max_length"), ({"ttl": -1}, "ttl")],
)
def test_options_of_dead_letters_are_checked(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigurationError, match=f"dead letters: {problem}"):
        DeadLetterQueue(**options)


def test_dead_letters_are_kept_unless_switched_off() -> None:
    assert DeadLetters().enabled_kinds == ("unhandled", "undeliverable")
    assert DeadLetters(unhandled=False).enabled_kinds == ("undeliverable",)
    assert DeadLetters(unhandled=False, undeliverable=False).enabled_kinds == ()
    limited = DeadLetters(undeliverable=DeadLetterQueue(max_length=5, ttl=timedelta(days=1)))
    assert limited["undeliverable"].max_length == 5
    assert limited["undeliverable"].ttl == 86400.0
    assert limited["unhandled"] == DeadLetterQueue()


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"dead_letters": False}, "dead_letters must be DeadLetters(…), got False"),
        ({"retry": False}, "retry must be RetryQueues(…), got False"),
    ],
)
def test_an_option_of_another_type_is_not_the_default(
    options: dict[str, Any], problem: str
) -> None:
    with pytest.raises(InvalidTopologyError) as caught:
        Topology("shop", queues=["events"], **options)
    assert problem in str(caught.value)


# -- look-ups -------------------------------------------------------------------------------------

SHOP = Topology(
    "shop",
    queues=["events", WorkQueue("billing", concurrency=4), WorkQueue("old.orders", exact=True)],
)


def test_the_first_queue_is_the_default() -> None:
    assert SHOP.default_queue.name == "events"


@pytest.mark.parametrize(
    ("name", "full"),
    [
        ("events", "shop.events"),
        ("shop.events", "shop.events"),
        ("billing", "shop.billing"),
        ("old.orders", "old.orders"),
    ],
)
def test_a_queue_is_found_by_its_short_and_its_full_name(name: str, full: str) -> None:
    assert SHOP.full_name(name) == full
    assert SHOP.has_queue(name)
    assert SHOP.queue(name).name in (name, name.removeprefix("shop."))


@pytest.mark.parametrize("name", ["", "event", "shop", "shop.old.orders", "shop.events.retry"])
def test_an_unknown_queue_is_not_found(name: str) -> None:
    assert not SHOP.has_queue(name)
    with pytest.raises(QueueNotFoundError, match=r"only events, billing, old\.orders"):
        SHOP.queue(name)


def test_an_unknown_queue_suggests_a_close_one() -> None:
    with pytest.raises(QueueNotFoundError, match="did you mean 'billing'"):
        SHOP.queue("biling")


def test_dead_letters_are_named_after_their_queue() -> None:
    assert SHOP.dead_letter_name("events", "unhandled") == "shop.events.unhandled"
    assert SHOP.dead_letter_name("old.orders", "undeliverable") == "old.orders.undeliverable"


def test_every_dead_letter_queue_is_listed() -> None:
    topology = Topology("shop", queues=["a", "b"], dead_letters=DeadLetters(unhandled=False))
    assert [name for _, _, name in topology.dead_letter_names()] == [
        "shop.a.undeliverable",
        "shop.b.undeliverable",
    ]


def test_definitions_can_be_reused() -> None:
    queue = WorkQueue("events", concurrency=2)
    assert Topology("one", queues=[queue]).queues == Topology("two", queues=[queue]).queues


def test_one_string_is_one_queue() -> None:
    assert [queue.name for queue in Topology("shop", queues="events").queues] == ["events"]


def test_everything_is_frozen() -> None:
    for value in (SHOP, SHOP.default_queue, SHOP.retry, SHOP.dead_letters, DeadLetterQueue()):
        with pytest.raises(AttributeError):
            setattr(value, fields(value)[0].name, None)


# -- types and arguments of queues ----------------------------------------------------------------


def test_types_and_arguments_are_kept_and_cannot_be_changed_behind_its_back() -> None:
    given = {"x-max-length": 5, "x-single-active-consumer": True, "x-dead-letter-exchange": None}
    queue = WorkQueue("events", type="classic", arguments=given)
    given["x-max-length"] = 6
    assert (queue.type, queue.arguments["x-max-length"]) == ("classic", 5)
    assert queue == WorkQueue("events", type="classic", arguments={**given, "x-max-length": 5})
    assert queue != WorkQueue("events", type="classic")
    assert len({queue, WorkQueue("events")}) == 2, "still hashable"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"type": "quorom"}, "did you mean 'quorum'"),
        ({"type": "quorum", "priorities": True}, "a quorum queue cannot have priorities"),
        ({"type": "classic", "exact": True}, "have no effect on an exact queue"),
        ({"arguments": {"x-a": 1}, "exact": True}, "have no effect on an exact queue"),
        ({"arguments": [("x-a", 1)]}, "must be a mapping"),
        ({"arguments": {"max-length": 1}}, "invalid argument name"),
        ({"arguments": {5: 1}}, "invalid argument name"),
        ({"arguments": {"x-a": 1.5}}, "x-a must be a string, an integer"),
        ({"arguments": {"x-a": [1]}}, "x-a must be a string, an integer"),
        ({"arguments": {"x-a": 1 << 63}}, "does not fit in 64 bits"),
        ({"arguments": {"x-queue-type": "classic"}}, "as type="),
    ],
)
def test_types_and_arguments_that_cannot_be(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        WorkQueue("events", **options)


@pytest.mark.parametrize("exact", [True, False])
def test_a_name_whose_dead_letters_no_broker_takes_is_a_problem(exact: bool) -> None:
    longest = 255 - len(".undeliverable") - (0 if exact else len("shop."))
    Topology("shop", queues=[WorkQueue("q" * longest, exact=exact)])
    with pytest.raises(InvalidTopologyError, match="longer than 255 bytes"):
        Topology("shop", queues=[WorkQueue("q" * (longest + 1), exact=exact)])


def test_a_publisher_needs_exchanges_only() -> None:
    topology = Topology("shop", exchanges=["events"])
    assert (topology.queues, list(topology.dead_letter_names())) == ((), [])
    with pytest.raises(QueueNotFoundError, match="only exchanges"):
        _ = topology.default_queue
    with pytest.raises(QueueNotFoundError, match="only exchanges"):
        topology.queue("events")


def test_dlq_is_off_unless_asked_for() -> None:
    assert DeadLetters().enabled_kinds == ("unhandled", "undeliverable")
    letters = DeadLetters(unhandled=False, dlq=DeadLetterQueue(exchange="dlx", routing_key="dead"))
    assert letters.enabled_kinds == ("undeliverable", "dlq")
    assert (letters["dlq"].exchange, letters["dlq"].routing_key) == ("dlx", "dead")
    topology = Topology("shop", queues=["events"], dead_letters=letters)
    assert topology.dead_letter_name("events", "dlq") == "shop.events.dlq"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"create": False}, "needs exact"),
        ({"exact": True, "expires": 5}, "create=True"),
        ({"exact": True, "create": False, "type": "classic"}, "create=True"),
        ({"expires": 5, "type": "quorum"}, "temporary"),
        ({"expires": 5, "retention": 5}, "temporary"),
        ({"expires": 0}, "expires"),
    ],
)
def test_combinations_that_make_no_sense(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        WorkQueue("q", **options)


@pytest.mark.parametrize(
    "options",
    [{"exchange": ""}, {"exchange": "a b"}, {"routing_key": ""}, {"routing_key": "x" * 256}],
)
def test_routes_of_dead_letters_are_checked(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="dead letters"):
        DeadLetterQueue(**options)


def test_who_creates_a_queue() -> None:
    assert WorkQueue("q").create
    assert not WorkQueue("q", exact=True).create
    made = WorkQueue("orders.created", exact=True, create=True, type="classic", expires=60)
    assert (made.create, made.expires) == (True, 60.0)


def test_a_temporary_queue_has_no_dead_letters_but_dlq() -> None:
    queues = ["lasting", WorkQueue("short", expires=60)]
    found = Topology("t", queues=queues, dead_letters=DeadLetters(dlq=True)).dead_letter_names()
    assert [name for _, _, name in found] == [
        "t.lasting.unhandled",
        "t.lasting.undeliverable",
        "t.lasting.dlq",
        "t.short.dlq",
    ]


def test_a_queue_or_a_binding_can_be_left_out() -> None:
    bindings = [Binding("e", "a", "x"), Binding("e", "a", "y"), Binding("e", "b", "x")]
    topology = Topology("t", queues=["a", "b"], exchanges=["e"], bindings=bindings)
    without = topology.without_queue("t.a")
    assert ([queue.name for queue in without.queues], without.bindings) == (["b"], (bindings[2],))
    assert topology.without_binding("e", "t.a", "x").bindings == tuple(bindings[1:])
    assert topology.bindings == tuple(bindings), "the original is as it was"
    assert without.without_queue("t.b").queues == ()
