"""The standard retry policy against a model of its rules."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tests.support.failures import make_context

from matador.errors import DontRetry, DoRetry, EventAssertionError
from matador.policy.retry import (
    Decision,
    RetryContext,
    RetryLater,
    SendToDeadLetters,
    StandardRetryPolicy,
)

policies = st.builds(
    StandardRetryPolicy,
    max_attempts=st.integers(1, 20),
    base_delay=st.floats(0, 1e6),
    max_delay=st.floats(0, 1e6),
    multiplier=st.floats(1, 1e3),
    jitter=st.floats(0, 1),
    max_deliveries=st.integers(1, 20),
)
randoms = st.floats(0, 1, exclude_max=True)
contexts = st.builds(
    make_context,
    error=st.sampled_from(
        [
            ValueError("broken"),
            EventAssertionError("wrong"),
            DontRetry("never"),
            DoRetry("again"),
            DoRetry("again", delay=7),
        ]
    ),
    attempts=st.integers(1, 30),
    deliveries=st.integers(1, 30),
    redelivered=st.booleans(),
    interrupted=st.booleans(),
    idempotent=st.sampled_from(["yes", "no", "unknown", "resumable"]),
    random=randoms,
    max_attempts=st.none() | st.integers(0, 30),
    max_deliveries=st.none() | st.integers(0, 30),
    delay=st.none() | st.floats(0, 1e6),
)


def reason_to_give_up(policy: StandardRetryPolicy, context: RetryContext) -> str | None:
    """The rules in their order, as a table: the first that holds decides."""
    error, receipt = context.error, context.receipt
    most = policy.max_attempts if context.max_attempts is None else context.max_attempts
    deliveries = policy.max_deliveries if context.max_deliveries is None else context.max_deliveries
    used_up, declared = context.attempts >= most, context.idempotent
    safe = declared in {"yes", "resumable"}
    rules = [
        (
            receipt.delivery_count > 1 and receipt.delivery_count >= deliveries,
            f"possibly poisoned: delivered {receipt.delivery_count} times without an outcome",
        ),
        (isinstance(error, EventAssertionError), "assertion error: wrong"),
        (isinstance(error, DontRetry), "never"),
        (
            isinstance(error, DoRetry) and used_up,
            f"max attempts exceeded ({most}) with forced retry",
        ),
        (isinstance(error, DoRetry), None),
        (used_up, f"max attempts exceeded ({most})"),
        (
            receipt.redelivered and not safe,
            f"redelivered, and the handler is not idempotent (idempotent={declared!r})",
        ),
        (
            context.interrupted and not safe,
            f"interrupted by its timeout, and not idempotent (idempotent={declared!r})",
        ),
        (declared == "no", "failed, and must not run again (idempotent='no')"),
        (True, None),
    ]
    return next(reason for holds, reason in rules if holds)


@given(policies, contexts)
def test_the_first_rule_that_holds_decides(
    policy: StandardRetryPolicy, context: RetryContext
) -> None:
    decision: Decision = policy.decide(context)
    reason = reason_to_give_up(policy, context)
    if reason is None:
        assert isinstance(decision, RetryLater)
        delays = [
            context.error.delay if isinstance(context.error, DoRetry) else None,
            context.delay,
            policy.delay(context.attempts, context.random),
        ]
        assert decision.delay == next(delay for delay in delays if delay is not None)
    else:
        assert decision == SendToDeadLetters("undeliverable", reason)


@given(policies, contexts)
def test_the_same_facts_give_the_same_decision(
    policy: StandardRetryPolicy, context: RetryContext
) -> None:
    assert policy.decide(context) == policy.decide(context)


@given(policies, st.integers(1, 2**31 - 2))
def test_delays_never_shrink_and_never_pass_the_longest(
    policy: StandardRetryPolicy, attempt: int
) -> None:
    assert 0 <= policy.delay(attempt) <= policy.delay(attempt + 1) <= policy.max_delay


@given(policies, st.integers(1, 2**31 - 1), randoms)
def test_jitter_takes_off_no_more_than_its_share(
    policy: StandardRetryPolicy, attempt: int, random: float
) -> None:
    whole = policy.delay(attempt)
    delay = policy.delay(attempt, random)
    assert whole * (1 - policy.jitter) <= delay <= whole or delay == whole == 0


@given(policies)
def test_the_first_delay_is_the_base_delay(policy: StandardRetryPolicy) -> None:
    assert policy.delay(1) == min(policy.base_delay, policy.max_delay)
