"""No statement reads more of the table than it must: every one goes through an index."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from matador.transports.sqlite import (
    browse,
    claim,
    connection,
    flows,
    jobs,
    routes,
    send,
    settle,
    sweep,
)
from matador.transports.sqlite.database import open_for_writing

# Each merges two sorted lists: the jobs of two states.
SORTED = ("_DELAYED_JOBS", "_UNPARK")


def statements() -> Iterator[tuple[str, str]]:
    for module in (browse, claim, connection, flows, jobs, routes, send, settle, sweep):
        for name, value in vars(module).items():
            if name.isupper():
                for text in cast("tuple[object, ...]", value if type(value) is tuple else (value,)):
                    if isinstance(text, str) and text.startswith(("SELECT", "UPDATE", "DELETE")):
                        yield name, text


STATEMENTS = list(statements())


def test_all_are_seen() -> None:
    assert len(STATEMENTS) > 15


@pytest.mark.parametrize(("name", "statement"), STATEMENTS)
def test_nothing_is_scanned_or_sorted(file: Path, name: str, statement: str) -> None:
    connection = open_for_writing(file, synchronous="NORMAL", busy_timeout=1)
    numbered = statement.count("?1") and max(int(n) for n in "1234" if f"?{n}" in statement)
    plan = connection.execute(
        f"EXPLAIN QUERY PLAN {statement}", [1] * (numbered or statement.count("?"))
    ).fetchall()
    connection.close()
    steps = [str(row[3]) for row in plan]
    assert [step for step in steps if step.startswith("SCAN messages")] == []
    sorts = [step for step in steps if "TEMP B-TREE" in step]
    assert bool(sorts) == (name in SORTED)
