"""The handlers of a subscriber: which of them a message is for, and by what names they go."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from matador.errors import ConfigurationError
from matador.model.message import Delivery, Headers, Properties, Receipt
from matador.model.topology import Exchange
from matador.pubsub import registry as module
from matador.pubsub.registry import Registry, SeveralRoute
from matador.runtime.functions import MessageFunction
from matador.runtime.messages import FAILED_HANDLERS, MessageRoute


def function(name: str) -> Callable[..., Any]:
    async def handle(data: Any) -> None: ...

    handle.__qualname__ = handle.__name__ = name
    return handle


def routed(**options: Any) -> Callable[[MessageFunction], MessageRoute]:
    return lambda read: MessageRoute(handler=read.name, function=read, **options)


def registry(*handlers: tuple[str, str], type: Any = "topic", together: bool = False) -> Registry:
    """A registry with handlers, given by their pattern and name."""
    made = Registry(Exchange("events", type), "here", together=together)
    known: dict[str, Callable[..., Any]] = {}
    for pattern, name in handlers:
        made.add(pattern, known.setdefault(name, function(name)), routed())
    return made


def names(found: object) -> list[str]:
    if isinstance(found, SeveralRoute):
        assert found.handler == ", ".join(one.handler for one in found.handlers)
        return [one.handler for one in found.handlers]
    return [] if not isinstance(found, MessageRoute) else [found.handler]


def short(found: list[str]) -> list[str]:
    return [one.rpartition(".")[2] for one in found]


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("orders.created", ["one", "all"]),
        ("orders.created.eu", ["deep", "all"]),
        ("orders", ["deep", "all"]),
        ("bills.paid", ["all"]),
        ("", ["all"]),
    ],
)
def test_a_message_is_for_all_that_match_each_once(key: str, expected: list[str]) -> None:
    made = registry(("orders.*", "one"), ("orders.created", "one"), ("#", "all"))
    made.add("orders.#", deep := function("deep"), routed())
    made.add("orders.#", deep, routed())
    found = short(names(made.route(key)))
    if "deep" in expected:
        assert set(found) == set(expected)
    else:
        assert [one for one in found if one != "deep"] == expected
    assert made.patterns == ["orders.*", "orders.created", "#", "orders.#"]
    assert [(pattern, short([one.handler])[0]) for pattern, one in made.bindings] == [
        ("orders.*", "one"),
        ("orders.created", "one"),
        ("#", "all"),
        ("orders.#", "deep"),
    ]
    assert short([one.handler for one in made.handlers]) == ["one", "all", "deep"]


def test_patterns_mean_what_the_exchange_says() -> None:
    assert registry(("orders.*", "one"), type="direct").route("orders.a") is None
    assert registry(("orders.*", "one"), type="direct").route("orders.*") is not None
    assert registry(("nothing", "one"), type="fanout").route("orders.a") is not None
    assert registry(("orders.*", "one")).route("bills") is None


def test_one_handler_is_called_like_several_if_it_must_be() -> None:
    assert isinstance(registry(("#", "one")).route("a"), MessageRoute)
    assert isinstance(registry(("#", "one"), together=True).route("a"), SeveralRoute)
    assert registry(("a", "one"), together=True).route("b") is None


def test_a_handler_that_is_added_later_is_found_for_keys_that_were_seen() -> None:
    made = registry(("a", "one"))
    assert made.route("b") is None
    first = made.route("a")
    assert made.route("a") is first, "found once"
    made.add("#", function("two"), routed())
    assert short(names(made.route("b"))) == ["two"]
    assert short(names(made.route("a"))) == ["one", "two"]


def test_keys_are_remembered_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_KEYS", 3)
    made = registry(("#", "one"))
    for number in range(10):
        assert made.route(str(number)) is not None
        assert len(made._found) <= 3
    assert len(made._found) == 1 + 9 % 3


def test_names_tell_handlers_apart() -> None:
    made = registry()
    for given in ("same", "same", "same", "a,b"):
        made.add("#", function(given), routed())
    found = [one.handler for one in made.handlers]
    assert len(set(found)) == 4
    first, second, third, odd = found
    assert (second, third) == (f"{first}#2", f"{first}#3")
    assert odd.endswith("a;b"), "commas separate names"


def test_several_may_run_again_if_one_may() -> None:
    def several(*kinds: str, **options: Any) -> SeveralRoute:
        made = registry()
        for kind in kinds:
            made.add("#", function(kind), routed(idempotent=kind))
        if options:
            made.add("#", function("more"), routed(idempotent="no", **options))
        found = made.route("a")
        assert isinstance(found, SeveralRoute)
        return found

    for kinds, expected in (
        (("no", "unknown"), "unknown"),
        (("no", "unknown", "yes"), "yes"),
        (("yes", "resumable", "no"), "resumable"),
        (("no", "no"), "no"),
    ):
        assert several(*kinds).idempotent == expected
    plain = several("no", "no")
    assert (plain.at_most_once, plain.takes_context) == (False, False)
    assert several("no", at_most_once=True).at_most_once
    assert several("no", takes_context=True).takes_context


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({}, ["one", "two"]),
        ({FAILED_HANDLERS: "two"}, ["two"]),
        ({FAILED_HANDLERS: "one,two"}, ["one", "two"]),
        ({FAILED_HANDLERS: "gone"}, ["one", "two"]),
        ({FAILED_HANDLERS: ""}, ["one", "two"]),
    ],
)
def test_a_stored_message_is_for_those_that_failed(headers: Headers, expected: list[str]) -> None:
    made = registry()
    for name in ("one", "two"):
        made.add("#", function(name), routed())
    first, second = made.handlers
    by_name = {"one": first.handler, "two": second.handler}
    given = {
        key: ",".join(by_name.get(one, one) for one in str(value).split(","))
        for key, value in headers.items()
    }
    delivery = Delivery(b"1", given, Receipt("q", None), properties=Properties(routing_key="a"))
    found = [one.handler for one in made.routes_of(delivery)]
    assert found == [by_name[one] for one in expected]
    none = registry(("b", "one"))
    assert list(none.routes_of(delivery)) == []
    alone = registry(("a", "one"))
    assert short([one.handler for one in alone.routes_of(delivery)]) == ["one"]


@pytest.mark.parametrize("pattern", ["", None, 7, "p" * 256, "\N{SNOWMAN}" * 86, "a\ud800"])
def test_a_pattern_that_no_broker_takes_is_refused(pattern: Any) -> None:
    made = registry()
    with pytest.raises(ConfigurationError, match="here"):
        made.add(pattern, function("one"), routed())
    assert made.patterns == []
    made.add("p" * 255, function("one"), routed())
    made.add("\N{SNOWMAN}" * 85, function("one"), routed())
    assert len(made.patterns) == 2
