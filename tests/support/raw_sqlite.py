"""Rows that a foreign program writes into the file of the SQLite transport."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, TypeAlias

from tests.fuzz.corpus import CORPUS
from tests.fuzz.mutations import mutate

from matador.transports.sqlite.database import (
    BLOCKED,
    DELAYED,
    DONE,
    IN_FLIGHT,
    LATEST,
    PARKED,
    READY,
)

Make: TypeAlias = Callable[[Random], Any]

_NOT_UTF8 = (b"\xff\xfe", b"caf\xe9", b"\xed\xa0\x80", b"\xc0\x80")
_NUMBERS = (0, 1, -1, 2**31, 2**63 - 1, -(2**63))
_TEXTS = ("", "x", "\0", "a\0b", "é漢😀", "null", "12", "x" * 70_000)


class Text(bytes):
    """Bytes that are stored as text, whether they are UTF-8 or not."""


def _text(random: Random) -> Any:
    return random.choice((random.choice(_TEXTS), Text(random.choice(_NOT_UTF8))))


def _blob(random: Random) -> Any:
    return random.randbytes(random.choice((0, 1, 16, 2000)))


def _key(random: Random) -> Any:
    return random.choice((None, *(text.encode() for text in _TEXTS), *_NOT_UTF8, _blob(random)))


def _number(random: Random) -> Any:
    return random.choice((None, *_NUMBERS))


def _count(random: Random) -> Any:
    return random.choice((0, 1, 2**31, 2**63 - 1))


def _time(random: Random) -> Any:
    return random.choice((0, 1, 2**40, LATEST, 2**63 - 1))


def _good_body(random: Random) -> Any:
    return random.choice(CORPUS).body


def _spoiled_body(random: Random) -> Any:
    return mutate(random.choice(CORPUS), random)[0].body


def _headers(random: Random) -> Any:
    value = random.choice(
        (
            '"text"',
            "1",
            "-1",
            "null",
            "true",
            "1.5",
            "1e999",
            "9" * 5000,
            '"\\ud800"',
            '"\\u0000"',
            "[[1]]",
            '{"a": {"b": []}}',
            "[" * 3000 + "]" * 3000,
            '{"a":' * 3000 + "1" + "}" * 3000,
            json.dumps("x" * 200_000),
            json.dumps('{"a":' * 3000 + "1" + "}" * 3000),
            json.dumps('{"expires_at": 1e26, "type": "GREET", "reply_to": ""}'),
            "NaN",
            "",
        )
    )
    names = (
        "x-matador-attempts",
        "x-matador-scheduled-for",
        "x-matador-properties",
        "content-encoding",
        "x-retry-count",
        "",
        "é",
        "x-y",
    )
    text = f'{{{json.dumps(random.choice(names))}: {value}, "good": "kept"}}'
    return random.choice((text.encode(), text.encode()[:-1], text.encode("utf-16")))


def _odd_headers(random: Random) -> Any:
    documents = (b"", b"[]", b"null", b"1", b'"x"', b"{", b"\xff", b"{}" * 2, b'{"a": 1, "a": 2}')
    return random.choice((random.choice(documents), _blob(random), None))


_COLUMNS: dict[str, tuple[Make, ...]] = {
    "body": (_good_body, _spoiled_body, _blob),
    "headers": (_headers, _odd_headers),
    "id": (_text,),
    "ordering_key": (_key,),
    "priority": (_number,),
    "rank": (_number,),
    "deliveries": (_count,),
    "stored_at": (_time,),
}
_NOT_NULL = {"body": b"{}", "id": "foreign", "deliveries": 0, "stored_at": 0}

REFUSED: dict[str, tuple[Any, ...]] = {
    "state": (None, -1, PARKED + 1, 2**40, 0.5, 1.5, "ready", b"\0", DONE, BLOCKED, PARKED),
    "due": (0, -5, 1e308, "soon", b"\0"),  # a READY message has none
    "token": (5, 1.5, "text", b"\xff"),
    "deliveries": (None, -1, -(2**63), 1.5, 1e308, "often", b"\0"),
    "priority": (1.5, -1e308, "high", b"\0"),
    "rank": (1.5, 1e308, "first", b"\0"),
    "stored_at": (None, -1, -(2**63), 1.5, 1e308, "yesterday", b"\0"),
    "ordering_key": ("text", Text(b"\xff"), 5, 1.5),
    "id": (None, b"", b"\xff"),
    "headers": ("{}", Text(b"{}"), 5, 1.5),
    "body": (None, "text", Text(b"\xff"), 5, 1.5),
    "job": (-1, 77, 1.5, "yes", b"\0"),
    "processed_at": (1.5, "x", b"\0"),
    "finished_at": (1.5, "x", b"\0"),
    "expires_at": (1.5, "soon", b"\0"),
    "progress": (5, "text"),
    "result": (5, "text"),
    "limit_key": (5, "text"),
}
"""Values that the constraints keep out of a row that is READY and otherwise good."""


class SqliteEntries:
    """Writes rows by a connection of its own, in queues that are there already."""

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None, timeout=30)

    async def write(self, queue: str, random: Random) -> str:
        """See ``RawEntries``: one to three columns of a row are odd, the others good or missing.

        Some are preceded by a row that the file itself must refuse.
        """
        row: dict[str, Any] = {"state": READY, **_NOT_NULL, "body": _good_body(random)}
        if random.random() < 0.3:
            column = random.choice(list(REFUSED))
            self.refused(queue, {**row, column: random.choice(REFUSED[column])})
        for column in random.sample(list(_COLUMNS), random.choice((1, 1, 2, 3))):
            row[column] = random.choice(_COLUMNS[column])(random)
        row["state"] = random.choice((READY, READY, READY, READY, DELAYED, IN_FLIGHT))
        if row["state"] in (DELAYED, IN_FLIGHT):
            row["due"] = random.choice((0, 1, 2**40))  # a time that has passed
        if row["state"] == IN_FLIGHT:
            row["token"] = random.choice(_NUMBERS)
            row["deliveries"] = max(row["deliveries"], 1)
        self.insert(queue, row)
        return ", ".join(f"{name}={str(value)[:60]!r}" for name, value in row.items())

    def refused(self, queue: str, row: dict[str, Any]) -> None:
        """Check that the file refuses a row."""
        try:
            self.insert(queue, row)
        except sqlite3.IntegrityError:
            return
        raise AssertionError(f"the file has taken {row}")

    def insert(self, queue: str, row: dict[str, Any]) -> None:
        places = ["CAST(? AS TEXT)" if type(value) is Text else "?" for value in row.values()]
        self._connection.execute(
            f"INSERT INTO messages (queue, {', '.join(row)}) "
            f"VALUES ((SELECT id FROM queues WHERE name = ?), {', '.join(places)})",
            (queue, *(bytes(one) if type(one) is Text else one for one in row.values())),
        )

    async def close(self) -> None:
        self._connection.close()
