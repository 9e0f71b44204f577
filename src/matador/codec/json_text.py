"""Finds problems in JSON that parsers do not report well: duplicate keys and lone surrogates."""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec

from matador.errors import DecodeError
from matador.model.text import storable_text

_ANY = msgspec.json.Decoder()
_ENCODER = msgspec.json.Encoder()
_LONGEST_KEY = 100
_ESCAPE = re.compile(rb"\\(?:u([0-9a-fA-F]{4})|.)", re.DOTALL)
_HALF_IN_UTF8 = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]")


def find_duplicate_key(body: bytes) -> str | None:
    """The first duplicate key of a JSON object in the body (the start of a long one), or None.

    Such a body is ambiguous, because parsers silently drop one of the values. A body that decodes
    and encodes to the same bytes has no duplicates; only others are searched. Invalid JSON, or JSON
    that is nested too deeply, yields None: it is refused elsewhere.
    """
    try:
        if _ENCODER.encode(_ANY.decode(body)) == body:
            return None
    except (ValueError, RecursionError):
        pass  # it may contain numbers that need the payload's type
    found: list[str] = []

    def note(pairs: list[tuple[str, Any]]) -> None:
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                found.append(key)
            seen.add(key)

    try:
        json.loads(str(body, "utf-8"), object_pairs_hook=note, parse_int=len, parse_float=len)
    except (ValueError, RecursionError):
        return None
    return found[0][:_LONGEST_KEY] if found else None


def refuse_duplicate_keys(body: bytes) -> None:
    """Refuse a body with a duplicate key.

    Raises:
        DecodeError: a JSON object has a duplicate key; names it.
    """
    twice = find_duplicate_key(body)
    if twice is not None:
        raise DecodeError(duplicate_key(twice))


def duplicate_key(key: str) -> str:
    """The error text for a duplicate key."""
    return f"the body has the duplicate key {storable_text(key, _LONGEST_KEY)!r}"


def escaped_surrogate(body: bytes) -> str | None:
    """The error text for JSON with a lone surrogate in an escape (``\\ud800``), or None."""
    high: re.Match[bytes] | None = None
    for escape in _ESCAPE.finditer(body):
        code = int(escape[1] or b"0", 16)
        if high is not None:
            if escape.start() != high.end() or not 0xDC00 <= code <= 0xDFFF:
                break
            high = None
        elif 0xD800 <= code <= 0xDBFF:
            high = escape
        elif 0xDC00 <= code <= 0xDFFF:
            high = escape
            break
    if high is None:
        return None
    return f"has a lone surrogate ({high[0].decode()}, half of a character) at byte {high.start()}"


def written_surrogate(body: bytes) -> str | None:
    """The error text for bytes with a lone surrogate encoded like UTF-8, or None."""
    half = _HALF_IN_UTF8.search(body)
    if half is None:
        return None
    code = ord(half[0].decode("utf-8", "surrogatepass"))
    return f"has a lone surrogate (U+{code:04X}, half of a character) at byte {half.start()}"
