"""Duplicate keys, against JSON whose duplicates are known because the test wrote it."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from matador.codec.json_text import find_duplicate_key

keys = st.sampled_from(["a", "b", "é", "", '"', "\\", "a b", "😀", "\x00"])


@st.composite
def spelled(draw: st.DrawFn, text: str) -> str:
    """A string as JSON, with any of its characters escaped."""
    escaped = [
        "".join(f"\\u{unit:04x}" for unit in memoryview(one.encode("utf-16-le")).cast("H"))
        if draw(st.booleans())
        else json.dumps(one, ensure_ascii=False)[1:-1]
        for one in text
    ]
    return f'"{"".join(escaped)}"'


numbers = st.sampled_from(
    ["1", "1.0", "1e5", "1E+5", "100000.0", "0", "-0", "-0.0", "9" * 30, "1e999"]
)
literals = numbers | st.sampled_from(["null", "true", "false"]) | keys.flatmap(spelled)
spaces = st.sampled_from(["", "", "", " ", "\n\t "])


class Written:
    """A piece of JSON and the keys that objects in it have more than once."""

    def __init__(self, text: str, twice: set[str]) -> None:
        self.text = text
        self.twice = twice

    def __repr__(self) -> str:
        return f"Written({self.text!r}, {self.twice!r})"


@st.composite
def objects(draw: st.DrawFn, inner: st.SearchStrategy[Written]) -> Written:
    pairs = draw(st.lists(st.tuples(keys, inner), max_size=4))
    space = draw(spaces)
    fields = [
        f"{space}{draw(spelled(key))}{space}:{space}{value.text}{space}" for key, value in pairs
    ]
    twice = {key for key, times in Counter(key for key, _ in pairs).items() if times > 1}
    return Written("{" + ",".join(fields) + "}", twice.union(*(value.twice for _, value in pairs)))


def arrays(inner: st.SearchStrategy[Written]) -> st.SearchStrategy[Written]:
    def write(elements: list[Written]) -> Written:
        twice: set[str] = set()
        return Written(
            "[" + ",".join(one.text for one in elements) + "]",
            twice.union(*(one.twice for one in elements)),
        )

    return st.lists(inner, max_size=4).map(write)


def _containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return objects(inner) | arrays(inner)


documents = st.recursive(literals.map(lambda text: Written(text, set())), _containers)


@given(documents)
def test_a_duplicate_is_found_exactly_where_there_is_one(document: Written) -> None:
    found = find_duplicate_key(document.text.encode())
    if document.twice:
        assert found in document.twice
    else:
        assert found is None
