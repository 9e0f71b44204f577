"""The context of a trace that is not sampled looks like any other one of OpenTelemetry."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest
from opentelemetry import baggage, context, trace
from opentelemetry.context import Context

from matador.observe.trace_context import span_key, unsampled_contexts, unsampled_spans

TEXT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"


def make(text: str = TEXT) -> Any:
    made = dict.__new__(unsampled_contexts())
    made.text = text
    return made


def test_its_span_is_made_once_and_says_what_the_message_said() -> None:
    made = make()
    span = trace.get_current_span(made)
    assert type(span) is unsampled_spans()
    assert trace.get_current_span(made) is span
    known = span.get_span_context()
    assert f"{known.trace_id:032x}-{known.span_id:016x}" == TEXT[3:-3]
    assert (known.is_remote, known.trace_flags) == (True, 0)
    assert not span.is_recording()


def test_what_is_added_goes_to_a_context_of_its_own() -> None:
    made = make()
    more = baggage.set_baggage("tenant", "7", made)
    assert type(more) is Context
    assert baggage.get_baggage("tenant", more) == "7"
    assert trace.get_current_span(more) is trace.get_current_span(made)
    assert baggage.get_all(made) == {}
    with pytest.raises(ValueError, match=r"^$"):
        made["anything"] = 1
    token = context.attach(made)
    try:
        assert context.get_current() is made
    finally:
        context.detach(token)


READS: list[Callable[[Any], Any]] = [
    dict,
    list,
    len,
    bool,
    lambda one: {**one},
    lambda one: one | {"a": 1},
    lambda one: {"a": 1} | one,
    lambda one: one.get("missing", 3),
    lambda one: one.get(span_key()),
    lambda one: one[span_key()],
    lambda one: (span_key() in one, "missing" in one),
    lambda one: (list(one.keys()), list(one.values()), list(one.items())),
    lambda one: list(reversed(one)),
    lambda one: one.copy(),
    lambda one: (one == dict(one), one != dict(one), one == {}, one != {}),
    repr,
]


@pytest.mark.parametrize("read", READS)
def test_every_way_to_read_it_is_that_of_a_dictionary(read: Callable[[Any], Any]) -> None:
    made = make()
    usual = Context({span_key(): made[span_key()]})
    assert read(made) == read(usual)
    assert read(made) == read(usual), "the second time, too"


def test_two_are_equal_if_they_have_the_same_span() -> None:
    made = make()
    assert made == made.copy()
    assert made != make()


def test_one_without_a_valid_text_has_no_valid_span() -> None:
    span = trace.get_current_span(make("00-nonsense"))
    assert not span.get_span_context().is_valid


def test_a_missing_key_is_an_error() -> None:
    with pytest.raises(KeyError):
        make()["missing"]


def test_a_copy_for_another_process_needs_nothing_of_ours() -> None:
    kind, (content,) = make().__reduce_ex__(pickle.HIGHEST_PROTOCOL)
    assert kind is Context
    assert list(content) == [span_key()]
