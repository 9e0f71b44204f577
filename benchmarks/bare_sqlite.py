"""A bare sqlite3 loop with the durability and the grouping of the transport, and nothing else.

Sending inserts a group a transaction. Consuming claims a group in one transaction (so that a crash
gives it back) and deletes it in the next: what any queue on SQLite has to do at the least.
"""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path

import msgspec

from benchmarks.shop import payloads

_SCHEMA = """
CREATE TABLE messages(
    seq INTEGER PRIMARY KEY, queue INTEGER NOT NULL, body BLOB NOT NULL,
    state INTEGER NOT NULL, due INTEGER
);
CREATE INDEX ready ON messages(queue, seq) WHERE state = 0;
"""


def open_database(path: Path) -> sqlite3.Connection:
    """A fresh file: WAL, and an fsync at every commit."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.executescript(_SCHEMA)
    return connection


def bodies(number: int) -> list[bytes]:
    """Bodies of the size that an envelope has."""
    docket = b'"docket":{"eventKey":"order.placed","targetSubscriber":"count",' + b" " * 180
    encode = msgspec.json.encode
    return [b'{"id":"","data":' + encode(one) + docket + b"}}" for one in payloads(number)]


def send(connection: sqlite3.Connection, number: int, group: int) -> float:
    """Insert in groups; rows per second."""
    rows = [(body,) for body in bodies(number)]
    start = time.perf_counter()
    for first in range(0, number, group):
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany(
            "INSERT INTO messages(queue, body, state) VALUES (1, ?, 0)", rows[first : first + group]
        )
        connection.execute("COMMIT")
    return number / (time.perf_counter() - start)


def consume(connection: sqlite3.Connection, number: int, group: int) -> float:
    """Claim a group, delete a group; rows per second."""
    start = time.perf_counter()
    done = 0
    while done < number:
        connection.execute("BEGIN IMMEDIATE")
        rows = connection.execute(
            "SELECT seq, body FROM messages WHERE queue = 1 AND state = 0 ORDER BY seq LIMIT ?",
            (group,),
        ).fetchall()
        keys = [(row[0],) for row in rows]
        connection.executemany("UPDATE messages SET state = 1, due = 0 WHERE seq = ?", keys)
        connection.execute("COMMIT")
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany("DELETE FROM messages WHERE seq = ?", keys)
        connection.execute("COMMIT")
        done += len(rows)
    return number / (time.perf_counter() - start)
