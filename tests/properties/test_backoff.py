"""Waits between attempts to connect, for any options."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from matador.model.backoff import ReconnectBackoff

backoffs = st.builds(
    ReconnectBackoff,
    st.sampled_from(["immediate", "linear", "exponential"]),
    base_delay=st.floats(0, 10),
    max_delay=st.floats(10, 1e6),
    multiplier=st.floats(1, 1000),
    jitter=st.floats(0, 1),
)


@given(backoffs, st.integers(1, 10**6))
def test_waits_never_shrink_and_never_pass_the_longest(
    backoff: ReconnectBackoff, attempt: int
) -> None:
    assert 0 <= backoff.delay(attempt) <= backoff.delay(attempt + 1) <= backoff.max_delay


@given(backoffs, st.integers(1, 10**6))
def test_without_a_base_there_is_no_wait(backoff: ReconnectBackoff, attempt: int) -> None:
    never = ReconnectBackoff(backoff.strategy, base_delay=0, max_delay=backoff.max_delay)
    assert never.delay(attempt) == 0.0
