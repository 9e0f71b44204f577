"""Declaring subscribers, and what is read off their callbacks."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from tests.support.envelopes import make_raw

from matador.errors import ConfigurationError
from matador.model.subscriber import Subscriber, SubscriberStub, subscriber


def declare(callback: Any, **options: Any) -> Subscriber[Any]:
    given: dict[str, Any] = {"description": "For one test.", "name": "sub"}
    return subscriber(**given | options)(callback)


# -- names and defaults ---------------------------------------------------------------------------


def test_the_name_is_that_of_the_function_with_dashes() -> None:
    @subscriber(description="Email the receipt.")
    def email_the__receipt(envelope: Any) -> None: ...

    @subscriber(description="Private.")
    def _hidden_one(envelope: Any) -> None: ...

    assert email_the__receipt.name == "email-the-receipt"
    assert _hidden_one.name == "hidden-one"


def test_a_name_can_be_given() -> None:
    assert declare(lambda envelope: None, name="mine").name == "mine"  # pyright: ignore[reportUnknownLambdaType]


def test_a_partial_is_named_after_its_function() -> None:
    def send_email(address: str, envelope: Any) -> None: ...

    found = subscriber(description="x")(functools.partial(send_email, "a@b"))
    assert found.name == "send-email"


def test_the_defaults() -> None:
    @subscriber(description="Email the receipt.")
    def email(envelope: Any) -> None: ...

    assert email.idempotent == "unknown"
    assert email.importance == "should-investigate"
    assert email.queue is None
    assert email.enabled is None
    assert email.delivery is None


def test_a_function_can_be_declared_in_one_call() -> None:
    def email(envelope: Any) -> None: ...

    assert subscriber(email, description="x").callback is email


def test_a_subscriber_can_be_called_as_its_function() -> None:
    envelope = make_raw()
    one = declare(lambda envelope: ("got", envelope))  # pyright: ignore[reportUnknownLambdaType]
    two = declare(lambda envelope, ctx: (envelope, ctx))  # pyright: ignore[reportUnknownLambdaType]
    assert one(envelope) == ("got", envelope)
    assert two(envelope, "ctx") == (envelope, "ctx")


# -- signatures -----------------------------------------------------------------------------------


def envelope_only(envelope: Any) -> None: ...
def with_ctx(envelope: Any, ctx: Any) -> None: ...
def any_second_name(envelope: Any, whatever: Any) -> None: ...
def optional_ctx(envelope: Any, ctx: Any = None) -> None: ...
def optional_context(envelope: Any, context: Any = None, more: int = 1) -> None: ...
def optional_other(envelope: Any, retries: int = 3) -> None: ...
def ctx_and_more(envelope: Any, ctx: Any, retries: int = 3) -> None: ...
def any_number(*arguments: Any) -> None: ...
def one_and_any_number(envelope: Any, *arguments: Any) -> None: ...
def keywords_too(envelope: Any, **options: Any) -> None: ...
def required_keyword(envelope: Any, *, ctx: Any) -> None: ...
def optional_keyword(envelope: Any, *, retries: int = 3) -> None: ...
def positional_only(envelope: Any, /) -> None: ...
def all_optional(envelope: Any = None, ctx: Any = None) -> None: ...
async def async_envelope_only(envelope: Any) -> None: ...
async def async_with_ctx(envelope: Any, ctx: Any) -> None: ...


class CallableObject:
    def __call__(self, envelope: Any) -> None: ...


class CallableWithContext:
    def __call__(self, envelope: Any, ctx: Any) -> None: ...


class AsyncCallable:
    async def __call__(self, envelope: Any, ctx: Any) -> None: ...


class Holder:
    def method(self, envelope: Any) -> None: ...
    async def async_method(self, envelope: Any, ctx: Any) -> None: ...
    @classmethod
    def of_class(cls, envelope: Any, ctx: Any) -> None: ...
    @staticmethod
    def static(envelope: Any) -> None: ...


def bound_first(sender: str, envelope: Any) -> None: ...


@pytest.mark.parametrize(
    ("callback", "takes_context", "is_async"),
    [
        (envelope_only, False, False),
        (with_ctx, True, False),
        (any_second_name, True, False),
        (optional_ctx, True, False),
        (optional_context, True, False),
        (optional_other, False, False),
        (ctx_and_more, True, False),
        (any_number, True, False),
        (one_and_any_number, True, False),
        (keywords_too, False, False),
        (optional_keyword, False, False),
        (required_keyword, True, False),
        (positional_only, False, False),
        (all_optional, True, False),
        (async_envelope_only, False, True),
        (async_with_ctx, True, True),
        (CallableObject(), False, False),
        (CallableWithContext(), True, False),
        (AsyncCallable(), True, True),
        (Holder().method, False, False),
        (Holder().async_method, True, True),
        (Holder.of_class, True, False),
        (Holder.static, False, False),
        (functools.partial(bound_first, "me"), False, False),
        (functools.partial(with_ctx, ctx=None), False, False),
        (functools.partial(async_with_ctx), True, True),
        (functools.partial(AsyncCallable()), True, True),
        (print, True, False),
    ],
)
def test_what_a_callback_takes_and_whether_it_is_async(
    callback: Callable[..., Any], takes_context: bool, is_async: bool
) -> None:
    found = declare(callback)
    assert (found.takes_context, found.is_async) == (takes_context, is_async)


def nothing() -> None: ...
def three(envelope: Any, ctx: Any, more: Any) -> None: ...
def three_and_any_number(envelope: Any, ctx: Any, more: Any, *rest: Any) -> None: ...
def only_keywords(**options: Any) -> None: ...


@pytest.mark.parametrize("callback", [nothing, three, three_and_any_number, only_keywords])
def test_a_callback_that_could_never_be_called_is_refused(callback: Callable[..., Any]) -> None:
    with pytest.raises(ConfigurationError, match="takes the payload of its event or its"):
        declare(callback)


def generator(envelope: Any) -> Iterator[int]:
    yield 1


async def async_generator(envelope: Any) -> AsyncIterator[int]:
    yield 1


@pytest.mark.parametrize("callback", [generator, async_generator, functools.partial(generator)])
def test_a_callback_with_a_yield_is_refused_as_it_would_run_nothing(
    callback: Callable[..., Any],
) -> None:
    with pytest.raises(ConfigurationError, match="yield"):
        declare(callback)


@pytest.mark.parametrize("callback", [5, "text", None])
def test_a_callback_must_be_callable(callback: Any) -> None:
    with pytest.raises(ConfigurationError, match="must be callable"):
        Subscriber(name="sub", description="x", callback=callback)


# -- options --------------------------------------------------------------------------------------

WRONG: list[tuple[dict[str, Any], str]] = [
    ({"idempotent": "Yes"}, r"idempotent='Yes' is not one of .*did you mean 'yes'"),
    ({"idempotent": True}, "idempotent=True is not one of"),
    ({"idempotent": "resumeable"}, "did you mean 'resumable'"),
    ({"importance": "must-investigat"}, "did you mean 'must-investigate'"),
    ({"importance": None}, "importance=None"),
    ({"delivery": "at-least-one"}, "did you mean 'at-least-once'"),
    ({"name": 5}, "name must be a string"),
    ({"description": None}, "description must be a string"),
    ({"queue": 5}, "queue must be a string"),
    ({"enabled": False}, "enabled must be a function.*lambda: False"),
]


@pytest.mark.parametrize(("options", "problem"), WRONG, ids=str)
def test_options_are_checked_when_they_are_given(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        declare(envelope_only, **options)
    arguments: dict[str, Any] = {"name": "stub", "description": "x", **options}
    name = arguments.pop("name")
    with pytest.raises(ConfigurationError, match=problem):
        SubscriberStub(name, **arguments)


def test_a_stub_has_the_options_of_a_subscriber_and_no_callback() -> None:
    stub = SubscriberStub(
        "ship",
        description="Ship the parcel.",
        queue="warehouse",
        idempotent="yes",
        importance="can-ignore",
        delivery="at-most-once",
    )
    assert stub.name == "ship"
    assert (stub.queue, stub.idempotent) == ("warehouse", "yes")
    assert (stub.importance, stub.delivery) == ("can-ignore", "at-most-once")
    assert not callable(stub)


def test_subscribers_are_frozen() -> None:
    for thing in (declare(envelope_only), SubscriberStub("stub", description="x")):
        with pytest.raises(AttributeError):
            thing.name = "other"  # pyright: ignore[reportAttributeAccessIssue]
