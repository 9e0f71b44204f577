"""What can be wrong with a text though it looks like JSON: keys twice, halves of characters."""

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
    """The first key that one JSON object of the body has twice (the start of a long one), or None.

    Parsers keep one of the two and drop the other in silence, so such a body is ambiguous. A body
    that reads and writes back to the same bytes has no duplicates; only others are searched. What
    is not JSON, or nested too deeply to be read, has none: it is refused elsewhere.
    """
    try:
        if _ENCODER.encode(_ANY.decode(body)) == body:
            return None
    except (ValueError, RecursionError):
        pass  # it may hold numbers that only a payload's type can read
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
    """Refuse a body in which one JSON object has a key twice.

    Raises:
        DecodeError: there is one; it is named.
    """
    twice = find_duplicate_key(body)
    if twice is not None:
        raise DecodeError(duplicate_key(twice))


def duplicate_key(key: str) -> str:
    """What is wrong with a body that has a key twice."""
    return f"the body has the key {storable_text(key, _LONGEST_KEY)!r} twice in one object"


def escaped_surrogate(body: bytes) -> str | None:
    """What is wrong with JSON that has half of a character in an escape (``\\ud800``), or None."""
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
    """What is wrong with bytes that have half of a character as if it were UTF-8, or None."""
    half = _HALF_IN_UTF8.search(body)
    if half is None:
        return None
    code = ord(half[0].decode("utf-8", "surrogatepass"))
    return f"has a lone surrogate (U+{code:04X}, half of a character) at byte {half.start()}"
