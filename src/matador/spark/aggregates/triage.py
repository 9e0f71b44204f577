"""Triage: groups dead letters by error signature, so that thousands of them show as three bugs.

``order 17 of 'ann' not found`` and ``order 4 of 'bob' not found`` have one signature,
``order <n> of <text> not found``. The rules are regular expressions that mean the same in Python
and in Java: Spark groups millions of errors, and a shell one of them, with the same result.
"""

from __future__ import annotations

import hashlib
import re
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - its usual name

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

TRIAGE_PIECE: Final = (
    "signature STRING, text STRING, error_type STRING, first_seen TIMESTAMP, last_seen TIMESTAMP, "
    "count BIGINT, example STRUCT<id: STRING, message: STRING>, events ARRAY<STRING>, "
    "subscribers ARRAY<STRING>, queues ARRAY<STRING>, first_run BIGINT"
)


def with_signature(deliveries: DataFrame) -> DataFrame:
    """Deliveries with their ``message`` (error, or reason), its ``text`` and its ``signature``."""
    message = F.coalesce("error", "reason", F.lit(""))
    return (
        deliveries.withColumn("message", message)
        .withColumn("text", signature_text_column(F.col("message")))
        .withColumn("signature", signature_id_column(F.col("error_type"), F.col("text")))
    )


def triage_piece(deliveries: DataFrame, run: int) -> DataFrame:
    """The dead letters among some deliveries, by signature, first seen in the given run."""
    dead = with_signature(deliveries.where(F.col("outcome") == "dead-letter"))
    return merged_triage(
        dead.select(
            "signature",
            "text",
            "error_type",
            F.col("started_at").alias("first_seen"),
            F.col("started_at").alias("last_seen"),
            F.lit(1).cast("bigint").alias("count"),
            F.struct("id", "message").alias("example"),
            F.array("event_key").alias("events"),
            F.array("subscriber").alias("subscribers"),
            F.array("queue").alias("queues"),
            F.lit(run).cast("bigint").alias("first_run"),
        )
    )


def merged_triage(pieces: DataFrame) -> DataFrame:
    """Pieces, merged into one row for each signature. The example is the latest one."""
    return pieces.groupBy("signature").agg(
        F.min("text").alias("text"),
        F.min("error_type").alias("error_type"),
        F.min("first_seen").alias("first_seen"),
        F.max("last_seen").alias("last_seen"),
        F.sum("count").alias("count"),
        F.max_by("example", "last_seen").alias("example"),
        *[
            F.slice(
                F.array_sort(F.array_distinct(F.flatten(F.collect_set(name)))), 1, MOST_NAMES
            ).alias(name)
            for name in _SETS
        ],
        F.min("first_run").alias("first_run"),
    )


def triage(pieces: DataFrame, runs: int) -> DataFrame:
    """The groups; those first seen in the last run are ``new``."""
    return merged_triage(pieces).select(
        "signature",
        "error_type",
        "text",
        "count",
        (F.col("first_run") == runs).alias("new"),
        "first_seen",
        "last_seen",
        F.col("example.id").alias("example_id"),
        F.col("example.message").alias("example"),
        *_SETS,
    )
