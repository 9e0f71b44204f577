"""What is wrong with the jobs of a run is found, and nothing in a run that is right."""

from __future__ import annotations

import pytest
from chaos.checker import History, Stored
from chaos.facts import End, Fact, Intent, Result, Sent, Start
from chaos.job_checks import job_troubles
from chaos.profiles import JOB

DOOMED = 9


def added(seq: int) -> list[Fact]:
    return [Intent(seq, None, 0), Sent(seq, JOB, f"id-{seq}")]


def run(
    seq: int, attempt: int, result: Result | None = "done", *, at: int = 0, pid: int = 1
) -> list[Fact]:
    """An attempt; ``result`` None: its worker was killed."""
    at = at or attempt
    number = seq * 100 + at
    start = Start(seq, JOB, f"id-{seq}", None, attempt, attempt > 1, True, pid, number, at)
    return [start] if result is None else [start, End(seq, JOB, pid, number, result, at)]


def failed(seq: int, reason: str | None = "doomed") -> Stored:
    return Stored((seq, JOB), f"id-{seq}", "work.undeliverable", b"{}", reason)


def troubles(
    *facts: list[Fact],
    dead: tuple[Stored, ...] = (),
    completed: set[str] | None = None,
    twofold: frozenset[int] = frozenset(),
) -> list[str]:
    history = History(fact for some in facts for fact in some)
    return list(
        job_troubles(history, doomed={DOOMED}, failed=dead, completed=completed, twofold=twofold)
    )


def test_nothing_is_found_where_all_is_well() -> None:
    facts = [added(1), run(1, 1, None), run(1, 2), added(DOOMED), run(DOOMED, 1, "raised")]
    assert troubles(*facts, dead=(failed(DOOMED),)) == []
    assert troubles(*facts, dead=(failed(DOOMED),), completed={"id-1"}) == []


@pytest.mark.parametrize(
    ("facts", "dead", "completed", "text"),
    [
        ([added(1), run(1, 1, None)], (), None, "was never done"),
        ([added(DOOMED)], (), None, "is not among the failed ones"),
        ([added(DOOMED)], (failed(DOOMED, None),), None, "without its reason"),
        ([added(DOOMED)], (failed(DOOMED, "its worker died"),), None, "without its reason"),
        ([added(1), run(1, 1)], (failed(1),), None, "its handler can do it"),
        ([added(1), run(1, 1)], (), set[str](), "neither completed nor failed"),
        ([added(DOOMED)], (failed(DOOMED),), {f"id-{DOOMED}"}, "both completed and failed"),
        ([added(1), run(1, 1, None), run(1, 1, at=2)], (), None, "attempt 1 was followed by 1"),
    ],
)
def test_each_trouble_is_found(
    facts: list[list[Fact]], dead: tuple[Stored, ...], completed: set[str] | None, text: str
) -> None:
    (found,) = troubles(*facts, dead=dead, completed=completed)
    assert text in found


def test_a_retry_in_two_steps_may_leave_two_copies_if_its_process_was_killed() -> None:
    facts = [added(1), run(1, 1, "raised", pid=7), run(1, 2, at=2), run(1, 2, at=3)]
    assert troubles(*facts, twofold=frozenset({7})) == []
    assert len(troubles(*facts, twofold=frozenset({8}))) == 1
