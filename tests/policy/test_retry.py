"""The standard retry policy: its rules, their order, its delays."""

from __future__ import annotations

from collections.abc import Callable
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
from matador.policy.backoff import growing_delay
from matador.policy.retry import (
    CustomRetryPolicy,
    RetryContext,
    RetryLater,
    SendToDeadLetters,
    StandardRetryPolicy,
)

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
        reason = f"redelivered, and the handler is not idempotent (idempotent={idempotent!r})"
        assert decision == undeliverable(reason)


@pytest.mark.parametrize(
    ("idempotent", "again"), [("yes", True), ("resumable", True), ("no", False), ("unknown", False)]
)
def test_6_interrupted_by_its_own_timeout(idempotent: Idempotency, again: bool) -> None:
    decision = POLICY.decide(make_context(interrupted=True, idempotent=idempotent))
    if again:
        assert decision == RetryLater(1.0, "failed")
    else:
        reason = f"interrupted by its timeout, and not idempotent (idempotent={idempotent!r})"
        assert decision == undeliverable(reason)


@pytest.mark.parametrize("attempts", [1, 2])
def test_7_what_must_not_run_again_is_not_retried(attempts: int) -> None:
    decision = POLICY.decide(make_context(idempotent="no", attempts=attempts))
    assert decision == undeliverable("failed, and must not run again (idempotent='no')")


@pytest.mark.parametrize(("redelivered", "interrupted"), [(True, False), (False, True)])
def test_7_unless_it_asks_for_it(redelivered: bool, interrupted: bool) -> None:
    context = make_context(
        error=DoRetry("busy"),
        idempotent="no",
        redelivered=redelivered,
        interrupted=interrupted,
    )
    assert POLICY.decide(context) == RetryLater(1.0, "retry requested")


@pytest.mark.parametrize("idempotent", ["yes", "unknown", "resumable"])
def test_8_else_it_is_retried(idempotent: Idempotency) -> None:
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
@pytest.mark.parametrize(("redelivered", "interrupted"), [(True, False), (False, True)])
def test_control_errors_come_before_attempts_and_those_before_idempotency(
    error: Exception | None, reason: str, redelivered: bool, interrupted: bool
) -> None:
    context = make_context(
        error=error,
        attempts=3,
        redelivered=redelivered,
        interrupted=interrupted,
        idempotent="no",
    )
    assert POLICY.decide(context) == undeliverable(reason)


def test_a_redelivery_is_the_reason_before_a_timeout() -> None:
    context = make_context(redelivered=True, interrupted=True)
    decision = POLICY.decide(context)
    assert decision == undeliverable(
        "redelivered, and the handler is not idempotent (idempotent='unknown')"
    )


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


@pytest.mark.parametrize("asked", [0, 7, 7.5, timedelta(minutes=1)])
def test_do_retry_can_set_the_delay(asked: Any) -> None:
    seconds = asked.total_seconds() if isinstance(asked, timedelta) else asked
    for other in (None, 42.0):  # it knows better than a hook
        decision = POLICY.decide(make_context(error=DoRetry("busy", delay=asked), delay=other))
        assert decision == RetryLater(seconds, "retry requested")


@pytest.mark.parametrize("asked", [-1, float("nan"), float("inf"), "soon", object()])
def test_a_delay_that_cannot_be_used_is_not_used(asked: Any) -> None:
    error = DoRetry("busy")
    error.delay = asked
    assert POLICY.decide(make_context(error=error)) == RetryLater(1.0, "retry requested")
    context = make_context(error=error, delay=42.0)
    assert POLICY.decide(context) == RetryLater(42.0, "retry requested")
    assert POLICY.decide(make_context(delay=asked)) == RetryLater(1.0, "failed")


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


@pytest.mark.parametrize(
    ("attempt", "options", "delay"),
    [
        (1, {}, 3.0),
        (3, {}, 12.0),
        (3, {"multiplier": 3.0}, 27.0),
        (3, {"multiplier": 1.0}, 3.0),
        (3, {"longest": 10.0}, 10.0),
        (1, {"longest": 1.0}, 1.0),
        (0, {}, 3.0),  # as if it were the first
        (-7, {}, 3.0),
        (100, {}, 1e9),  # no broker keeps a message for longer
        (10_000, {}, 1e9),  # more than a float can hold
        (10_000, {"longest": 60.0}, 60.0),
        (10_000, {"longest": 1e12}, 1e12),
    ],
)
def test_growing_delay(attempt: int, options: dict[str, Any], delay: float) -> None:
    assert growing_delay(attempt, 3.0, **options) == delay


