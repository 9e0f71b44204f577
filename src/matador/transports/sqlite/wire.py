"""Turns rows into what others see of them. Nothing here raises because of what a row contains.

Any program can write to the file, and a column of SQLite holds values of any type. What cannot be
read is left out, and a note says what it was.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec

from matador.model.message import Delivery, Headers, Receipt
from matador.transports.kit.properties import PROPERTIES_HEADER, split_properties

_NO_HEADERS: Headers = {}
_NONE = type(None)
_INTEGER = (_NONE, int)
_TEXT = (_NONE, str)
_UNREADABLE = (msgspec.MsgspecError, RecursionError, ValueError, TypeError)

# Any values: what was stored comes out again.
_decode_headers = msgspec.json.Decoder(dict[str, Any]).decode
_decode_names = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_value = msgspec.json.Decoder().decode


def read_delivery(queue: str, token: int, row: tuple[Any, ...]) -> Delivery:
    """A claimed row: seq, count, priority, id (of a job something else), ordering key, headers,
    body."""
    seq, count, priority, id_, key, stored, body = row
    if (
        type(body) is bytes
        and type(count) is int
        and type(priority) in _INTEGER
        and type(key) in _TEXT
    ):
        try:
            headers = _NO_HEADERS if stored is None else _decode_headers(stored)
            receipt = Receipt(queue, (seq, token), count, count > 1, priority, key)
            if PROPERTIES_HEADER not in headers:
                return Delivery(body, headers, receipt, None, None, read_text(id_) or "")
            headers, properties, problem = split_properties(headers)
            return Delivery(body, headers, receipt, problem, properties, read_text(id_) or "")
        except _UNREADABLE:
            pass
    return _read_odd(queue, token, row)


def has_odd_key(row: tuple[Any, ...]) -> bool:
    """Is the ordering key of a claimed row something that nobody can use as one?"""
    return type(row[4]) not in _TEXT


def _read_odd(queue: str, token: int, row: tuple[Any, ...]) -> Delivery:
    seq, count, priority, id_, key, stored, body = row
    headers, problem = read_headers(stored)
    headers, properties, unreadable = split_properties(headers)
    problems = [one for one in (problem, unreadable) if one is not None]
    if type(priority) not in _INTEGER:
        problems.append(f"priority: {_kind(priority)} instead of a whole number")
    if type(key) not in _TEXT:
        problems.append(f"ordering key: {_kind(key)} instead of text")
    if type(body) not in (bytes, str):
        problems.append(f"body: {_kind(body)} instead of bytes")
    number = read_number(count) or 1
    receipt = Receipt(
        queue, (seq, token), number, number > 1, read_number(priority), read_text(key)
    )
    problem = "; ".join(problems) or None
    return Delivery(read_body(body), headers, receipt, problem, properties, read_text(id_) or "")


def read_headers(stored: object) -> tuple[Headers, str | None]:
    """Headers as they were sent, those that can be read; and what could not be."""
    if stored is None:
        return _NO_HEADERS, None
    if not isinstance(stored, (bytes, str)):
        return _NO_HEADERS, f"headers: {_kind(stored)} instead of a JSON object"
    try:
        return _decode_headers(stored), None
    except _UNREADABLE as error:
        whole = f"headers: {error}"
    try:
        named = _decode_names(stored)
    except _UNREADABLE:
        return _NO_HEADERS, whole
    headers: dict[str, Any] = {}
    problems: list[str] = []
    for name, value in named.items():
        try:
            headers[name] = _decode_value(value)
        except _UNREADABLE as error:
            problems.append(f"header {name[:100]!r}: {error}")
    return headers, "; ".join(problems[:3]) or whole


def read_body(stored: object) -> bytes:
    """A body as bytes; text, as other programs write it, is its bytes in UTF-8."""
    if isinstance(stored, bytes):
        return stored
    return str(stored).encode()


def read_id(stored: object) -> str:
    """An id; other types than text as text."""
    return stored if isinstance(stored, str) else read_body(stored).decode(errors="replace")


def read_text(stored: object) -> str | None:
    """Text, or None for whatever else there is."""
    return stored if isinstance(stored, str) else None


def read_number(stored: object) -> int | None:
    """A whole number, or None for whatever else there is."""
    if isinstance(stored, float):
        return int(stored) if abs(stored) < float("inf") else None
    return stored if isinstance(stored, int) else None


def read_time(stored: object) -> datetime | None:
    """A time from milliseconds since 1970; None if it is none, or out of range."""
    if not isinstance(stored, (int, float)):
        return None
    try:
        return datetime.fromtimestamp(stored / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return None


def _kind(value: object) -> str:
    if isinstance(value, (int, float)):
        return "a number"
    return "text" if isinstance(value, str) else "bytes"
