"""The schema: look-ups, every problem at once, plugins."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from matador.errors import (
    ConfigurationError,
    EventNotRegisteredError,
    InvalidEventError,
    InvalidSchemaError,
    SubscriberIsStubError,
    SubscriberNotRegisteredError,
)
from matador.model.event import event, event_type_of
from matador.model.schema import Schema
from matador.model.subscriber import Subscriber, SubscriberStub, subscriber
from matador.model.topology import Topology, WorkQueue


@event("order.placed", description="A customer placed an order.", aliases=["order.created"])
@dataclass
class OrderPlaced:
    order_id: str


@event("chat.sent", description="Somebody wrote.")
@dataclass
class ChatSent:
    text: str


@dataclass
class NoEvent:
    pass


def sub(name: str, description: str = "Does something.", queue: str | None = None):
    def callback(envelope: object) -> None: ...

    return subscriber(name=name, description=description, queue=queue)(callback)


def make_event(key: str, *, aliases: tuple[str, ...] = (), description: str = "x") -> type[Any]:
    @event(key, description=description, aliases=aliases)
    @dataclass
    class Made:
        pass

    return Made


EMAIL, CHARGE, AUDIT = sub("email-receipt"), sub("charge", queue="billing"), sub("audit")
STUB = SubscriberStub("ship", description="Ship it.", queue="warehouse")
SCHEMA = Schema({OrderPlaced: [EMAIL, CHARGE, STUB], ChatSent: []})

# -- look-ups -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "reference", [OrderPlaced, "order.placed", "order.created", event_type_of(OrderPlaced)]
)
def test_an_event_is_found_by_class_key_and_alias(reference: Any) -> None:
    assert reference in SCHEMA
    assert SCHEMA.event(reference) is SCHEMA.find(reference) is event_type_of(OrderPlaced)
    assert SCHEMA.subscribers(reference) == (EMAIL, CHARGE, STUB)
    assert SCHEMA.subscriber(reference, "charge") is CHARGE


def test_an_unknown_event_is_found_nowhere() -> None:
    assert "order.lost" not in SCHEMA
    assert SCHEMA.find("order.lost") is None
    assert SCHEMA.subscribers("order.lost") == ()
    assert SCHEMA.find_subscriber("order.lost", "charge") is None


def test_a_class_that_is_no_event_is_not_in_the_schema() -> None:
    assert NoEvent not in SCHEMA
    assert SCHEMA.find(NoEvent) is None
    with pytest.raises(InvalidEventError, match="NoEvent is not an event"):
        SCHEMA.event(NoEvent)


def test_an_unknown_key_suggests_a_close_one() -> None:
    with pytest.raises(EventNotRegisteredError, match=r"did you mean 'order\.placed'"):
        SCHEMA.event("order.plaecd")
    with pytest.raises(EventNotRegisteredError, match=r"not in the schema$"):
        SCHEMA.event("something else entirely")


def test_an_unknown_subscriber_suggests_a_close_one() -> None:
    with pytest.raises(SubscriberNotRegisteredError, match="did you mean 'email-receipt'"):
        SCHEMA.subscriber(OrderPlaced, "email-reciept")
    with pytest.raises(EventNotRegisteredError):
        SCHEMA.subscriber("order.lost", "charge")


def test_a_stub_is_found_but_cannot_be_executed() -> None:
    assert SCHEMA.find_subscriber(OrderPlaced, "ship") is STUB
    with pytest.raises(SubscriberIsStubError, match=r"'ship' of 'order\.placed' is a stub"):
        SCHEMA.subscriber(OrderPlaced, "ship")


def test_a_schema_lists_its_events() -> None:
    assert [found.key for found in SCHEMA.events] == ["order.placed", "chat.sent"]
    assert len(SCHEMA) == 2
    assert [found.key for found, _ in SCHEMA] == ["order.placed", "chat.sent"]
    assert repr(SCHEMA) == "Schema(order.placed, chat.sent)"


def test_an_empty_schema_is_valid() -> None:
    assert len(Schema()) == 0
    assert Schema().validate() == []


# -- what cannot be in a schema -------------------------------------------------------------------


def test_a_class_must_be_an_event() -> None:
    with pytest.raises(InvalidEventError, match="NoEvent"):
        Schema({NoEvent: [EMAIL]})


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (EMAIL, r"must be a list; write \[email-receipt\]"),
        ([len, EMAIL, print], r"(?s)len is not a subscriber.*print is not a subscriber"),
        ([None], "None is not a subscriber"),
    ],
)
def test_subscribers_must_be_a_list_of_subscribers(given: Any, problem: str) -> None:
    with pytest.raises(InvalidSchemaError, match=problem):
        Schema({OrderPlaced: given})


# -- validation -----------------------------------------------------------------------------------


def test_a_good_schema_has_no_problems() -> None:
    topology = Topology("shop", queues=["events", "billing", "warehouse"])
    assert SCHEMA.validate() == SCHEMA.validate(topology) == []
    SCHEMA.check(topology)


@pytest.mark.parametrize(
    ("events", "problem"),
    [
        ({make_event("a"): [], make_event("a"): []}, "event key 'a' is used by 2 events"),
        ({make_event(" "): []}, "an event has an empty key"),
        ({make_event("a", aliases=("",)): []}, "event 'a': an alias is empty"),
        (
            {make_event("a", aliases=("b",)): [], make_event("b"): []},
            "event 'a': alias 'b' is the key of an event",
        ),
        ({make_event("a", aliases=("a",)): []}, "event 'a': alias 'a' repeats its own key"),
        ({make_event("a", aliases=("b", "b")): []}, "duplicate alias 'b' of event 'a'"),
        (
            {make_event("a", aliases=("c",)): [], make_event("b", aliases=("c",)): []},
            "event 'b': alias 'c' is also an alias of event 'a'",
        ),
        ({make_event("a", description=" "): []}, "event 'a': the description is empty"),
        (
            {make_event("a"): [sub("x"), SubscriberStub("x", description="y")]},
            "event 'a': 2 subscribers are called 'x'",
        ),
        ({make_event("a"): [sub("")]}, "event 'a', subscriber '': the name is empty"),
        (
            {make_event("a"): [sub("x", description="")]},
            "event 'a', subscriber 'x': the description is empty",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_problem_is_a_sentence(events: dict[type[Any], Any], problem: str) -> None:
    assert Schema(events).validate() == [problem]


def test_an_unknown_queue_is_a_problem_and_a_close_one_suggested() -> None:
    topology = Topology("shop", queues=["events", WorkQueue("bill-ing"), "warehouse"])
    (problem,) = SCHEMA.validate(topology)
    assert problem == (
        "event 'order.placed', subscriber 'charge': queue 'billing' is not in the topology "
        "(events, bill-ing, warehouse); did you mean 'bill-ing'?"
    )


def test_a_queue_may_be_named_in_full() -> None:
    schema = Schema({ChatSent: [sub("x", queue="shop.events")]})
    assert schema.validate(Topology("shop", queues=["events"])) == []


def test_every_problem_is_listed_at_once() -> None:
    schema = Schema(
        {
            make_event("a", description="", aliases=("b",)): [sub("x"), sub("x", description="")],
            make_event("b"): [sub("y", queue="nowhere")],
            make_event("b"): [sub("", queue="nowhere")],
        }
    )
    with pytest.raises(InvalidSchemaError, match="Schema validation failed") as caught:
        schema.check(Topology("shop", queues=["events"]))
    problems = caught.value.problems
    assert len(problems) == 8
    assert all(f"\n  - {problem}" in str(caught.value) for problem in problems)


def test_an_event_nobody_here_can_handle_is_a_warning_only() -> None:
    schema = Schema({OrderPlaced: [STUB], ChatSent: []})
    assert schema.validate() == []
    assert schema.warnings() == [
        "event 'order.placed' has only stubs",
        "event 'chat.sent' has no subscribers",
    ]
    assert Schema({OrderPlaced: [STUB, EMAIL]}).warnings() == []


# -- adding ---------------------------------------------------------------------------------------


def test_an_event_can_be_added_and_the_old_schema_stays() -> None:
    small = Schema({OrderPlaced: [EMAIL]})
    large = small.with_event(ChatSent, [AUDIT])
    assert ChatSent not in small
    assert large.subscribers(ChatSent) == (AUDIT,)


@pytest.mark.parametrize("key", ["order.placed", "order.created"])
def test_a_key_that_is_taken_must_be_overridden(key: str) -> None:
    other = make_event(key)
    with pytest.raises(InvalidSchemaError, match=f"'{key}' is already registered"):
        SCHEMA.with_event(other, [AUDIT])
    assert SCHEMA.with_event(other, [AUDIT], override=True).event(key).payload is other


def test_an_overridden_event_is_gone() -> None:
    other = make_event("order.placed")
    schema = SCHEMA.with_event(other, [], override=True)
    assert "order.created" not in schema
    assert len(schema) == 2
    assert schema.validate() == []


def test_a_key_hides_an_alias_whatever_their_order() -> None:
    holder, taker = make_event("a", aliases=("b",)), make_event("b")
    assert Schema({holder: [], taker: []}).event("b").payload is taker
    assert Schema({taker: [], holder: []}).event("b").payload is taker


# -- plugins --------------------------------------------------------------------------------------


def test_a_plugin_subscribes_to_every_event() -> None:
    schema = SCHEMA.with_plugin(AUDIT)
    assert all(AUDIT in schema.subscribers(found) for found in schema.events)
    assert AUDIT not in SCHEMA.subscribers(OrderPlaced)


@pytest.mark.parametrize("excluded", [ChatSent, "chat.sent", event_type_of(ChatSent)])
def test_a_plugin_leaves_out_what_is_excluded(excluded: Any) -> None:
    schema = SCHEMA.with_plugin(AUDIT, exclude=[excluded])
    assert schema.subscribers(ChatSent) == ()
    assert schema.subscribers(OrderPlaced) == (EMAIL, CHARGE, STUB, AUDIT)


def test_an_alias_can_be_excluded() -> None:
    schema = SCHEMA.with_plugin(AUDIT, exclude=["order.created"])
    assert AUDIT not in schema.subscribers(OrderPlaced)


def test_a_plugin_can_be_a_stub() -> None:
    assert SCHEMA.with_plugin(STUB, exclude=[OrderPlaced]).subscribers(ChatSent) == (STUB,)


def test_an_unknown_exclusion_is_an_error_with_a_suggestion() -> None:
    with pytest.raises(EventNotRegisteredError, match=r"did you mean 'chat\.sent'"):
        SCHEMA.with_plugin(AUDIT, exclude=["chat.snet"])


@pytest.mark.parametrize("exclude", ["chat.sent", ChatSent])
def test_one_exclusion_is_not_a_list(exclude: Any) -> None:
    with pytest.raises(ConfigurationError, match="exclude must be a list"):
        SCHEMA.with_plugin(AUDIT, exclude=exclude)


def test_a_plugin_must_be_a_subscriber() -> None:
    with pytest.raises(InvalidSchemaError, match="len is not a subscriber"):
        SCHEMA.with_plugin(len)  # pyright: ignore[reportArgumentType]


def test_a_plugin_named_as_a_subscriber_is_a_problem_of_the_schema() -> None:
    clash: Subscriber[Any] = sub("charge")
    assert SCHEMA.with_plugin(clash).validate() == [
        "event 'order.placed': 2 subscribers are called 'charge'"
    ]