@pytest.mark.parametrize("attempt", [1, 100, 10_000])
def test_nothing_does_not_grow(attempt: int) -> None:
    assert growing_delay(attempt, 0.0) == 0.0


# -- with delays and a choice of errors of its own ------------------------------------------------


def doubled(attempt: int) -> float:
    return attempt * 2.0


def broken(*_: object) -> Any:
    raise RuntimeError("a bug")


class NoNumber:
    def __float__(self) -> float:
        raise ValueError("no number")


def always(value: Any) -> Callable[..., Any]:
    return lambda *_: value


def test_a_custom_policy_is_the_standard_one_by_default() -> None:
    policy = CustomRetryPolicy()
    assert (policy.max_attempts, policy.max_deliveries, policy.jitter) == (3, 5, 0.0)
    for attempts in (1, 2, 3):
        context = make_context(attempts=attempts)
        assert policy.decide(context) == POLICY.decide(context)


@pytest.mark.parametrize(
    ("delays", "expected"),
    [
        (doubled, 4.0),
        (always(timedelta(minutes=1)), 60.0),
        (always(0), 0.0),
        (None, 2.0),
        (broken, 2.0),
        (always(-1), 2.0),
        (always(float("nan")), 2.0),
        (always(float("inf")), 2.0),
        (always(NoNumber()), 2.0),
        (always("soon"), 2.0),
        (always(None), 2.0),
    ],
)
def test_a_custom_delay_is_used_if_it_can_be(
    delays: Callable[[int], Any] | None, expected: float
) -> None:
    policy = CustomRetryPolicy(delays=delays)
    assert policy.decide(make_context(attempts=2)) == RetryLater(expected, "failed")


def test_jitter_takes_its_share_off_a_custom_delay() -> None:
    policy = CustomRetryPolicy(delays=doubled, jitter=0.5)
    assert policy.decide(make_context(attempts=2, random=1.0)) == RetryLater(2.0, "failed")
    standard = CustomRetryPolicy(jitter=0.5)
    assert standard.decide(make_context(attempts=2, random=1.0)) == RetryLater(1.0, "failed")


def only_early_os_errors(error: Exception, attempt: int) -> bool:
    return isinstance(error, OSError) and attempt < 2


def test_a_custom_policy_chooses_what_is_retried() -> None:
    policy = CustomRetryPolicy(5, when=only_early_os_errors)
    assert policy.decide(make_context(error=OSError("x"))) == RetryLater(1.0, "failed")
    for context in (make_context(error=OSError("broken"), attempts=2), make_context()):
        assert policy.decide(context) == undeliverable("not to be retried: broken")


def test_a_choice_that_fails_decides_nothing() -> None:
    policy = CustomRetryPolicy(when=broken)
    assert policy.decide(make_context()) == RetryLater(1.0, "failed")
    decision = policy.decide(make_context(attempts=3))
    assert decision == undeliverable("max attempts exceeded (3)")  # not for ever


@pytest.mark.parametrize(
    ("context", "decision"),
    [
        (make_context(deliveries=5), POISONED),
        (make_context(error=DontRetry("no")), undeliverable("no")),
        (make_context(error=DoRetry("busy")), RetryLater(2.0, "retry requested")),
        (make_context(attempts=3), undeliverable("max attempts exceeded (3)")),
        (
            make_context(idempotent="no"),
            undeliverable("failed, and must not run again (idempotent='no')"),
        ),
    ],
)
def test_a_choice_of_errors_comes_last(
    context: RetryContext, decision: RetryLater | SendToDeadLetters
) -> None:
    policy = CustomRetryPolicy(delays=doubled, when=always(False))
    assert policy.decide(context) == decision


@pytest.mark.parametrize(
    "options", [{"max_attempts": 0}, {"jitter": 2}, {"max_deliveries": 0}], ids=str
)
def test_options_of_a_custom_policy_are_checked(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(options))):
        CustomRetryPolicy(**options)
