"""Times on the wire: ISO 8601 in UTC, with milliseconds and a ``Z``."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec

POINT = ord(".")
_FIRST = datetime(1, 1, 1, tzinfo=UTC)
_LAST = datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)
_encode = msgspec.json.Encoder().encode  # much faster than datetime.isoformat


def in_utc(moment: datetime) -> datetime:
    """The same moment in UTC.

    Raises:
        ValueError: it has no time zone, so it is ambiguous.
    """
    if moment.tzinfo is UTC:
        return moment
    if moment.utcoffset() is None:
        raise ValueError(f"the time {moment.isoformat()} has no time zone")
    try:
        return moment.astimezone(UTC)
    except OverflowError:  # within hours of the first or last valid time
        return _FIRST if moment.year == 1 else _LAST


def to_wire(moment: datetime) -> str:
    """A time as text, truncated to milliseconds.

    Raises:
        ValueError: it has no time zone.

    Example:
        >>> from datetime import datetime, timezone
        >>> to_wire(datetime(2026, 11, 15, 19, 2, 37, 435999, tzinfo=timezone.utc))
        '2026-11-15T19:02:37.435Z'
    """
    return quoted(moment)[1:-1].decode()


def quoted(moment: datetime) -> bytes:
    """``to_wire`` as JSON: bytes between quotes.

    Raises:
        ValueError: it has no time zone.
    """
    return to_milliseconds(_encode(in_utc(moment)), 20)


def to_milliseconds(text: bytes, end: int) -> bytes:
    """``text`` with the fraction of a time in it changed to three digits.

    ``end`` is where the seconds of that time end. msgspec writes six digits after them, or none.
    """
    if text[end] == POINT:
        return text[: end + 4] + text[end + 7 :]
    return text[:end] + b".000" + text[end:]


def from_wire(text: str) -> datetime:
    """Text as a time in UTC.

    Raises:
        ValueError: it is not an ISO 8601 time with a time zone.
    """
    return in_utc(datetime.fromisoformat(text))
