"""Turns rows into deliveries. Nothing here raises because of what a row contains.

The constraints of the tables say which type a column has, but not what is in it: any program can
write headers that are not JSON, or an ordering key that is not UTF-8. A delivery then has what can
be read, and a note about the rest.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec

from matador.model.message import Delivery, Headers, Receipt
from matador.transports.kit.properties import PROPERTIES_HEADER, split_properties
from matador.transports.sqlite.database import LATEST

_NO_HEADERS: Headers = {}
_UNREADABLE = (msgspec.MsgspecError, RecursionError, ValueError)

# Values of any type: headers are read as they were stored.
_decode_headers = msgspec.json.Decoder(dict[str, Any]).decode
_decode_names = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_value = msgspec.json.Decoder().decode


def read_delivery(queue: str, token: int, row: tuple[Any, ...]) -> Delivery:
    """A claimed row: seq, delivery count, priority, id, ordering key, headers, body."""
    seq, count, priority, id_, key, stored, body = row
    try:
        ordering_key = None if key is None else key.decode()
        headers = _NO_HEADERS if stored is None else _decode_headers(stored)
    except _UNREADABLE:
        return _read_malformed(queue, token, row)
    receipt = Receipt(queue, (seq, token), count, count > 1, priority, ordering_key)
    if PROPERTIES_HEADER not in headers:
        return Delivery(body, headers, receipt, None, None, id_)
    headers, properties, problem = split_properties(headers)
    return Delivery(body, headers, receipt, problem, properties, id_)


def _read_malformed(queue: str, token: int, row: tuple[Any, ...]) -> Delivery:
    seq, count, priority, id_, key, stored, body = row
    headers, problem = read_headers(stored)
    headers, properties, unreadable = split_properties(headers)
    problems = [one for one in (problem, unreadable) if one is not None]
    ordering_key = None if key is None else key.decode("utf-8", "surrogateescape")
    if ordering_key is not None and ordering_key.encode("utf-8", "replace") != key:
        problems.append("ordering key: not UTF-8")
    receipt = Receipt(queue, (seq, token), count, count > 1, priority, ordering_key)
    return Delivery(body, headers, receipt, "; ".join(problems), properties, id_)


def read_headers(stored: bytes | None) -> tuple[Headers, str | None]:
    """The headers that can be read, as they were sent; and a note about the others."""
    if stored is None:
        return _NO_HEADERS, None
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


def stored_key(key: str) -> bytes:
    """The ordering key of a receipt as it is stored, also if it is not UTF-8."""
    return key.encode("utf-8", "surrogateescape")


def read_time(milliseconds: int) -> datetime | None:
    """A time from milliseconds since 1970; None if it is after the year 9999."""
    return None if milliseconds > LATEST else datetime.fromtimestamp(milliseconds / 1000, UTC)
