"""Searching a journal: the records of one message, the latest ones, and what is in a segment."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from tests.observe.facts import attempt, received, sent

from matador.observe.journal import search
from matador.observe.journal.records import (
    DeliveryRecord,
    DroppedRecord,
    Record,
    SentRecord,
    encode_record,
    record_of_attempt,
    record_of_sent,
)
from matador.observe.journal.search import find_records, latest_records, segment_records


def sent_line(id: str, at: int, **more: Any) -> bytes:
    return encode_record(record_of_sent(sent(id=id, **more), b"{}", None, at)) + b"\n"


def ended_line(id: str, at: int, **more: Any) -> bytes:
    fact = attempt(received(id=id, **more))
    return encode_record(record_of_attempt(fact, at, "w")) + b"\n"


def dropped_line(at: int) -> bytes:
    return encode_record(DroppedRecord(1, "full", at, "w")) + b"\n"


def short(records: list[Any]) -> list[tuple[str, int]]:
    return [(one.id, one.recorded_at) for one in records]


def test_the_records_of_a_message_are_found_in_all_segments_oldest_first(tmp_path: Path) -> None:
    (tmp_path / "2.jsonl").write_bytes(
        ended_line("m-1", 5) + ended_line("m-2", 6) + b"m-1 is no record\n" + ended_line("m-1", 3)
    )
    (tmp_path / "1.jsonl").write_bytes(
        sent_line("other", 1, metadata={"mentions": "m-1"})
        + sent_line("m-1", 2)
        + sent_line("m-10", 2)
        + dropped_line(4)
    )
    (tmp_path / "0.jsonl").write_bytes(b"")
    (tmp_path / ".open-3.jsonl").write_bytes(ended_line("m-1", 9))
    found, complete = find_records(tmp_path, "m-1", 60)
    assert short(found) == [("m-1", 2), ("m-1", 3), ("m-1", 5)]
    assert [type(one) for one in found] == [SentRecord, DeliveryRecord, DeliveryRecord]
    assert complete
    assert find_records(tmp_path, "nothing", 60) == ([], True)
    assert find_records(tmp_path / "nowhere", "m-1", 60) == ([], True)


def test_the_records_of_what_belongs_together_are_found(tmp_path: Path) -> None:
    (tmp_path / "1.jsonl").write_bytes(
        sent_line("a", 1, correlation_id="trace")
        + ended_line("b", 2, correlation_id="trace")
        + ended_line("c", 3, correlation_id="trace-2")
        + ended_line("trace", 4)[:-1]  # the last line need not be complete
    )
    found, _ = find_records(tmp_path, "trace", 60)
    assert short(found) == [("a", 1), ("b", 2), ("trace", 4)]


@pytest.mark.parametrize("id_", ['a"b', "caf\xe9", "a\\b", "a\nb"])
def test_any_id_can_be_searched_for(tmp_path: Path, id_: str) -> None:
    (tmp_path / "1.jsonl").write_bytes(sent_line("m-1", 1) + sent_line(id_, 2))
    assert short(find_records(tmp_path, id_, 60)[0]) == [(id_, 2)]


def test_a_search_ends_with_its_time_or_when_it_has_found_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        lines = [ended_line("m-1", 10 * number + n) for n in range(4)]
        (tmp_path / f"{number}.jsonl").write_bytes(b"".join(lines))
    assert find_records(tmp_path, "m-1", -1) == ([], False)
    monkeypatch.setattr(search, "MOST_FOUND", 5)
    found, complete = find_records(tmp_path, "m-1", 60)
    assert not complete
    assert [one.recorded_at for one in found] == [10, 11, 12, 13, 20], "of the latest segments"
    monkeypatch.setattr(search, "MOST_FOUND", 3)
    found, complete = find_records(tmp_path, "m-1", 60)
    assert [one.recorded_at for one in found] == [20, 21, 22]
    assert not complete
    monkeypatch.setattr(search, "MOST_FOUND", 12)
    assert len(find_records(tmp_path, "m-1", 60)[0]) == 12
    assert find_records(tmp_path, "m-1", 60)[1]


def test_the_latest_attempts_come_first_up_to_a_limit(tmp_path: Path) -> None:
    (tmp_path / "1.jsonl").write_bytes(ended_line("a", 1) + sent_line("x", 2) + ended_line("b", 3))
    (tmp_path / "2.jsonl").write_bytes(b"no record\n" + ended_line("c", 4) + dropped_line(5))
    assert short(latest_records(tmp_path, 10)) == [("c", 4), ("b", 3), ("a", 1)]
    assert short(latest_records(tmp_path, 2)) == [("c", 4), ("b", 3)]
    assert short(latest_records(tmp_path, 1)) == [("c", 4)]
    assert latest_records(tmp_path / "nowhere", 1) == []


def test_only_the_end_of_a_long_segment_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [ended_line(str(n), n) for n in range(10, 20)]
    (tmp_path / "1.jsonl").write_bytes(b"".join(lines))
    monkeypatch.setattr(search, "_TAIL", len(lines[0]) * 3 + 5)
    assert short(latest_records(tmp_path, 10)) == [("19", 19), ("18", 18), ("17", 17)]


def test_a_segment_that_is_deleted_meanwhile_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("1", "2"):
        (tmp_path / f"{name}.jsonl").write_bytes(ended_line(f"m-{name}", int(name)))
    opened = search.open_segment

    def gone(path: Path) -> int:
        if path.name == "2.jsonl":
            os.unlink(path)  # noqa: PTH108 - as another process does
        return opened(path)

    monkeypatch.setattr(search, "open_segment", gone)
    assert short(latest_records(tmp_path, 10)) == [("m-1", 1)]
    (tmp_path / "2.jsonl").write_bytes(ended_line("m-1", 2))
    assert short(find_records(tmp_path, "m-1", 60)[0]) == [("m-1", 1)]


def test_the_records_of_a_segment_are_read_as_far_as_they_are_any(tmp_path: Path) -> None:
    path = tmp_path / "1.jsonl"
    path.write_bytes(sent_line("a", 1) + b"[" * 100_000 + b"\n\xff\n" + dropped_line(2))
    found: list[Record] = list(segment_records(path))
    assert [one.recorded_at for one in found] == [1, 2]
    with pytest.raises(OSError, match="regular file"):
        list(segment_records(tmp_path))
