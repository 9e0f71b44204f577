"""Triage: groups dead letters by error signature, so that thousands of them show as three bugs.

``matador.observe.signatures`` has the rules; here they are Spark expressions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from matador.observe.signatures import (
    ID_LENGTH,
    LONGEST_INPUT,
    LONGEST_SIGNATURE,
    RULES,
    signature_id,
    signature_text,
)
from matador.spark.runtime.arrow import Schema, Table, compute, pa


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


def replaced_groups(before: Table, groups: Table) -> Table:
    """The groups of all dead letters, counted again; new are those that the table does not have."""
    known = set(before.column("signature").to_pylist())
    rows = groups.to_pylist()
    return _as_table([{**row, "new": row["signature"] not in known} for row in rows])


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
