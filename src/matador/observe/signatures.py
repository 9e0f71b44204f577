"""Error signatures: an error without what differs from one occurrence to the next.

``order 17 of 'ann' not found`` and ``order 4 of 'bob' not found`` have one signature,
``order <n> of <text> not found``. The rules are regular expressions that mean the same in Python
and in Java: Spark groups millions of errors, and the dashboard those of a queue, alike.
"""

from __future__ import annotations

import hashlib
import re
from typing import Final

LONGEST_INPUT: Final = 4000
"""The characters of an error that count; the journal keeps no more."""

LONGEST_SIGNATURE: Final = 300

ID_LENGTH: Final = 10
"""Hexadecimal digits of a signature's id: with ten thousand signatures, one in 20,000 clashes."""

# How the rules mean the same in both languages, and stay fast with any text: character classes are
# spelled out (\w, \d, \s and \b differ for Unicode); repetitions are possessive or bounded (Java
# recurses on repeated groups, and neither may backtrack for long); and a rule starts only where a
# word starts, so that a long word is read once.
_WORD: Final = "0-9A-Za-z"
_START: Final = rf"(?<![{_WORD}])"
_END: Final = rf"(?![{_WORD}])"
_SPACES: Final = "[ \\t\\n\\r\\x0b\\x0c\\x1c-\\x1f\\x85\\u00a0\\u2028\\u2029]++"
_CLOCK: Final = r"[0-9]{1,2}:[0-9]{2}(?::[0-9]{2}(?:[.,][0-9]++)?)?"
_ZONE: Final = r"(?: ?(?:Z|UTC|[+-][0-9]{2}:?[0-9]{2}))?"

_IPV6: Final = (
    rf"(?<![{_WORD}:.])(?=[a-fA-F:]{{0,40}}[0-9])(?:[0-9a-fA-F]{{0,4}}:){{2,7}}"
    rf"[0-9a-fA-F]{{0,4}}(?![{_WORD}:])"
)

RULES: Final[tuple[tuple[str, str], ...]] = (
    (_SPACES, " "),
    (rf"{_START}[A-Za-z][A-Za-z0-9+.-]{{1,20}}+://[^ \"'<>()\[\]{{}}|]++", "<url>"),
    (r"(?<![0-9A-Za-z._%+-])[0-9A-Za-z._%+-]++@[0-9A-Za-z-]++(?:\.[0-9A-Za-z-]++){1,8}", "<email>"),
    (rf"{_START}[0-9a-fA-F]{{8}}(?:-[0-9a-fA-F]{{4}}){{3}}-[0-9a-fA-F]{{12}}{_END}", "<id>"),
    (rf"{_START}[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}(?:[T ]{_CLOCK}{_ZONE})?{_END}", "<time>"),
    (rf"{_START}[0-9]{{1,2}}:[0-9]{{2}}:[0-9]{{2}}(?:[.,][0-9]++)?{_ZONE}{_END}", "<time>"),
    (rf"{_START}[0-9]{{1,3}}(?:\.[0-9]{{1,3}}){{3}}(?:[:/][0-9]++)?{_END}", "<ip>"),
    (_IPV6, "<ip>"),
    (r'"[^"]*+"', "<text>"),
    # An apostrophe inside a word (can't, O'Brien) neither opens nor closes a quotation.
    (rf"{_START}'[^']*+(?:'(?=[{_WORD}])[^']*+){{0,20}}+'{_END}", "<text>"),
    (r"“[^”]*+”|\u2018[^\u2019]*+\u2019|«[^»]*+»", "<text>"),
    # A quotation or an object that the end of the text cuts off.
    (r'"[^"]{40,}+$', "<text>"),
    (rf"{_START}'[^']{{40,}}+$", "<text>"),
    # Objects and lists, from the inside out.
    *[(r"\{[^{}]*+\}", "<data>"), (r"\[[^\[\],]*+,[^\[\]]*+\]", "<data>")] * 4,
    (r"[\[{][^\[\]{}]{40,}+$", "<data>"),
    (rf"(?<![{_WORD}<>/\\])(?:~|\.{{1,2}})?(?:/[^ /:;,()<>\[\]{{}}|]++){{1,60}}+/?", "<path>"),
    (rf"{_START}[A-Za-z]:\\[^ :;,()<>|]++", "<path>"),
    (r"0x[0-9a-fA-F]++", "<n>"),
    # Long words with digits are ids; in short ones only the digits are replaced (v2, 30ms, utf8).
    (rf"{_START}(?=[A-Za-z]{{0,200}}+[0-9])[{_WORD}]{{8,}}+", "<n>"),
    (rf"(?:(?<![{_WORD}_)\]>])[-+])?[0-9]++(?:[.,][0-9]++){{0,8}}+(?:[eE][-+]?[0-9]++)?", "<n>"),
    (rf"(?<![{_WORD}_)\]`])\[(?:<[a-z]{{1,5}}>)?\]", "<data>"),
)
"""Patterns and their replacements, applied in this order."""

_COMPILED: Final = [(re.compile(pattern), instead) for pattern, instead in RULES]


def signature_text(error: str) -> str:
    """An error with everything replaced that differs from one occurrence to the next.

    At most ``LONGEST_SIGNATURE`` characters, without the digits 0 to 9.

    Example:
        >>> signature_text("order 17 of 'ann' not found at 10.0.0.7:5432")
        'order <n> of <text> not found at <ip>'
    """
    text = error[:LONGEST_INPUT]
    for pattern, instead in _COMPILED:
        text = pattern.sub(instead, text)
    return text.strip(" ")[:LONGEST_SIGNATURE]


def signature_id(error_type: str | None, error: str) -> str:
    """The short id of an error's group, the same on every machine and in every run.

    Example:
        >>> signature_id("KeyError", "'a'") == signature_id("KeyError", "'b'")
        True
    """
    return signature_id_of_text(error_type, signature_text(error))


def signature_id_of_text(error_type: str | None, text: str) -> str:
    """``signature_id`` of an error whose ``signature_text`` is known."""
    named = f"{error_type or ''}: {text}"
    return hashlib.sha256(named.encode("utf-8", "replace")).hexdigest()[:ID_LENGTH]
