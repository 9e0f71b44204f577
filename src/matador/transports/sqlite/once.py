"""Stores messages once, however often they are sent: their ids are noted in the same transaction.

Ids are kept until the part of the scope they belong to is sealed; then one small row remains of it.
The tables are made by the first who needs them: most files never have them.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

import msgspec

from matador.errors import MatadorError
from matador.model.message import Message, Once
from matador.transports.sqlite import send
from matador.transports.sqlite.session import WriterSession

_CHUNK = 10_000  # ids forgotten in one transaction

_TABLES = (
    """CREATE TABLE IF NOT EXISTS once_scopes (
        id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, sealed INTEGER NOT NULL DEFAULT -1
    )""",
    """CREATE TABLE IF NOT EXISTS once_ids (
        scope INTEGER NOT NULL, batch INTEGER NOT NULL, id TEXT NOT NULL,
        PRIMARY KEY (scope, batch, id)
    ) WITHOUT ROWID""",
)
_ADD_SCOPE = "INSERT INTO once_scopes (name) VALUES (?) ON CONFLICT DO NOTHING"
_SCOPE = "SELECT id, sealed FROM once_scopes WHERE name = ?"
# Many rows a statement, and few sizes: see ``sending``.
_SIZES = (64, 16, 4, 1)
_NOTE = {
    size: "INSERT INTO once_ids (scope, batch, id) VALUES "
    + ", ".join(f"(?1, ?2, ?{place})" for place in range(3, 3 + size))
    for size in _SIZES
}
_TAKE_BACK = (
    "DELETE FROM once_ids WHERE scope = ? AND batch = ? AND id IN (SELECT value FROM json_each(?))"
)
_FORGET = (
    "DELETE FROM once_ids WHERE (scope, batch, id) IN (SELECT scope, batch, id FROM once_ids "
    f"WHERE scope = ? AND batch <= ? LIMIT {_CHUNK})"
)

_encode_ids = msgspec.json.Encoder().encode


def store_once(
    session: WriterSession, messages: Sequence[Message], once: Once
) -> Sequence[MatadorError | None]:
    """Store those of the messages that were not stored yet; for each None, or why it cannot be."""
    scope, sealed = _scope(session, once.scope)
    outcomes: list[MatadorError | None] = [None] * len(messages)
    if once.batch <= sealed:
        return outcomes
    new = _note(session, scope, once.batch, [message.id for message in messages])
    chosen: list[int] = []
    for index, message in enumerate(messages):
        if message.id in new:
            new.remove(message.id)  # the same id may be there twice
            chosen.append(index)
    failed: list[str] = []
    stored = send.store(session, [messages[index] for index in chosen])
    for index, outcome in zip(chosen, stored, strict=True):
        outcomes[index] = outcome
        if outcome is not None:
            failed.append(messages[index].id)
    if failed:
        session.connection.execute(_TAKE_BACK, (scope, once.batch, _encode_ids(failed)))
    return outcomes


def _note(session: WriterSession, scope: int, batch: int, ids: Sequence[str]) -> set[str]:
    """Note ids; those that were not noted before."""
    new: set[str] = set()
    start = 0
    for size in _SIZES:
        while len(ids) - start >= size:
            some = ids[start : start + size]
            start += size
            try:
                session.connection.execute(_NOTE[size], (scope, batch, *some))
            except sqlite3.IntegrityError:  # hardly ever: somebody sends again
                if size > 1:
                    for id_ in some:
                        new |= _note(session, scope, batch, [id_])
            else:
                new.update(some)
    return new


def seal(session: WriterSession, once: Once) -> None:
    """Let nothing more be stored in a part, or in those before it."""
    scope, sealed = _scope(session, once.scope)
    session.connection.execute(
        "UPDATE once_scopes SET sealed = ? WHERE id = ?", (max(once.batch, sealed), scope)
    )


def forget(session: WriterSession, once: Once) -> int:
    """Forget some of the ids of a sealed part and of those before it; how many, 0 if all are."""
    scope, _ = _scope(session, once.scope)
    return session.connection.execute(_FORGET, (scope, once.batch)).rowcount


def _scope(session: WriterSession, name: str) -> tuple[int, int]:
    """The number of a scope, made if need be, and how far it is sealed."""
    connection = session.connection
    for table in _TABLES:
        connection.execute(table)
    found = connection.execute(_SCOPE, (name,)).fetchone()
    if found is None:
        connection.execute(_ADD_SCOPE, (name,))
        found = connection.execute(_SCOPE, (name,)).fetchone()
    return int(found[0]), int(found[1])
