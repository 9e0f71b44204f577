"""What envelopes are made of."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, get_args

import msgspec
from hypothesis import strategies as st

from matador.model.envelope import MOST_ATTEMPTS, Docket, Importance
from matador.model.event import event

texts = st.text(max_size=30)
numbers = st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False)
scalars = st.none() | st.booleans() | numbers | texts


def _containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4)


json_values: st.SearchStrategy[Any] = st.recursive(scalars, _containers, max_leaves=12)
json_objects = st.dictionaries(texts, json_values, max_size=5)


def _to_milliseconds(moment: datetime) -> datetime:
    return moment.replace(microsecond=moment.microsecond // 1000 * 1000)


moments = st.datetimes(timezones=st.just(UTC)).map(_to_milliseconds)
dockets = st.builds(
    Docket,
    event_key=texts.filter(bool),
    target_subscriber=texts.filter(bool),
    created_at=moments,
    attempts=st.integers(1, MOST_ATTEMPTS),
    importance=st.sampled_from(get_args(Importance)),
    original_queue=st.none() | texts,
    scheduled_for=st.none() | moments,
    first_error=st.none() | texts,
    last_error=st.none() | texts,
    correlation_id=st.none() | texts,
    metadata=json_objects,
)


@event("anything", description="A payload of any JSON data.")
class Anything(msgspec.Struct):
    content: Any
    price: float | None = None
    name: str = ""
