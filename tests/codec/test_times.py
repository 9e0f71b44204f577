"""Times as text."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from matador.codec.times import from_wire, to_wire


@pytest.mark.parametrize(
    ("moment", "text"),
    [
        (datetime(2026, 11, 15, 19, 2, 37, 435999, tzinfo=UTC), "2026-11-15T19:02:37.435Z"),
        (datetime(2026, 11, 15, 19, 2, 37, tzinfo=UTC), "2026-11-15T19:02:37.000Z"),
        (datetime(7, 1, 2, 3, 4, 5, 6000, tzinfo=UTC), "0007-01-02T03:04:05.006Z"),
        (
            datetime(2026, 1, 1, 1, tzinfo=timezone(timedelta(hours=2))),
            "2025-12-31T23:00:00.000Z",
        ),
    ],
)
def test_a_time_is_written_with_milliseconds_and_z(moment: datetime, text: str) -> None:
    assert to_wire(moment) == text


@pytest.mark.parametrize(
    "text",
    [
        "2026-11-15T19:02:37.435Z",
        "2026-11-15T19:02:37.435000+00:00",
        "2026-11-15T20:02:37.435+01:00",
    ],
)
def test_a_time_is_read_in_utc(text: str) -> None:
    moment = from_wire(text)
    assert moment == datetime(2026, 11, 15, 19, 2, 37, 435000, tzinfo=UTC)
    assert moment.tzinfo is UTC


@pytest.mark.parametrize("text", ["", "now", "2026-11-15T19:02:37", "2026-13-01T00:00:00Z"])
def test_what_is_no_time_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        from_wire(text)
