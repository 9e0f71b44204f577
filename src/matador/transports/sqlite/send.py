"""Stores messages: many rows in one statement, so that the interpreter is left alone meanwhile."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any, TypeAlias

import msgspec

from matador.errors import MatadorError
from matador.model.message import Message
from matador.transports.kit.properties import headers_with_properties
from matador.transports.sqlite.database import BLOCKED, DELAYED, DONE, IN_FLIGHT, READY
from matador.transports.sqlite.errors import UNSTORABLE, translate
from matador.transports.sqlite.session import WriterSession
from matador.transports.sqlite.topology import SqliteQueue, no_such_queue

logger = logging.getLogger("matador.transports.sqlite")

Row: TypeAlias = tuple[Any, ...]

# A thread gives up the interpreter for every statement and gets it back late when others are
# busy: many rows a statement. Few sizes, so that prepared statements are found again.
_SIZES = (64, 16, 4, 1)
_FULL = "queue, state, due, priority, rank, stored_at, ordering_key, id, headers, body"
_FULL_WIDTH = _FULL.count(",") + 1
_INSERT_FULL = {
    size: f"INSERT INTO messages ({_FULL}) VALUES "
    + ", ".join(["(" + ", ".join("?" * _FULL_WIDTH) + ")"] * size)
    for size in _SIZES
}
# Most messages are ready at once, without priority or key. Fewer parameters take half the time.
_PLAIN_WIDTH = 4
_INSERT_PLAIN = {
    size: "INSERT INTO messages (state, stored_at, queue, id, headers, body) VALUES "
    + ", ".join(
        f"({READY}, ?1, " + ", ".join(f"?{first + i}" for i in range(_PLAIN_WIDTH)) + ")"
        for first in range(2, 2 + size * _PLAIN_WIDTH, _PLAIN_WIDTH)
    )
    for size in _SIZES
}
_UNFINISHED = (
    f"SELECT 1 FROM messages WHERE queue = ? AND ordering_key = ? AND state <> {DONE} LIMIT 1"
)

encode_json = msgspec.json.Encoder().encode


def store(session: WriterSession, messages: Sequence[Message]) -> list[MatadorError | None]:
    """Store messages in the order given; for each None, or why it cannot be."""
    outcomes: list[MatadorError | None] = [None] * len(messages)
    run: list[Row] = []
    run_is_plain = True
    used: set[str] = set()
    blocked: dict[tuple[int, str], bool] = {}
    queues = session.queues
    for index, message in enumerate(messages):
        queue = queues.get(message.queue)
        if queue is None:
            outcomes[index] = no_such_queue(message.queue, queues, session.path)
            continue
        plain = (
            message.delay <= 0
            and message.priority is None
            and message.ordering_key is None
            and message.properties is None
        )
        try:
            if plain:
                headers = encode_json(message.headers) if message.headers else None
                row = (queue.id, message.id, headers, message.body)
            else:
                row = make_row(session, queue, message, blocked)
        except UNSTORABLE as error:
            outcomes[index] = translate(error, session.path)
            continue
        if plain is not run_is_plain:
            _insert_run(session, run, run_is_plain)
            run, run_is_plain = [], plain
        run.append(row)
        used.add(message.queue)
    _insert_run(session, run, run_is_plain)
    trim(session, (queues[name] for name in used))
    return outcomes


def make_row(
    session: WriterSession,
    queue: SqliteQueue,
    message: Message,
    blocked: dict[tuple[int, str], bool],
) -> Row:
    """The row of a message that is new in a queue.

    ``blocked`` remembers which ordering keys have an unfinished message, those of rows that were
    made but not inserted yet included.
    """
    now = session.now
    state, due = READY, None
    if message.delay > 0:
        state, due = DELAYED, now + math.ceil(message.delay * 1000)
    # Nobody has to wait for a dead letter.
    key = None if queue.dead_letters else message.ordering_key
    if key is not None:
        place = (queue.id, key)
        if place not in blocked:
            blocked[place] = session.connection.execute(_UNFINISHED, place).fetchone() is not None
        if blocked[place]:
            state = BLOCKED
        blocked[place] = True
    return (
        queue.id,
        state,
        due,
        message.priority,
        message.priority if queue.priorities else None,
        now,
        key,
        message.id,
        encode_headers(message),
        message.body,
    )


def encode_headers(message: Message) -> bytes | None:
    """The headers of a message as they are stored, its properties among them."""
    headers = headers_with_properties(message)
    return encode_json(headers) if headers else None


def insert(session: WriterSession, rows: Sequence[Row]) -> None:
    """Insert rows of ``make_row``, in this order."""
    _insert_run(session, rows, plain=False)


def _insert_run(session: WriterSession, rows: Sequence[Row], plain: bool) -> None:
    statements = _INSERT_PLAIN if plain else _INSERT_FULL
    shared = [session.now] if plain else []
    start = 0
    for size in _SIZES:
        while len(rows) - start >= size:
            values = [*shared, *chain.from_iterable(rows[start : start + size])]
            session.connection.execute(statements[size], values)
            start += size


def trim(session: WriterSession, queues: Iterable[SqliteQueue]) -> None:
    """Drop the oldest messages of queues that are over their length, but none that is held."""
    for queue in queues:
        if queue.max_length is None:
            continue
        (length,) = session.connection.execute(
            "SELECT count(*) FROM messages WHERE queue = ?", (queue.id,)
        ).fetchone()
        excess = length - queue.max_length
        if excess <= 0:
            continue
        session.connection.execute(
            "DELETE FROM messages WHERE seq IN (SELECT seq FROM messages INDEXED BY by_queue "
            f"WHERE queue = ? AND state <> {IN_FLIGHT} ORDER BY seq LIMIT ?)",
            (queue.id, excess),
        )
        if queue.name not in session.warned:
            session.warned.add(queue.name)
            logger.warning(
                "%s has reached max_length=%d messages: dropping the oldest from now on",
                queue.name,
                queue.max_length,
            )
