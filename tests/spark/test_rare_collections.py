"""A replay keeps Python's collector from running too often, and leaves it as it was."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from matador.spark.replay.send import rare_collections


@pytest.fixture(autouse=True)
def collector() -> Iterator[None]:
    """As a program begins with it: nothing is frozen, unlike in a run of all tests."""
    before = gc.get_threshold()
    gc.unfreeze()
    yield
    gc.set_threshold(*before)
    gc.freeze()


@pytest.mark.parametrize("own", [700, 0, 10_000_000], ids=["usual", "never", "rarer still"])
def test_it_runs_rarely_meanwhile_and_as_before_afterwards(own: int) -> None:
    gc.set_threshold(own, 11, 12)
    with rare_collections():
        first, *others = gc.get_threshold()
        assert first == 0 if own == 0 else first >= max(own, 100_000)
        assert others == [11, 12]
        assert gc.get_freeze_count() > 0
    assert gc.get_threshold() == (own, 11, 12)
    assert gc.get_freeze_count() == 0


def test_objects_that_the_program_has_frozen_stay_so() -> None:
    gc.freeze()
    try:
        with rare_collections():
            pass
        assert gc.get_freeze_count() > 0
    finally:
        gc.unfreeze()


def test_two_that_overlap_leave_it_as_it_was() -> None:
    before = gc.get_threshold()
    first, second = rare_collections(), rare_collections()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    second.__exit__(None, None, None)
    assert gc.get_threshold() == before
    assert gc.get_freeze_count() == 0
