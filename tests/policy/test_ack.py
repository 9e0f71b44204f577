"""What becomes of a failed message, and what a message must be like: pure decisions."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from matador.errors import ConfigurationError, DontRetry
from matador.policy.ack import AckStrategy, DeadLetterOptions
from matador.policy.recovery import Recovery
from matador.policy.retry import RetryLater, SendToDeadLetters
from matador.policy.validation import Validation

ERROR = ValueError("over")


def test_a_message_is_tried_as_often_as_max_retries_says() -> None:
    ack = AckStrategy(max_retries=3)
    assert ack.decide(ERROR, 1) == ack.decide(ERROR, 2) == RetryLater(0.0)
    assert ack.decide(ERROR, 3) == SendToDeadLetters("dlq", "max attempts exceeded (3)")
    assert isinstance(ack.decide(ERROR, 1 << 60), SendToDeadLetters)


def test_requeue_and_dont_retry() -> None:
    assert isinstance(AckStrategy(requeue=False).decide(ERROR, 1), SendToDeadLetters)
    assert AckStrategy().decide(DontRetry("no"), 1) == SendToDeadLetters("dlq", "no")
    ack = AckStrategy(requeue=lambda error, attempt: isinstance(error, OSError) and attempt < 2)
    assert ack.decide(OSError(), 1) == RetryLater(0.0)
    assert isinstance(ack.decide(OSError(), 2), SendToDeadLetters)
    assert isinstance(ack.decide(ERROR, 1), SendToDeadLetters)


def ten_times(attempt: int) -> int:
    return attempt * 10


def always(value: Any) -> Any:
    def delay(attempt: int) -> Any:
        return value

    return delay


def broken(attempt: int) -> float:
    return attempt // 0


@pytest.mark.parametrize(
    ("delay", "expected"),
    [
        (None, 0.0),
        (1.5, 1.5),
        (timedelta(seconds=2), 2.0),
        (ten_times, 10.0),
        (always(-1), 0.0),
        (always(float("nan")), 0.0),
        (always("soon"), 0.0),
        (broken, 0.0),
    ],
)
def test_delays(delay: Any, expected: float) -> None:
    assert AckStrategy(retry_delay=delay).decide(ERROR, 1) == RetryLater(expected)


def test_a_function_that_fails_itself_decides_nothing() -> None:
    def fails(error: Exception, attempt: int) -> bool:
        raise RuntimeError("a bug")

    ack = AckStrategy(requeue=fails)
    assert ack.decide(ERROR, 1) == RetryLater(0.0)
    assert isinstance(ack.decide(ERROR, 3), SendToDeadLetters)  # not for ever


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
