"""The tables of the page "The five ways in" say what the code does."""

from __future__ import annotations

import pytest
from docs.five_ways import EXPLAINED, PAGE, ROWS, WAYS, Row, cell, features, page_with_tables


def test_the_page_has_the_tables_of_today() -> None:
    page = PAGE.read_text()
    assert page == page_with_tables(page), "run docs/five_ways.py"


def test_no_cell_is_empty() -> None:
    lines = [line.strip("|").split("|") for line in features().splitlines()[2:]]
    assert [len(cells) for cells in lines] == [1 + len(WAYS)] * len(ROWS)
    assert all(text.strip() for cells in lines for text in cells)


def test_an_explanation_is_needed_and_says_more_than_no() -> None:
    missing = Row("a feature that nobody has", lambda way: False)
    with pytest.raises(SystemExit, match="Events has no a feature that nobody has"):
        cell(missing, WAYS[0])
    rows, ways = {row.name for row in ROWS}, {way.name for way in WAYS}
    for (row, way), text in EXPLAINED.items():
        assert row in rows
        assert way in ways
        assert len(text.split()) > 3, f"{row} in {way}: {text}"


def test_what_is_explained_away_does_not_exist() -> None:
    for row in ROWS:
        for way in WAYS:
            if (row.name, way.name) in EXPLAINED:
                assert not row.shown(way), f"{way.name} has {row.name} by now"
