"""Keys say whether two rows are the same."""

from __future__ import annotations

import uuid

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from matador.spark.tables.keys import Keys, delivery_keys, event_keys

texts = st.one_of(st.uuids().map(str), st.text(max_size=40))


def as_pairs(keys: Keys) -> list[tuple[int, int]]:
    return list(zip(keys[0].tolist(), keys[1].tolist(), strict=True))


@given(st.lists(texts, max_size=20))
def test_equal_ids_have_equal_keys_in_any_company(ids: list[str]) -> None:
    together = as_pairs(event_keys(ids))
    alone = [as_pairs(event_keys([one]))[0] for one in ids]

    assert together == alone
    assert len(set(together)) == len(set(ids))


def test_neighbouring_ids_are_spread_evenly() -> None:
    keys = event_keys([str(uuid.UUID(int=number)) for number in range(4000)])

    upper_half = (keys[0] >= np.uint64(1 << 63)).mean()
    assert 0.45 < upper_half < 0.55
    assert len(set(as_pairs(keys))) == 4000


def test_a_delivery_is_told_by_its_id_its_attempt_and_its_beginning() -> None:
    one, other = str(uuid.UUID(int=1)), str(uuid.UUID(int=2))
    ids = [one, one, one, other, one]
    attempts = np.array([1, 2, 1, 1, 1])
    started = np.array([10, 10, 11, 10, 10])

    keys = as_pairs(delivery_keys(ids, attempts, started))

    assert len(set(keys)) == 4
    assert keys[0] == keys[4]


def test_no_ids_have_no_keys() -> None:
    assert event_keys([]).shape == (2, 0)
    assert delivery_keys([], np.array([], np.int64), np.array([], np.int64)).shape == (2, 0)
