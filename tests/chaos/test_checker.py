"""The checker finds each kind of trouble in logs that have it, and none in one that has none."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest
from chaos.checker import History, Stored, Verdict, check
from chaos.facts import End, Fact, FactLog, FactReader, Intent, Refused, Result, Sent, Start

NAME = "handle"


def published(*numbers: int, key: str | None = None) -> list[Fact]:
    """Publishes that reported success."""
    return [
        fact for seq in numbers for fact in (Intent(seq, key, seq), Sent(seq, NAME, f"id-{seq}"))
    ]


def run(
    seq: int,
    at: int,
    *,
    until: int | None = -1,
    key: str | None = None,
    result: Result = "done",
    id_: str | None = None,
    intact: bool = True,
) -> list[Fact]:
    """A run from ``at`` to ``until`` (by default a moment later; None: killed in between)."""
    start = Start(
        seq=seq,
        subscriber=NAME,
        id=id_ or f"id-{seq}",
        key=key,
        attempt=1,
        redelivered=False,
        intact=intact,
        pid=1,
        run=at,
        at=at,
    )
    if until is None:
        return [start]
    return [start, End(seq, NAME, 1, at, result, at + 1 if until < 0 else until)]


def stored(seq: int, *, id_: str | None = None) -> Stored:
    return Stored((seq, NAME), id_ or f"id-{seq}", "chaos.events", b"{}")


def verdict(*facts: list[Fact], late_repeats: bool = False, **left: list[Stored]) -> Verdict:
    history = History(fact for some in facts for fact in some)
    return check(history, late_repeats=late_repeats, **left)


def five(found: Verdict) -> tuple[int, int, int, int, int]:
    return found.lost, found.duplicated, found.unexpected, found.reordered, found.stuck


def test_nothing_is_wrong_when_each_is_handled_once() -> None:
    found = verdict(published(1, 2, 3), run(1, 10), run(2, 20), run(3, 30))
    assert five(found) == (0, 0, 0, 0, 0)
    assert (found.published, found.handled) == (3, 3)
    assert found.examples == ()


def test_a_publish_that_reported_success_and_is_nowhere_is_lost() -> None:
    found = verdict(published(1, 2), run(1, 10))
    assert five(found) == (1, 0, 0, 0, 0)
    assert found.examples == ("lost: (2, 'handle')",)


def test_a_run_that_was_killed_or_raised_does_not_count_as_handled() -> None:
    found = verdict(published(1, 2), run(1, 10, until=None), run(2, 20, result="raised"))
    assert five(found) == (2, 0, 0, 0, 0)


def test_a_dead_letter_is_not_lost() -> None:
    found = verdict(published(1), run(1, 10, result="raised"), dead=[stored(1)])
    assert five(found) == (0, 0, 0, 0, 0)
    assert found.dead == 1


def test_a_message_left_in_its_queue_is_stuck_and_not_lost() -> None:
    assert five(verdict(published(1), waiting=[stored(1)])) == (0, 0, 0, 0, 1)


def test_a_message_handled_and_left_in_its_queue_is_stuck() -> None:
    assert five(verdict(published(1), run(1, 10), waiting=[stored(1)])) == (0, 0, 0, 0, 1)


def test_every_completed_run_beyond_the_first_is_a_duplicate() -> None:
    found = verdict(published(1, 2), run(1, 10), run(1, 20), run(1, 30), run(2, 40))
    assert five(found) == (0, 2, 0, 0, 0)


def test_retries_are_not_duplicates() -> None:
    found = verdict(published(1), run(1, 10, result="raised"), run(1, 20))
    assert five(found) == (0, 0, 0, 0, 0)


def test_a_publish_without_an_outcome_may_be_missing_or_there() -> None:
    unknown: list[Fact] = [Intent(1, None, 1), Intent(2, None, 2)]
    assert five(verdict(unknown, run(2, 10))) == (0, 0, 0, 0, 0)


def test_a_message_that_nobody_sent_is_unexpected() -> None:
    assert five(verdict(published(1), run(1, 10), run(7, 20))) == (0, 0, 1, 0, 0)
    assert five(verdict(published(1), run(1, 10), dead=[stored(7)])) == (0, 0, 1, 0, 0)


@pytest.mark.parametrize(("certain", "unexpected"), [(True, 1), (False, 0)])
def test_a_refused_message_is_unexpected_if_it_was_refused_for_certain(
    certain: bool, unexpected: int
) -> None:
    refused: list[Fact] = [Intent(1, None, 1), Refused(1, NAME, "SomeError", "why", certain)]
    assert five(verdict(refused, run(1, 10))) == (0, 0, unexpected, 0, 0)


def test_other_bytes_than_were_sent_are_unexpected() -> None:
    assert five(verdict(published(1), run(1, 10, intact=False))) == (0, 0, 1, 0, 0)


def test_another_identity_is_unexpected() -> None:
    killed = run(1, 10, until=None)
    assert five(verdict(published(1), killed, run(1, 20, id_="other"))) == (0, 0, 1, 0, 0)
    unknown: list[Fact] = [Intent(1, None, 1)]
    assert five(verdict(unknown, killed, run(1, 20, id_="other"))) == (0, 0, 1, 0, 0)
    assert five(verdict(published(1), run(1, 10), dead=[stored(1, id_="x")])) == (0, 0, 1, 0, 0)


def test_an_order_within_a_key_is_seen_to_be_broken() -> None:
    sent = published(1, 2, 3, key="k")
    in_order = [run(1, 10, key="k"), run(2, 20, key="k"), run(3, 30, key="k")]
    swapped = [run(1, 10, key="k"), run(3, 20, key="k"), run(2, 30, key="k")]
    assert five(verdict(sent, *in_order)) == (0, 0, 0, 0, 0)
    assert five(verdict(sent, *swapped)) == (0, 0, 0, 1, 0)


def test_an_order_without_a_key_does_not_matter() -> None:
    assert five(verdict(published(1, 2), run(2, 10), run(1, 20))) == (0, 0, 0, 0, 0)


def test_two_of_one_key_must_not_run_at_once() -> None:
    overlap = [run(1, 10, until=30, key="k"), run(2, 20, key="k")]
    assert five(verdict(published(1, 2, key="k"), *overlap)) == (0, 0, 0, 1, 0)


def test_the_same_message_of_a_key_may_run_again_before_the_next() -> None:
    again = [run(1, 10, until=None, key="k"), run(1, 20, key="k"), run(2, 30, key="k")]
    assert five(verdict(published(1, 2, key="k"), *again)) == (0, 0, 0, 0, 0)
    too_late = [run(1, 10, key="k"), run(2, 20, key="k"), run(1, 30, key="k")]
    assert five(verdict(published(1, 2, key="k"), *too_late)) == (0, 1, 0, 1, 0)


def test_a_late_repeat_is_a_duplicate_where_it_may_happen() -> None:
    sent = published(1, 2, key="k")
    again = (run(1, 10, key="k"), run(2, 20, key="k"), run(1, 30, key="k"))
    assert five(verdict(sent, *again)) == (0, 1, 0, 1, 0)
    assert five(verdict(sent, *again, late_repeats=True)) == (0, 1, 0, 0, 0)


def test_a_late_retry_is_out_of_order_everywhere() -> None:
    failed = run(1, 10, key="k", result="raised")
    late = (failed, run(2, 20, key="k"), run(1, 30, key="k"))
    found = verdict(published(1, 2, key="k"), *late, late_repeats=True)
    assert five(found) == (0, 0, 0, 1, 0)


def test_facts_are_read_as_they_were_written(tmp_path: Path) -> None:
    log, reader = FactLog(tmp_path / "a.facts"), FactReader(tmp_path)
    facts = [*published(1), *run(1, 10)]
    log.write(*facts[:3])
    assert list(reader.new_facts()) == facts[:3]
    log.write(facts[3])
    assert list(reader.new_facts()) == facts[3:]
    assert list(reader.new_facts()) == []


def test_a_line_cut_off_by_a_kill_is_left_out(tmp_path: Path) -> None:
    FactLog(tmp_path / "a.facts").write(*published(1))
    os.truncate(tmp_path / "a.facts", (tmp_path / "a.facts").stat().st_size - 5)
    assert list(FactReader(tmp_path).new_facts()) == published(1)[:1]


def test_a_broken_line_within_a_log_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.facts").write_bytes(b'{"type":"inte\n{"type":"ready","pid":1}\n')
    with pytest.raises(msgspec.DecodeError):
        list(FactReader(tmp_path).new_facts())
