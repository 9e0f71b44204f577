"""Progress behind the first unfinished message is stored with a commit, and read back."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matador.transports.kafka.delays import level_of, wait_of
from matador.transports.kafka.progress import Progress


@given(st.permutations(range(60)), st.integers(0, 60), st.integers(0, 10**12))
def test_what_is_finished_is_known_after_a_commit(order: list[int], count: int, base: int) -> None:
    progress = Progress(base)
    for number in order:
        assert progress.begin(base + number) == 1
    finished = {base + number for number in order[:count]}
    for offset in order[:count]:
        progress.finish(base + offset)
    again = Progress.read(*progress.commit())
    everything = range(base, base + 60)
    assert {one for one in everything if again.is_finished(one)} == finished
    assert again.offset == min(set(range(base, base + 61)) - finished)
    assert again.in_flight == set(everything) - finished
    again.new_owner()
    assert {again.begin(one) for one in set(everything) - finished} <= {2}


def test_counts_grow_with_every_owner_and_not_with_a_release() -> None:
    progress = Progress(5)
    for count in range(1, 7):
        assert progress.begin(5) == count
        progress = Progress.read(*progress.commit())
        progress.new_owner()
        assert progress.begin(5) == count + 1
        progress.release(5)
    assert progress.offset == 5


def test_a_successor_far_away_keeps_the_place_of_its_original() -> None:
    progress = Progress(3)
    progress.begin(3)
    assert progress.move(3, 10_000)
    again = Progress.read(*progress.commit())
    assert again.moved == {3: 10_000}
    again.begin(10_000)
    again.finish(10_000)
    again.finish(3)
    assert again.offset == 4
    assert again.is_finished(10_000)
    assert again.moved == {}


def test_the_text_always_fits_and_says_when_it_is_crowded() -> None:
    random = Random(1)
    progress = Progress(0)
    for offset in range(20_000):
        progress.begin(offset)
        progress.counts[offset] = random.randint(1, 5)
    for offset in random.sample(range(1, 20_000), 10_000):
        progress.finish(offset)
    offset, text = progress.commit()
    assert offset == 0
    assert len(text) < 4096
    assert progress.crowded


@pytest.mark.parametrize(
    "text",
    [None, "", "theirs"]
    + [mark + rest for mark in ("m0:", "m1:") for rest in ("", "\x00", "é", "zzzz", "0" * 99)],
)
def test_a_text_of_somebody_else_means_nothing(text: str | None) -> None:
    progress = Progress.read(7, text)
    assert (progress.offset, progress.in_flight, progress.moved) == (7, set(), {})


@given(st.floats(0.001, 10**7))
def test_a_delay_comes_to_an_end_without_being_early(delay: float) -> None:
    left, hops = delay, 0
    while left > 0:
        wait = min(wait_of(level_of(left)), left)
        assert wait > 0
        left -= wait
        hops += 1
    assert hops <= 16 + delay / wait_of(14)
