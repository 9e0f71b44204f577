"""Triage: groups dead letters by error signature, so that thousands of them show as three bugs.

``order 17 of 'ann' not found`` and ``order 4 of 'bob' not found`` have one signature,
``order <n> of <text> not found``. The rules are regular expressions that mean the same in Python
and in Java: Spark groups millions of errors, and a shell one of them, with the same result.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import Any, Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from matador.spark.runtime.arrow import Schema, Table, compute, pa

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
    named = f"{error_type or ''}: {signature_text(error)}"
    return hashlib.sha256(named.encode("utf-8", "replace")).hexdigest()[:ID_LENGTH]


def signature_text_column(error: Column) -> Column:
    """``signature_text`` as a Spark expression, without Python."""
    text = F.substring(error, 1, LONGEST_INPUT)
    for pattern, instead in RULES:
        text = F.regexp_replace(text, pattern, instead)
    return F.substring(F.trim(text), 1, LONGEST_SIGNATURE)


def signature_id_column(error_type: Column, signature: Column) -> Column:
    """``signature_id`` as a Spark expression, of an error's type and its ``signature_text``."""
    named = F.concat(F.coalesce(error_type, F.lit("")), F.lit(": "), signature)
    return F.substring(F.sha2(named.cast("binary"), 256), 1, ID_LENGTH)


MOST_NAMES: Final = 100
"""How many events, subscribers and queues a group lists: a message can name any event."""

_SETS = ("events", "subscribers", "queues")

_INSTANT = pa.timestamp("us", tz="UTC")
_NAMES = pa.list_(pa.string())

TRIAGE: Final[Schema] = pa.schema(
    [
        pa.field("signature", pa.string(), False),
        pa.field("error_type", pa.string()),
        pa.field("text", pa.string(), False),
        pa.field("count", pa.int64(), False),
        pa.field("new", pa.bool_(), False),
        pa.field("first_seen", _INSTANT, False),
        pa.field("last_seen", _INSTANT, False),
        pa.field("example_id", pa.string(), False),
        pa.field("example", pa.string(), False),
        *(pa.field(name, _NAMES, False) for name in _SETS),
    ]
)
"""The dead letters by signature; ``new`` are those first seen in the last update."""

DEAD_LETTER_COLUMNS: Final = [
    *("outcome", "id", "event_key", "subscriber", "queue", "started_at"),
    *("error_type", "error", "reason"),
]


def group_dead_letters(deliveries: Table) -> Table:
    """The dead letters among rows of ``deliveries``, by signature."""
    dead = deliveries.filter(compute.field("outcome") == "dead-letter")
    message = compute.coalesce(dead.column("error"), dead.column("reason"), pa.scalar(""))
    known: dict[tuple[str | None, str], tuple[str, str]] = {}
    for one in zip(dead.column("error_type").to_pylist(), message.to_pylist(), strict=True):
        if one not in known:
            known[one] = signature_id(*one), signature_text(one[1])
    rows: list[dict[str, Any]] = []
    for row, text in zip(dead.to_pylist(), message.to_pylist(), strict=True):
        signature, shown = known[row["error_type"], text]
        rows.append(
            {
                "signature": signature,
                "error_type": row["error_type"],
                "text": shown,
                "count": 1,
                "new": True,
                "first_seen": row["started_at"],
                "last_seen": row["started_at"],
                "example_id": row["id"],
                "example": text,
                "events": [row["event_key"]],
                "subscribers": [row["subscriber"]],
                "queues": [row["queue"]],
            }
        )
    return _as_table(_merged(rows))


def merge_groups(before: Table, groups: Sequence[Table]) -> Table:
    """The groups of the table and those of new dead letters; what was there is no longer new."""
    rows = [{**row, "new": False} for row in before.to_pylist()]
    rows += [row for one in groups for row in one.to_pylist()]
    return _as_table(_merged(rows))


def _merged(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for row in rows:
        one = found.get(row["signature"])
        if one is None:
            found[row["signature"]] = {**row, **{name: set(row[name]) for name in _SETS}}
            continue
        one["count"] += row["count"]
        one["new"] = one["new"] and row["new"]
        one["first_seen"] = min(one["first_seen"], row["first_seen"])
        if row["last_seen"] >= one["last_seen"]:  # the example is the latest one
            for name in ("last_seen", "example_id", "example"):
                one[name] = row[name]
        for name in _SETS:
            one[name].update(row[name])
    for one in found.values():
        for name in _SETS:
            one[name] = sorted(one[name])[:MOST_NAMES]
    return list(found.values())


def _as_table(rows: Sequence[dict[str, Any]]) -> Table:
    ordered = sorted(rows, key=lambda row: (-row["count"], row["signature"]))
    return pa.Table.from_pylist(ordered, schema=TRIAGE)


def with_signature(deliveries: DataFrame) -> DataFrame:
    """Deliveries with their ``message`` (error, or reason), its ``text`` and its ``signature``."""
    message = F.coalesce("error", "reason", F.lit(""))
    return (
        deliveries.withColumn("message", message)
        .withColumn("text", signature_text_column(F.col("message")))
        .withColumn("signature", signature_id_column(F.col("error_type"), F.col("text")))
    )
