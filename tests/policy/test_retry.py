"""The standard retry policy: its rules, their order, its delays."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from tests.support.failures import make_context

from matador.errors import (
    ConfigurationError,
    DontRetry,
    DoRetry,
    EventAssertionError,
    UnstorableStepValueError,
)
from matador.model.subscriber import Idempotency
from matador.policy.retry import RetryLater, SendToDeadLetters, StandardRetryPolicy

POLICY = StandardRetryPolicy()


def undeliverable(reason: str) -> SendToDeadLetters:
    return SendToDeadLetters("undeliverable", reason)


POISONED = undeliverable("possibly poisoned: delivered 5 times without an outcome")

# -- defaults and options -------------------------------------------------------------------------


def test_the_defaults() -> None:
    assert POLICY.max_attempts == 3
    assert POLICY.base_delay == 1.0
    assert POLICY.max_delay == 300.0
    assert POLICY.multiplier == 2.0
    assert POLICY.jitter == 0.0
    assert POLICY.max_deliveries == 5


def test_a_part_can_be_changed() -> None:
    policy = StandardRetryPolicy(max_attempts=7, base_delay=timedelta(minutes=1))
    assert (policy.max_attempts, policy.base_delay, policy.max_delay) == (7, 60.0, 300.0)


@pytest.mark.parametrize(
    "options",
    [
        {"max_attempts": 0},
        {"max_attempts": 1.5},
        {"max_attempts": True},
        {"base_delay": -1},
        {"base_delay": float("nan")},
        {"max_delay": float("inf")},
        {"multiplier": 0.5},
        {"multiplier": float("nan")},
        {"multiplier": float("inf")},
        {"multiplier": "2"},
        {"jitter": -0.1},
        {"jitter": 1.1},
        {"jitter": float("nan")},
        {"jitter": None},
        {"max_deliveries": 0},
    ],
    ids=str,
)
def test_options_are_checked_and_named(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=f"StandardRetryPolicy: {next(iter(options))}"):
        StandardRetryPolicy(**options)


# -- each rule ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("deliveries", "poisoned"), [(1, False), (4, False), (5, True), (9, True)])
def test_1_delivered_too_often(deliveries: int, poisoned: bool) -> None:
    decision = POLICY.decide(make_context(deliveries=deliveries, idempotent="yes"))
    assert isinstance(decision, SendToDeadLetters) is poisoned
    if poisoned:
        reason = f"possibly poisoned: delivered {deliveries} times without an outcome"
        assert decision == undeliverable(reason)


def test_1_a_first_delivery_is_never_poisoned() -> None:
    decision = StandardRetryPolicy(max_deliveries=1).decide(make_context(deliveries=1))
    assert isinstance(decision, RetryLater)


def test_1_attempts_are_not_deliveries() -> None:
    policy = StandardRetryPolicy(max_attempts=10)
    assert isinstance(policy.decide(make_context(attempts=8)), RetryLater)


def test_2_an_assertion_about_the_event() -> None:
    error = EventAssertionError("no address")
    assert POLICY.decide(make_context(error=error)) == undeliverable("assertion error: no address")


def test_2_an_ordinary_assertion_is_an_ordinary_failure() -> None:
    assert isinstance(POLICY.decide(make_context(error=AssertionError("x"))), RetryLater)


@pytest.mark.parametrize("kind", [DontRetry, UnstorableStepValueError])
def test_3_do_not_retry(kind: type[DontRetry]) -> None:
    error = kind("card declined")
    assert POLICY.decide(make_context(error=error)) == undeliverable("card declined")


@pytest.mark.parametrize("attempts", [1, 2])
@pytest.mark.parametrize("idempotent", ["yes", "no", "unknown", "resumable"])
@pytest.mark.parametrize("redelivered", [True, False])
def test_4_do_retry_until_the_attempts_are_used_up(
    attempts: int, idempotent: Idempotency, redelivered: bool
) -> None:
    context = make_context(
        error=DoRetry("busy"), attempts=attempts, idempotent=idempotent, redelivered=redelivered
    )
    assert POLICY.decide(context) == RetryLater(2.0 ** (attempts - 1), "retry requested")


@pytest.mark.parametrize("attempts", [3, 4])
def test_4_do_retry_has_an_end(attempts: int) -> None:
    decision = POLICY.decide(make_context(error=DoRetry("busy"), attempts=attempts))
    assert decision == undeliverable("max attempts exceeded (3) with forced retry")


@pytest.mark.parametrize("attempts", [3, 4, 1000])
def test_5_attempts_used_up(attempts: int) -> None:
    decision = POLICY.decide(make_context(attempts=attempts, idempotent="yes"))
    assert decision == undeliverable("max attempts exceeded (3)")


@pytest.mark.parametrize(
    ("idempotent", "again"), [("yes", True), ("resumable", True), ("no", False), ("unknown", False)]
)
def test_6_redelivered(idempotent: Idempotency, again: bool) -> None:
    context = make_context(redelivered=True, deliveries=2, idempotent=idempotent)
    decision = POLICY.decide(context)
    if again:
        assert decision == RetryLater(1.0, "failed")
    else:
        reason = f"redelivered, and the subscriber is not idempotent (idempotent={idempotent!r})"
        assert decision == undeliverable(reason)


@pytest.mark.parametrize("idempotent", ["yes", "no", "unknown", "resumable"])
def test_7_else_it_is_retried(idempotent: Idempotency) -> None:
    assert POLICY.decide(make_context(idempotent=idempotent)) == RetryLater(1.0, "failed")
    assert POLICY.decide(make_context(idempotent=idempotent, attempts=2)).__class__ is RetryLater


# -- the order ------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [EventAssertionError("x"), DontRetry("x"), DoRetry("x"), None])
def test_poison_comes_before_everything(error: Exception | None) -> None:
    context = make_context(error=error, deliveries=5, attempts=9, redelivered=True, idempotent="no")
    assert POLICY.decide(context) == POISONED


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (EventAssertionError("x"), "assertion error: x"),
        (DontRetry("x"), "x"),
        (DoRetry("x"), "max attempts exceeded (3) with forced retry"),
        (None, "max attempts exceeded (3)"),
    ],
)
def test_control_errors_come_before_attempts_and_those_before_idempotency(
    error: Exception | None, reason: str
) -> None:
    context = make_context(error=error, attempts=3, redelivered=True, idempotent="no")
    assert POLICY.decide(context) == undeliverable(reason)


# -- what a hook decided --------------------------------------------------------------------------


def test_a_hook_can_set_the_attempts() -> None:
    assert isinstance(POLICY.decide(make_context(attempts=3, max_attempts=4)), RetryLater)
    decision = POLICY.decide(make_context(attempts=1, max_attempts=1))
    assert decision == undeliverable("max attempts exceeded (1)")
    decision = POLICY.decide(make_context(attempts=1, max_attempts=0))
    assert decision == undeliverable("max attempts exceeded (0)")


def test_a_hook_can_set_the_deliveries() -> None:
    assert isinstance(POLICY.decide(make_context(deliveries=5, max_deliveries=6)), RetryLater)
    for most in (0, 2):
        decision = POLICY.decide(make_context(deliveries=2, max_deliveries=most))
        assert isinstance(decision, SendToDeadLetters)


@pytest.mark.parametrize("delay", [0.0, 42.0])
@pytest.mark.parametrize("error", [None, DoRetry("x")])
def test_a_hook_can_set_the_delay(delay: float, error: Exception | None) -> None:
    decision = POLICY.decide(make_context(error=error, delay=delay))
    assert isinstance(decision, RetryLater)
    assert decision.delay == delay


# -- delays ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("attempt", "delay"),
    [(1, 1), (2, 2), (3, 4), (9, 256), (10, 300), (1000, 300), (2**31, 300)],
)
def test_delays_double_up_to_the_longest(attempt: int, delay: float) -> None:
    assert POLICY.delay(attempt) == delay


@pytest.mark.parametrize("attempt", [1, 1000, 5000])
def test_no_base_delay_means_no_delay_at_all(attempt: int) -> None:
    assert StandardRetryPolicy(base_delay=0).delay(attempt) == 0.0


def test_a_multiplier_of_one_keeps_the_delay() -> None:
    policy = StandardRetryPolicy(base_delay=5, multiplier=1)
    assert {policy.delay(attempt) for attempt in (1, 2, 100)} == {5.0}


@pytest.mark.parametrize(("random", "delay"), [(0.0, 4.0), (0.5, 3.0), (1.0, 2.0)])
def test_jitter_takes_a_share_off(random: float, delay: float) -> None:
    assert StandardRetryPolicy(jitter=0.5).delay(3, random) == delay
    context = make_context(attempts=2, random=random)
    assert StandardRetryPolicy(jitter=0.5).decide(context) == RetryLater(delay / 2, "failed")
