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

from matador.transports.sqlite.database import DELAYED, IN_FLIGHT, READY

Make: TypeAlias = Callable[[Random], Any]

_NOT_UTF8 = (b"\xff\xfe", b"caf\xe9", b"\xed\xa0\x80", b"\xc0\x80")
_NUMBERS = (0, 1, -1, 2**31, 2**63 - 1, -(2**63), 1.5, -1e308, 1e308, 8.64e15)
_TEXTS = ("", "x", "\0", "a\0b", "é漢😀", "null", "12", "x" * 70_000)


class Text(bytes):
    """Bytes that are stored as text, whether they are UTF-8 or not."""


def _text(random: Random) -> Any:
    return random.choice((random.choice(_TEXTS), Text(random.choice(_NOT_UTF8))))


def _blob(random: Random) -> Any:
    return random.randbytes(random.choice((0, 1, 16, 2000)))


def _number(random: Random) -> Any:
    return random.choice(_NUMBERS)


def _any(random: Random) -> Any:
    return random.choice((_text, _blob, _number))(random)


def _maybe(random: Random) -> Any:
    return random.choice((None, _any(random)))


def _good_body(random: Random) -> Any:
    return random.choice(CORPUS).body


def _spoiled_body(random: Random) -> Any:
    return mutate(random.choice(CORPUS), random)[0].body


def _text_body(random: Random) -> Any:
    return Text(_spoiled_body(random))


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
    return random.choice((text, text.encode(), text.encode()[:-1], text.encode("utf-16")))


def _odd_headers(random: Random) -> Any:
    documents = (b"", b"[]", b"null", b"1", b'"x"', b"{", b"\xff", b"{}" * 2, b'{"a": 1, "a": 2}')
    return random.choice((random.choice(documents), _any(random)))


_COLUMNS: dict[str, tuple[Make, ...]] = {
    "body": (_good_body, _spoiled_body, _text_body, _any),
    "headers": (_headers, _odd_headers, _maybe),
    "id": (_any,),
    "ordering_key": (_any,),
    "priority": (_any,),
    "rank": (_any,),
    "deliveries": (_any,),
    "stored_at": (_any,),
    "due": (_maybe,),
    "token": (_any,),
}
_NOT_NULL = {"body": b"{}", "id": "foreign", "deliveries": 0, "stored_at": 0}
# Whatever the state: at a time that has passed, or at one that is none.
_NEVER_LATER = (None, 0, -1, -(2**63), -1e308, "tomorrow", Text(b"\xff"), b"\0")
_STATES = (READY, READY, READY, READY, DELAYED, IN_FLIGHT, -1, 5, 2**40, "ready", b"\0", 0.5)


class SqliteEntries:
    """Writes rows by a connection of its own, in queues that are there already."""

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None, timeout=30)

    async def write(self, queue: str, random: Random) -> str:
        """See ``RawEntries``: one to three columns of a row are odd, the others good or missing."""
        row: dict[str, Any] = {**_NOT_NULL, "body": _good_body(random)}
        for column in random.sample(list(_COLUMNS), random.choice((1, 1, 2, 3))):
            row[column] = random.choice(_COLUMNS[column])(random)
        row["state"] = random.choice(_STATES)
        if row["state"] in (DELAYED, IN_FLIGHT):
            row["due"] = random.choice(_NEVER_LATER)
        self._insert(queue, row)
        return ", ".join(f"{name}={str(value)[:60]!r}" for name, value in row.items())

    def _insert(self, queue: str, row: dict[str, Any]) -> None:
        places = ["CAST(? AS TEXT)" if type(value) is Text else "?" for value in row.values()]
        self._connection.execute(
            f"INSERT INTO messages (queue, {', '.join(row)}) "
            f"VALUES ((SELECT id FROM queues WHERE name = ?), {', '.join(places)})",
            (queue, *(bytes(one) if type(one) is Text else one for one in row.values())),
        )

    async def close(self) -> None:
        self._connection.close()
