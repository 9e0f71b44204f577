"""Stores messages: many rows in one statement, so that other threads can run meanwhile.

A message that is published to an exchange is stored in every queue with a matching binding, or in
none.

Messages sent "once" have their ids stored in the same transaction. The ids are kept until the part
of the scope that they belong to is sealed; then one small row remains.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, TypeAlias, TypeVar

import msgspec

from matador.errors import MatadorError, QueueNotFoundError
from matador.model import job as names
from matador.model.job import KEEP_NONE
from matador.model.message import Headers, Message, Once
from matador.transports.kit.properties import headers_with_properties
from matador.transports.kit.replies import REPLY_PREFIX
from matador.transports.sqlite.database import (
    BLOCKED,
    BRIEF_JOB,
    DELAYED,
    DONE,
    IN_FLIGHT,
    JOBS,
    PLAIN_JOB,
    READY,
    SPECIAL_JOB,
)
from matador.transports.sqlite.errors import UNSTORABLE, translate
from matador.transports.sqlite.session import SqliteQueue, WriterSession, no_such_queue

logger = logging.getLogger("matador.transports.sqlite")

Row: TypeAlias = tuple[Any, ...]
Item = TypeVar("Item")

# A thread releases the interpreter for every statement, and waits to get it back while other
# threads are busy. So a statement has many rows; there are few sizes, so that prepared statements
# are reused.
_SIZES = (64, 16, 4, 1)


def _of_each_size(insert: str, row: str) -> dict[int, str]:
    # In SQLite a bare "?" has the number after the highest one so far, so "?1" stays shared.
    return {size: f"{insert} VALUES {', '.join([row] * size)}" for size in _SIZES}


_INSERT_FULL = _of_each_size(
    "INSERT INTO messages (queue, state, due, priority, rank, stored_at, ordering_key, id, "
    "headers, body, job, limit_key)",
    f"({', '.join('?' * 12)})",
)
# Most messages are ready at once, without priority or key. Fewer parameters take half the time.
_INSERT_PLAIN = _of_each_size(
    "INSERT INTO messages (state, stored_at, queue, id, headers, body)",
    f"({READY}, ?1, ?, ?, ?, ?)",
)
_INSERT_JOBS = {
    kind: _of_each_size(
        "INSERT INTO messages (state, stored_at, job, queue, id, headers, body)",
        f"({READY}, ?1, {kind}, ?, ?, ?, ?)",
    )
    for kind in (PLAIN_JOB, SPECIAL_JOB, BRIEF_JOB)
}
_SPECIAL = frozenset((names.PARENT, names.CHILDREN, names.UNIQUE))
_UNFINISHED = (
    f"SELECT 1 FROM messages WHERE queue = ? AND ordering_key = ? AND state <> {DONE} LIMIT 1"
)
_OLDEST = (
    "DELETE FROM messages WHERE seq IN (SELECT seq FROM messages INDEXED BY by_queue "
    f"WHERE queue = ? AND state <> {IN_FLIGHT} ORDER BY seq LIMIT ?)"
)

_ADD_ID = _of_each_size("INSERT INTO once_ids (scope, batch, id)", "(?1, ?2, ?)")
_DELETED_AT_ONCE = 10_000  # ids

encode_json = msgspec.json.Encoder().encode


def store(session: WriterSession, messages: Sequence[Message]) -> list[MatadorError | None]:
    """Store messages in the order given. Returns None or an error for each."""
    outcomes: list[MatadorError | None] = [None] * len(messages)
    run: list[Row] = []
    run_statements = _INSERT_PLAIN
    used: set[str] = set()
    blocked: dict[tuple[int, bytes], bool] = {}
    queues = session.queues
    for index, message in enumerate(messages):
        queue = queues.get(message.queue)
        if queue is None:
            if not message.queue.startswith(REPLY_PREFIX):  # else the caller has stopped waiting
                outcomes[index] = no_such_queue(message.queue, queues, session.path)
            continue
        plain = message.delay <= 0 and message.priority is None and message.ordering_key is None
        statements = _INSERT_PLAIN
        if queue.jobs:
            statements = _INSERT_JOBS[_kind_of_job(queue, message)]
            plain = plain and names.CONCURRENCY_KEY not in message.headers
        try:
            if plain:
                headers = encode_headers(message)
                row = (queue.id, message.id, headers, message.body)
            else:
                statements = _INSERT_FULL
                row = make_row(session, queue, message, blocked)
        except UNSTORABLE as error:
            outcomes[index] = translate(error, session.path)
            continue
        if statements is not run_statements:
            _insert(session, run, run_statements)
            run, run_statements = [], statements
        run.append(row)
        used.add(message.queue)
    _insert(session, run, run_statements)
    trim(session, (queues[name] for name in used))
    return outcomes


def make_row(
    session: WriterSession,
    queue: SqliteQueue,
    message: Message,
    blocked: dict[tuple[int, bytes], bool],
) -> Row:
    """The row for a message that is new in a queue.

    ``blocked`` caches which ordering keys have an unfinished message, in the table or in rows not
    inserted yet.
    """
    now = session.now
    state, due = READY, None
    if message.delay > 0:
        state, due = DELAYED, session.clock.after(message.delay)
    key = None
    if message.ordering_key is not None and not queue.dead_letters:  # nothing waits for a letter
        key = message.ordering_key.encode()
        place = (queue.id, key)
        if place not in blocked:
            blocked[place] = session.connection.execute(_UNFINISHED, place).fetchone() is not None
        if blocked[place]:
            state = BLOCKED
        blocked[place] = True
    rank = message.priority if queue.priorities else None
    where = (queue.id, state, due, message.priority, rank, now, key)
    job = _kind_of_job(queue, message) if queue.jobs else None
    stored = (message.id, encode_headers(message), message.body)
    return (*where, *stored, job, limit_key(queue, message.headers))


def limit_key(queue: SqliteQueue, headers: Headers) -> bytes | None:
    """The key of which so many jobs run at once, if a message has one and is a job."""
    if queue.jobs != JOBS or names.CONCURRENCY_KEY not in headers:
        return None
    return str(headers[names.CONCURRENCY_KEY]).encode()


def _kind_of_job(queue: SqliteQueue, message: Message) -> int:
    if queue.jobs != JOBS or not _SPECIAL.isdisjoint(message.headers):
        return SPECIAL_JOB
    keep = message.headers.get(names.KEEP_COMPLETED)
    if keep is None:
        return PLAIN_JOB
    return BRIEF_JOB if keep == KEEP_NONE.text else SPECIAL_JOB


def encode_headers(message: Message) -> bytes | None:
    """The headers of a message as they are stored, with its properties."""
    headers = headers_with_properties(message)
    return encode_json(headers) if headers else None


def insert(session: WriterSession, rows: Sequence[Row]) -> None:
    """Insert rows of ``make_row`` in this order."""
    _insert(session, rows, _INSERT_FULL)


def _insert(session: WriterSession, rows: Sequence[Row], statements: Mapping[int, str]) -> None:
    shared = [] if statements is _INSERT_FULL else [session.now]
    for group in _groups(rows):
        values = [*shared, *chain.from_iterable(group)]
        session.connection.execute(statements[len(group)], values)


def _groups(items: Sequence[Item]) -> Iterator[Sequence[Item]]:
    start = 0
    for size in _SIZES:
        while len(items) - start >= size:
            yield items[start : start + size]
            start += size


def trim(session: WriterSession, queues: Iterable[SqliteQueue]) -> None:
    """Delete the oldest messages of queues that exceed their length, except those in flight."""
    for queue in queues:
        if queue.max_length is None:
            continue
        (length,) = session.connection.execute(
            "SELECT count(*) FROM messages WHERE queue = ?", (queue.id,)
        ).fetchone()
        if length <= queue.max_length:
            continue
        session.connection.execute(_OLDEST, (queue.id, length - queue.max_length))
        if queue.name not in session.warned:
            session.warned.add(queue.name)
            logger.warning(
                "%s has reached max_length=%d messages: dropping the oldest from now on",
                queue.name,
                queue.max_length,
            )


# -- exchanges -------------------------------------------------------------------------------------


def publish(
    session: WriterSession, messages: Sequence[Message], exchange: str
) -> list[list[str] | MatadorError]:
    """Store copies in the transaction that looks up the bindings.

    Returns, for each message, the queues that got it, or why none did.
    """
    table, known = session.routes.table, session.queues
    found: dict[str, list[str] | MatadorError] = {}  # by key: nearly all have the same
    outcomes: list[list[str] | MatadorError] = []
    copies: list[Message] = []
    for message in messages:
        key = (message.properties.routing_key if message.properties is not None else None) or ""
        queues = found.get(key)
        if queues is None:
            try:
                queues = [name for name in table.queues(exchange, key) if name in known]
            except QueueNotFoundError as error:
                queues = error
            found[key] = queues
        if isinstance(queues, list):
            for name in queues:
                copies.append(msgspec.structs.replace(message, queue=name))  # noqa: PERF401 - nested
        outcomes.append(queues)
    results = store(session, copies)
    if not any(results):
        return outcomes
    stored = iter(results)
    for place, queues in enumerate(outcomes):
        if isinstance(queues, list):
            # The copies differ in their queue only: if one cannot be stored, none can.
            errors = [error for error in [next(stored) for _ in queues] if error is not None]
            if errors:
                outcomes[place] = errors[0]
    return outcomes


# -- once -----------------------------------------------------------------------------------------


def store_once(
    session: WriterSession, messages: Sequence[Message], once: Once
) -> Sequence[MatadorError | None]:
    """Store the messages that were not stored before. Returns None or an error for each."""
    scope, sealed = _scope(session, once.scope)
    outcomes: list[MatadorError | None] = [None] * len(messages)
    if once.batch <= sealed:
        return outcomes
    execute = session.connection.execute
    # Sorted, because the index takes them in their order in half the time.
    ids = sorted([message.id for message in messages])
    new = _new_ids(session, (scope, once.batch), ids)
    chosen: Sequence[int] = range(len(messages))
    if len(new) < len(messages):  # some were stored before, or the same id is there twice
        chosen = [index for index, message in enumerate(messages) if _take(new, message.id)]
    stored = store(session, [messages[index] for index in chosen])
    for index, outcome in zip(chosen, stored, strict=True):
        outcomes[index] = outcome
        if outcome is not None:
            execute(
                "DELETE FROM once_ids WHERE scope = ? AND batch = ? AND id = ?",
                (scope, once.batch, messages[index].id),
            )
    return outcomes


def _take(ids: set[str], id_: str) -> bool:
    """Remove an id; False if it is not there."""
    found = id_ in ids
    ids.discard(id_)
    return found


def _new_ids(session: WriterSession, part: tuple[int, int], ids: Sequence[str]) -> set[str]:
    """Store ids. Returns those that were not stored before."""
    new: set[str] = set()
    for group in _groups(ids):
        try:
            session.connection.execute(_ADD_ID[len(group)], (*part, *group))
            new.update(group)
        except sqlite3.IntegrityError:  # rare: something is sent again
            if len(group) > 1:
                new.update(*(_new_ids(session, part, [id_]) for id_ in group))
    return new


def seal(session: WriterSession, once: Once) -> bool:
    """Store nothing more in a part and those before it, and delete some of their ids.

    Returns whether there are more of them.
    """
    scope, sealed = _scope(session, once.scope)
    execute = session.connection.execute
    execute("UPDATE once_scopes SET sealed = ? WHERE id = ?", (max(once.batch, sealed), scope))
    # A range is deleted in a third of the time that looking up each id takes.
    next_ = execute(
        "SELECT batch, id FROM once_ids WHERE scope = ? AND batch <= ? ORDER BY batch, id "
        f"LIMIT 1 OFFSET {_DELETED_AT_ONCE}",
        (scope, once.batch),
    ).fetchone()
    if next_ is None:
        execute("DELETE FROM once_ids WHERE scope = ? AND batch <= ?", (scope, once.batch))
        return False
    execute("DELETE FROM once_ids WHERE scope = ? AND (batch, id) < (?, ?)", (scope, *next_))
    return True


def _scope(session: WriterSession, name: str) -> tuple[int, int]:
    """The number of a scope, created if need be, and how far it is sealed."""
    execute = session.connection.execute
    execute("INSERT INTO once_scopes (name) VALUES (?) ON CONFLICT DO NOTHING", (name,))
    return execute("SELECT id, sealed FROM once_scopes WHERE name = ?", (name,)).fetchone()
