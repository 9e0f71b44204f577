"""The index: sorted runs of keys, merged now and then."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from matador.spark.tables.dedup_index import (
    known,
    left_overs,
    merged,
    run_name,
    runs_of,
    save_run,
    sorted_order,
    to_merge,
)
from matador.spark.tables.keys import Keys


def keys_of(*pairs: tuple[int, int]) -> Keys:
    keys = np.array(pairs, np.uint64).reshape(-1, 2).T
    return keys[:, sorted_order(keys)]


def loaded(folder: Path) -> list[Keys]:
    return [run.load() for run in runs_of(folder)]


def put(folder: Path, first: int, last: int, keys: Keys) -> None:
    save_run(folder / run_name(first, last), keys)


def test_keys_are_found_in_any_run_even_if_their_first_halves_are_equal(tmp_path: Path) -> None:
    put(tmp_path, 1, 1, keys_of((1, 1), (5, 1), (5, 2), (5, 3)))
    put(tmp_path, 2, 2, keys_of((9, 9)))

    wanted = keys_of((0, 0), (1, 1), (1, 2), (5, 3), (5, 4), (9, 9), (10, 0))
    found = known(loaded(tmp_path), wanted)

    assert found.tolist() == [False, True, False, True, False, True, False]


def test_many_small_runs_are_merged_and_what_was_merged_is_a_left_over(tmp_path: Path) -> None:
    for number in range(1, 9):
        put(tmp_path, number, number, keys_of((number, 1), (100 - number, 1)))

    runs = to_merge(runs_of(tmp_path))
    assert [run.first for run in runs] == list(range(1, 9))
    put(tmp_path, 1, 8, merged([run.load() for run in runs]))

    assert [(run.first, run.last) for run in runs_of(tmp_path)] == [(1, 8)]
    assert len(left_overs(tmp_path)) == 8
    every = keys_of(*[(number, 1) for number in range(1, 9)])
    assert known(loaded(tmp_path), every).all()


def test_equal_keys_are_neighbours_even_if_first_halves_are_shared(tmp_path: Path) -> None:
    keys = np.array([[5, 5, 1, 5, 5], [2, 1, 9, 2, 1]], np.uint64)

    order = sorted_order(keys)

    assert order.tolist() == [2, 1, 4, 0, 3]


def test_a_key_is_moved_seldom(tmp_path: Path) -> None:
    moved = 0
    for number in range(1, 65):
        put(tmp_path, number, number, keys_of(*[(number * 100 + one, 1) for one in range(100)]))
        while runs := to_merge(runs_of(tmp_path)):
            put(tmp_path, runs[0].first, runs[-1].last, merged([run.load() for run in runs]))
            moved += sum(run.size for run in runs)
            for path in left_overs(tmp_path):
                path.unlink()

    assert len(runs_of(tmp_path)) == 1
    assert moved < 2.2 * 6400


def test_a_large_run_is_left_alone_by_small_ones(tmp_path: Path) -> None:
    put(tmp_path, 1, 1, keys_of(*[(number, 1) for number in range(10_000)]))
    for number in range(2, 9):
        put(tmp_path, number, number, keys_of((number, 2)))
    assert to_merge(runs_of(tmp_path)) == []

    put(tmp_path, 9, 9, keys_of((9, 2)))
    assert [run.first for run in to_merge(runs_of(tmp_path))] == list(range(2, 10))


def test_a_gap_ends_what_is_known(tmp_path: Path) -> None:
    put(tmp_path, 1, 2, keys_of((1, 1)))
    put(tmp_path, 4, 4, keys_of((2, 1)))

    assert [(run.first, run.last) for run in runs_of(tmp_path)] == [(1, 2)]
