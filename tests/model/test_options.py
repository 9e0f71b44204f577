"""The checks that options share."""

from __future__ import annotations

import pytest

from matador.model.options import optional_seconds, suggestion


@pytest.mark.parametrize(
    ("given", "known", "text"),
    [
        ("evnts", ["events", "billing"], "; did you mean 'events'?"),
        ("events", ["events"], "; did you mean 'events'?"),
        ("xyz", ["events", "billing"], ""),
        ("anything", [], ""),
    ],
)
def test_the_closest_known_name_is_suggested(given: str, known: list[str], text: str) -> None:
    assert suggestion(given, known) == text


def test_no_duration_stays_none() -> None:
    assert optional_seconds(None, "x") is None
    assert optional_seconds(3, "x") == 3.0
