"""What becomes of a failed message, and what a message must be like: pure decisions."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from tests.support.failures import make_context

from matador.errors import ConfigurationError, DontRetry, DoRetry
from matador.policy.ack import AckStrategy, DeadLetterOptions
from matador.policy.backoff import Exponential
from matador.policy.dedup import Deduplication
from matador.policy.recovery import Recovery
from matador.policy.retry import RetryLater, SendToDeadLetters
from matador.policy.validation import Validation


def undeliverable(reason: str) -> SendToDeadLetters:
    return SendToDeadLetters("undeliverable", reason)


def test_the_defaults() -> None:
    strategy, recovery, letters = AckStrategy(), Recovery(), DeadLetterOptions()
    assert (strategy.mode, strategy.max_retries) == ("auto", 3)
    assert isinstance(strategy.policy.decide(make_context(attempts=2)), RetryLater)
    assert isinstance(strategy.policy.decide(make_context(attempts=3)), SendToDeadLetters)
    assert (recovery.buffer, recovery.max_size, recovery.ttl) == (True, 1000, 30.0)
    assert (letters.enabled, letters.ttl, letters.max_length) == (True, None, None)


def test_a_message_is_tried_as_often_as_max_retries_says() -> None:
    policy = AckStrategy(max_retries=3).policy
    assert policy.decide(make_context()) == RetryLater(1.0)
    assert policy.decide(make_context(attempts=2)) == RetryLater(2.0)
    for attempts in (3, 1 << 60):
        decision = policy.decide(make_context(attempts=attempts))
        assert decision == undeliverable("max attempts exceeded (3)")


def test_requeue_and_dont_retry() -> None:
    never = AckStrategy(requeue=False).policy
    assert never.decide(make_context()) == undeliverable("not to be retried: broken")
    assert never.decide(make_context(error=DoRetry("busy"))) == RetryLater(1.0, "retry requested")
    decision = AckStrategy().policy.decide(make_context(error=DontRetry("no")))
    assert decision == undeliverable("no")

    def early(error: Exception, attempt: int) -> bool:
        return isinstance(error, OSError) and attempt < 2

    policy = AckStrategy(requeue=early).policy
    assert policy.decide(make_context(error=OSError())) == RetryLater(1.0)
    assert isinstance(policy.decide(make_context(error=OSError(), attempts=2)), SendToDeadLetters)
    assert isinstance(policy.decide(make_context()), SendToDeadLetters)


def ten_times(attempt: int) -> int:
    return attempt * 10


def soon(attempt: int) -> str:
    return "soon"


@pytest.mark.parametrize(
    ("delay", "expected"),
    [
        (None, 2.0),  # the standard delays
        (0, 0.0),
        (1.5, 1.5),
        (timedelta(seconds=2), 2.0),
        (ten_times, 20.0),
        (soon, 2.0),  # and more of these in the tests of the policy
    ],
)
def test_delays(delay: Any, expected: float) -> None:
    policy = AckStrategy(retry_delay=delay).policy
    assert policy.decide(make_context(attempts=2)) == RetryLater(expected)


@pytest.mark.parametrize(
    ("made", "given"),
    [
        (AckStrategy, {"mode": "none"}),
        (AckStrategy, {"requeue": 1}),
        (AckStrategy, {"max_retries": 0}),
        (AckStrategy, {"retry_delay": -1}),
        (DeadLetterOptions, {"exchange": ""}),
        (DeadLetterOptions, {"ttl": -1}),
        (DeadLetterOptions, {"max_length": 0}),
        (DeadLetterOptions, {"handler": 7}),
        (Validation, {"max_size": 0}),
        (Validation, {"malformed": "retry"}),
        (Recovery, {"max_size": 0}),
        (Recovery, {"ttl": 0}),
        (Recovery, {"reconnect": "never"}),
    ],
)
def test_wrong_options(made: Any, given: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(given))):
        made(**given)


@pytest.mark.parametrize("body", [b"0", b"false", b'""', b"[]", b"{}", '"漢😀"'.encode(), b" 1 "])
def test_any_json_is_valid(body: bytes) -> None:
    assert Validation().problem_of(body) is None


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b"", "empty"),
        (b"null", "null"),
        (b'"\x00"', "NUL"),
        (b'{"id": 1', "not valid JSON"),
        (b"\xff", "not valid JSON"),
        (b"[" * 100_000, "not valid JSON"),
        (b"1" * 1001, "1001 bytes, but at most 1000"),
    ],
)
def test_what_is_not(body: bytes, problem: str) -> None:
    found = Validation(max_size=1000).problem_of(body) or ""
    if len(body) > 1000 and problem == "not valid JSON":
        found = Validation().problem_of(body) or ""
    assert problem in found
    assert len(found) < 300


def test_dead_letter_options_keep_what_is_given() -> None:
    def handle() -> None: ...

    given = DeadLetterOptions(False, "gone", "key", timedelta(minutes=1), 7, handle)
    assert (given.enabled, given.exchange, given.routing_key) == (False, "gone", "key")
    assert (given.ttl, given.max_length, given.handler) == (60.0, 7, handle)
    assert DeadLetterOptions.of(given) is given
    for kept in (True, None):
        assert DeadLetterOptions.of(kept) == DeadLetterOptions()
    assert DeadLetterOptions.of(False) == DeadLetterOptions(enabled=False)


def test_options_take_durations() -> None:
    assert Deduplication(ttl=timedelta(minutes=1)).ttl == 60.0
    assert Exponential(timedelta(seconds=2), max_delay=timedelta(minutes=1)).text == (
        "exponential:2000:60000"
    )
    assert Exponential(0.5, jitter=0.25).text == "exponential:500~0.25"
