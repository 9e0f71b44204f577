"""The error tree: names, descriptions, plain data, copies."""

from __future__ import annotations

import builtins
import copy
import inspect
import pickle
import re
from typing import Any

import pytest
from tests.support.envelopes import make_raw

from matador import errors
from matador.errors import (
    AllTransportsFailedError,
    DontRetry,
    DoRetry,
    EventAssertionError,
    InvalidSchemaError,
    InvalidTopologyError,
    JobError,
    MatadorError,
    MessageTooLargeError,
    MissingExtraError,
    QueueError,
    RemoteError,
    SendFailedError,
    assert_event,
)

ALL: list[type[MatadorError]] = [
    thing
    for thing in vars(errors).values()
    if inspect.isclass(thing) and issubclass(thing, MatadorError)
]
SPECIAL: dict[type[MatadorError], tuple[Any, ...]] = {
    AllTransportsFailedError: ([("sqlite", ValueError("full"))],),
    InvalidSchemaError: (["one", "two"],),
    InvalidTopologyError: (["one", "two"],),
    MessageTooLargeError: (2_000_000, 1_048_576),
    MissingExtraError: ("RabbitMQ", "rabbitmq"),
    RemoteError: ("ValidationError", "amount must be positive", {"field": "amount"}),
}

each_error = pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)


def make(kind: type[MatadorError]) -> MatadorError:
    return kind(*SPECIAL.get(kind, ("what happened",)))


@each_error
def test_an_error_has_a_name_and_a_description(kind: type[MatadorError]) -> None:
    error = make(kind)
    assert error.name == kind.__name__
    assert re.fullmatch(r"[A-Z].*[.]", error.description, re.DOTALL)


@each_error
def test_an_error_as_plain_data(kind: type[MatadorError]) -> None:
    error = make(kind)
    fields: dict[str, object] = {
        "name": kind.__name__,
        "message": str(error),
        "description": kind.description,
    }
    if isinstance(error, JobError):
        fields |= {"type": error.type, "code": error.code, "retryable": error.retryable}
        fields |= {"queue": error.queue, "job_id": error.job_id}
    if isinstance(error, QueueError):
        fields |= {"queue_type": "", "operation": "", "queue": None, "message_id": None}
    if isinstance(error, RemoteError):
        fields |= {"code": error.code, "details": error.details}
    assert error.as_dict() == fields


@each_error
def test_an_error_survives_a_pickle_and_a_copy(kind: type[MatadorError]) -> None:
    error = make(kind)
    for twin in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(twin) is kind
        assert str(twin) == str(error)
        assert vars(twin).keys() == vars(error).keys()


def test_the_fields_of_an_error_survive_a_pickle() -> None:
    error = pickle.loads(pickle.dumps(MessageTooLargeError(5, 3)))
    assert (error.size, error.limit) == (5, 3)


@each_error
def test_an_error_is_drawn_in_the_tree_under_its_parent(kind: type[MatadorError]) -> None:
    lines = (errors.__doc__ or "").splitlines()
    depth_of = {
        found[2]: len(found[1])
        for line in lines
        if (found := re.match(r"([ │├└─]*)([A-Z]\w+)", line))
    }
    assert kind.__name__ in depth_of
    parents = [base for base in kind.__bases__ if issubclass(base, MatadorError)]
    if parents:
        names = list(depth_of)
        above = [
            name
            for name in names[: names.index(kind.__name__)]
            if depth_of[name] < depth_of[kind.__name__]
        ]
        drawn = getattr(errors, above[-1])
        assert issubclass(kind, drawn)


@pytest.mark.parametrize(
    "kind", [kind for kind in ALL if kind not in SPECIAL], ids=lambda kind: kind.__name__
)
def test_without_a_message_the_description_is_the_message(kind: type[MatadorError]) -> None:
    error = kind()
    assert str(error) == error.message == kind.description
    assert str(kind("mine")) == "mine"


@pytest.mark.parametrize("kind", [InvalidSchemaError, InvalidTopologyError])
def test_all_problems_are_in_the_message(
    kind: type[InvalidSchemaError] | type[InvalidTopologyError],
) -> None:
    error = kind(["one", "two"])
    assert error.problems == ("one", "two")
    assert "validation failed" in str(error)
    assert "\n  - one\n  - two" in str(error)


def test_a_failed_send_says_where_and_why() -> None:
    cause = OSError("gone")
    error = SendFailedError("not stored", queue="shop.events", subscriber="ship", cause=cause)
    assert (error.queue, error.subscriber, error.__cause__) == ("shop.events", "ship", cause)


def test_all_transports_failed_lists_each_reason() -> None:
    first, second = OSError("gone"), OSError("full")
    error = AllTransportsFailedError([("a", first), ("b", second)])
    assert str(error) == "all transports failed: a: gone; b: full"
    assert error.errors == (("a", first), ("b", second))


def test_a_message_too_large_says_both_sizes() -> None:
    assert str(MessageTooLargeError(2_000_000, 1_048_576)) == (
        "the message has 2,000,000 bytes, the limit is 1,048,576 bytes"
    )


def test_a_missing_extra_gives_the_command() -> None:
    assert "pip install 'matador-events[rabbitmq]'" in str(
        MissingExtraError("RabbitMQ", "rabbitmq")
    )


def test_errors_that_are_builtin_ones_too() -> None:
    assert issubclass(errors.TimeoutError, builtins.TimeoutError)
    assert issubclass(errors.ConfigurationError, ValueError)
    assert issubclass(EventAssertionError, AssertionError)
    assert issubclass(errors.UnstorableStepValueError, DontRetry)


# -- control of retries ---------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [DoRetry, DontRetry, EventAssertionError])
def test_control_errors_carry_their_message(kind: type[MatadorError]) -> None:
    assert kind("because").message == "because"


def test_an_assertion_error_keeps_its_envelope() -> None:
    envelope = make_raw()
    assert EventAssertionError("wrong", envelope=envelope).envelope is envelope
    assert EventAssertionError("wrong").envelope is None


@pytest.mark.parametrize("value", [True, 1, "x", [0]])
def test_an_assertion_that_holds_is_silent(value: object) -> None:
    assert_event(make_raw(), value, "holds")


@pytest.mark.parametrize("value", [False, 0, "", None, []])
def test_an_assertion_that_does_not_hold_raises(value: object) -> None:
    envelope = make_raw()
    with pytest.raises(EventAssertionError, match="no address") as caught:
        assert_event(envelope, value, "no address")
    assert caught.value.envelope is envelope
