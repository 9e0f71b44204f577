"""Times as they stand on the wire: ISO 8601 in UTC, with milliseconds and a ``Z``."""

from __future__ import annotations

from datetime import UTC, datetime


def to_wire(moment: datetime) -> str:
    """A time as text.

    Example:
        >>> from datetime import datetime, timezone
        >>> to_wire(datetime(2026, 11, 15, 19, 2, 37, 435999, tzinfo=timezone.utc))
        '2026-11-15T19:02:37.435Z'
    """
    if moment.tzinfo is not UTC:
        moment = moment.astimezone(UTC)
    return moment.isoformat(timespec="milliseconds")[:-6] + "Z"


def from_wire(text: str) -> datetime:
    """Text as a time in UTC.

    Raises:
        ValueError: it is no ISO 8601 time with a time zone.
    """
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError(f"{text!r} has no time zone")
    return moment.astimezone(UTC)
