"""The waits between attempts to connect."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matador.errors import ConfigurationError
from matador.model.backoff import BackoffStrategy, ReconnectBackoff


@pytest.mark.parametrize(
    ("strategy", "waits"),
    [
        ("immediate", [0, 1, 1, 1, 1]),
        ("linear", [1, 2, 3, 4, 5]),
        ("exponential", [1, 2, 4, 5, 5]),
    ],
)
def test_waits_grow_as_the_strategy_says(strategy: BackoffStrategy, waits: list[float]) -> None:
    backoff = ReconnectBackoff(strategy, base_delay=1, max_delay=5)
    assert [backoff.delay(attempt) for attempt in range(1, 6)] == waits


@pytest.mark.parametrize(("multiplier", "waits"), [(1, [2, 2, 2]), (3, [2, 6, 18])])
def test_exponential_waits_grow_by_the_multiplier(multiplier: float, waits: list[float]) -> None:
    backoff = ReconnectBackoff(base_delay=2, multiplier=multiplier)
    assert [backoff.delay(attempt) for attempt in range(1, 4)] == waits


@given(
    strategy=st.sampled_from(["immediate", "linear", "exponential"]),
    attempt=st.integers(1, 10**6),
    random=st.floats(0, 1, exclude_max=True),
    jitter=st.floats(0, 1),
)
def test_a_wait_is_never_negative_nor_too_long(
    strategy: BackoffStrategy, attempt: int, random: float, jitter: float
) -> None:
    backoff = ReconnectBackoff(strategy, base_delay=0.5, max_delay=30, jitter=jitter)
    full = backoff.delay(attempt)
    assert full * (1 - jitter) - 1e-9 <= backoff.delay(attempt, random) <= full <= 30


def test_it_gives_up_only_if_it_is_told_to() -> None:
    assert not ReconnectBackoff().gives_up(10**9)
    limited = ReconnectBackoff(max_attempts=3)
    assert [limited.gives_up(attempt) for attempt in (1, 2, 3)] == [False, False, True]


@pytest.mark.parametrize(
    "options",
    [
        {"strategy": "expnential"},
        {"jitter": 1.5},
        {"base_delay": -1},
        {"base_delay": 10, "max_delay": 5},
        {"max_attempts": -1},
        {"multiplier": 0.9},
        {"multiplier": 1001},
    ],
)
def test_options_that_cannot_be_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="ReconnectBackoff"):
        ReconnectBackoff(**options)
