"""An index of all dead letters, so that a page never has to read all of them.

It is a temporary database without payloads: where each letter is, what it is about and why it died.
It is built by reading the queues once, and kept up to date by comparing counts. It may be outdated,
so moving a letter always reads it from the broker.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from typing import Any, Final, NamedTuple

from matador.dashboard.sources import Sources, WatchedQueue
from matador.errors import QueueNotFoundError
from matador.model.text import storable_text
from matador.model.topology import DeadLetterKind
from matador.observe.signatures import signature_id_of_text, signature_text
from matador.runtime.dead_letters import DeadLetterOffice, Letter, Place

log = logging.getLogger("matador.dashboard")

BATCH: Final = 500
_LONGEST_ERROR = 300
_LONGEST_ID = 1000
_LONGEST_NAME = 300
_MOST_ANSWERS = 200
_MOST_LEFT_OUT = 10_000
# A number is never given to another letter: a page that is still open may name it in a form.
_SCHEMA = """
CREATE TABLE letters (
    number INTEGER PRIMARY KEY AUTOINCREMENT, queue TEXT NOT NULL, kind TEXT NOT NULL,
    position TEXT NOT NULL, stored_in TEXT NOT NULL, home TEXT NOT NULL, id TEXT NOT NULL,
    correlation_id TEXT, name TEXT NOT NULL, receiver TEXT NOT NULL,
    signature TEXT NOT NULL, error_type TEXT,
    error TEXT NOT NULL, died_at REAL, attempts INTEGER, decodable INTEGER NOT NULL,
    round INTEGER NOT NULL, UNIQUE (queue, kind, position)) STRICT;
CREATE INDEX by_signature ON letters (signature);
CREATE INDEX by_id ON letters (id);
CREATE INDEX by_correlation ON letters (correlation_id);
CREATE INDEX by_edge ON letters (queue, name, receiver);
CREATE TABLE signatures (
    signature TEXT PRIMARY KEY, text TEXT NOT NULL) STRICT, WITHOUT ROWID;
"""
_COLUMNS = (
    "number, queue, kind, position, stored_in, home, id, correlation_id, name, receiver, "
    "signature, error_type, error, died_at, attempts, decodable"
)


class IndexedLetter(NamedTuple):
    """One dead letter of the index. ``queue`` is the name of its work queue in the dashboard."""

    number: int
    queue: str
    kind: DeadLetterKind
    position: str
    stored_in: str
    home: str
    id: str
    correlation_id: str | None
    name: str
    receiver: str
    signature: str
    error_type: str | None
    error: str
    died_at: float | None
    attempts: int | None
    decodable: int

    @property
    def place(self) -> Place:
        """Where it is, in order to move it."""
        return Place(self.stored_in, self.position, self.id, self.home)


class Group(NamedTuple):
    """Dead letters with the same cause."""

    signature: str
    error_type: str | None
    text: str
    letters: int
    first_at: float | None
    last_at: float | None
    names: str
    receivers: str
    queues: str


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexFilter:
    """The criteria of the index. All given ones must match; ``error`` ignores case."""

    signature: str = ""
    queue: str = ""
    kind: str = ""
    name: str = ""
    receiver: str = ""
    error: str = ""

    def condition(self) -> tuple[str, list[str]]:
        """An SQL condition, and its parameters."""
        exact = {
            "signature": self.signature,
            "queue": self.queue,
            "kind": self.kind,
            "name": self.name,
            "receiver": self.receiver,
        }
        given = {name: value for name, value in exact.items() if value}
        parts, values = [f"{name} = ?" for name in given], list(given.values())
        if self.error:
            parts.append("instr(lower(coalesce(error_type, '') || ': ' || error), ?) > 0")
            values.append(self.error.lower())
        return " AND ".join(parts) or "1", values

    def fits(self, letter: Letter, queue: str) -> bool:
        """Whether it selects a letter that may not be in the index."""
        row = _described(letter)
        wanted = (self.signature, self.name, self.receiver)
        found = (row[4], row[2], row[3])
        text = f"{row[5] or ''}: {row[6]}".lower()
        return (
            all(one in ("", other) for one, other in zip(wanted, found, strict=True))
            and self.queue in ("", queue)
            and self.kind in ("", letter.kind)
            and self.error.lower() in text
        )


class LetterIndex:
    """The index of all dead letters. Belongs to the event loop of the dashboard."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._file = sqlite3.connect("", check_same_thread=False, isolation_level=None)
        self._file.execute("PRAGMA journal_mode = MEMORY")
        self._file.execute("PRAGMA synchronous = OFF")
        self._file.execute("PRAGMA cache_size = -32000")
        self._file.executescript(_SCHEMA)
        self._lock = threading.Lock()
        self._reading = asyncio.Lock()
        self._known: tuple[int, dict[Any, Any]] = (-1, {})
        self._round = 0
        self._differs: dict[tuple[str, str], tuple[int | None, int]] = {}
        self._unreadable: dict[tuple[str, str], set[str]] = {}
        self.version = 0
        self.reading: str | None = None
        self.read: set[str] = set()

    def close(self) -> None:
        """Delete the index."""
        with self._lock:
            self._file.close()

    # -- updating -------------------------------------------------------------------

    async def refresh(
        self,
        queues: Iterable[WatchedQueue],
        expected: dict[tuple[str, str], int | None],
        *,
        whole: bool,
    ) -> None:
        """Read new letters of queues. ``expected`` has the number of letters by name and kind.

        If the number still differs, or the queue cannot be counted (None), the whole queue is read.
        With ``whole``, all queues are.
        """
        async with self._reading:
            try:
                for queue in queues:
                    for kind in queue.kinds:
                        number = expected.get((queue.name, kind))
                        await self._refresh(queue, kind, None if whole else number)
                    self.read.add(queue.name)
            finally:
                self.reading = None

    async def _refresh(self, queue: WatchedQueue, kind: DeadLetterKind, number: int | None) -> None:
        if number is not None:
            await self._read(queue, kind, after=self._last(queue, kind))
            known = self.count_of(queue, kind)
            # Some brokers count other messages than they show: read the whole queue only once for
            # that.
            if known == number or self._differs.get((queue.name, kind)) == (number, known):
                return
        await self._read(queue, kind, after=None)
        self._differs[queue.name, kind] = (number, self.count_of(queue, kind))

    async def _read(self, queue: WatchedQueue, kind: DeadLetterKind, *, after: str | None) -> None:
        self._round += 1
        this = self._round
        if after is None:
            self._unreadable.pop((queue.name, kind), None)
        batch: list[Letter] = []
        seen = 0
        office = queue.source.letters  # made in this event loop, not in the thread that stores
        try:
            async for letter in office.browse_queue(queue.queue, kind, after=after):
                batch.append(letter)
                if len(batch) == BATCH:
                    await asyncio.to_thread(self._store, queue, office, batch, this)
                    seen += len(batch)
                    self.reading = f"{seen:,} dead letters of {queue.name} read"
                    batch = []
        except QueueNotFoundError:
            pass  # it was never created, so it has none
        await asyncio.to_thread(self._store, queue, office, batch, this)
        if after is None:
            await asyncio.to_thread(self._forget_older, queue.name, kind, this)

    def _store(
        self, queue: WatchedQueue, office: DeadLetterOffice, letters: Sequence[Letter], this: int
    ) -> None:
        rows: list[tuple[Any, ...]] = []
        texts: dict[str, str] = {}
        # Known letters are only confirmed, which is much faster.
        known = self._confirm(queue, letters, this) if letters else set[str]()
        for letter in letters:
            if letter.stored.position in known:
                continue
            try:
                rows.append(_row(queue, office.place(letter), letter, this, texts))
            except Exception as error:  # noqa: BLE001 - one letter must not hide the others
                self._leave_out(queue, letter, error)
        with self._lock:
            self._file.execute("BEGIN")
            self._file.executemany(
                f"INSERT INTO letters VALUES (NULL, {', '.join('?' * 16)}) ON CONFLICT "
                "(queue, kind, position) DO UPDATE SET round = excluded.round",
                rows,
            )
            self._file.executemany(
                "INSERT OR IGNORE INTO signatures VALUES (?, ?)", list(texts.items())
            )
            self._file.execute("COMMIT")
            self.version += 1

    def _leave_out(self, queue: WatchedQueue, letter: Letter, error: Exception) -> None:
        """Skip a letter that the index cannot store. It is counted, so that the queue is not read
        again for it."""
        left_out = self._unreadable.setdefault((queue.name, letter.kind), set())
        if letter.stored.position not in left_out and len(left_out) < _MOST_LEFT_OUT:
            left_out.add(letter.stored.position)
            log.warning("a dead letter of %s cannot be shown: %s", queue.name, error)

    @property
    def unreadable(self) -> int:
        """How many letters were found that cannot be shown."""
        return sum(map(len, self._unreadable.values()))

    def _confirm(self, queue: WatchedQueue, letters: Sequence[Letter], this: int) -> set[str]:
        """The positions of those letters that are in the index; all are of one queue and kind."""
        where = "queue = ? AND kind = ? AND position"
        place = (queue.name, letters[0].kind)
        marks = ", ".join("?" * len(letters))
        positions = [
            letter.stored.position.encode("utf-8", "replace").decode() for letter in letters
        ]
        update = f"UPDATE letters SET round = ? WHERE {where} IN ({marks}) RETURNING position"
        return {position for (position,) in self._all(update, this, *place, *positions)}

    def _forget_older(self, queue: str, kind: str, this: int) -> None:
        self._run(
            "DELETE FROM letters WHERE queue = ? AND kind = ? AND round < ?", queue, kind, this
        )

    def _last(self, queue: WatchedQueue, kind: str) -> str | None:
        found = self._all(
            "SELECT position FROM letters NOT INDEXED WHERE queue = ? AND kind = ? "
            "ORDER BY number DESC LIMIT 1",
            queue.name,
            kind,
        )
        return found[0][0] if found else None

    # -- reading ----------------------------------------------------------------------------------

    def count_of(self, queue: WatchedQueue, kind: str) -> int:
        """The number of known letters of one queue and kind."""
        left_out = len(self._unreadable.get((queue.name, kind), ()))
        counted = "SELECT count(*) FROM letters WHERE queue = ? AND kind = ?"
        return self._all(counted, queue.name, kind)[0][0] + left_out

    def count(self, chosen: IndexFilter) -> int:
        """How many letters match."""
        where, values = chosen.condition()
        return self._all_cached(f"SELECT count(*) FROM letters WHERE {where}", *values)[0][0]

    def numbers(self, chosen: IndexFilter, *, decodable: bool = False) -> list[int]:
        """The numbers of all letters that match, or of those that can be decoded, oldest first."""
        where, values = chosen.condition()
        where = f"decodable AND {where}" if decodable else where
        found = self._all(f"SELECT number FROM letters WHERE {where} ORDER BY number", *values)
        return [number for (number,) in found]

    def page(self, chosen: IndexFilter, before: int | None, limit: int) -> list[IndexedLetter]:
        """Letters that match, the latest first, starting before a number."""
        where, values = chosen.condition()
        found = self._all(
            f"SELECT {_COLUMNS} FROM letters WHERE {where} AND number < ? "
            "ORDER BY number DESC LIMIT ?",
            *values,
            before or 2**62,
            limit,
        )
        return [IndexedLetter(*row) for row in found]

    def entries(self, numbers: Sequence[int]) -> list[IndexedLetter]:
        """The letters with these numbers that are still there."""
        marks = ", ".join("?" * len(numbers))
        found = self._all(
            f"SELECT {_COLUMNS} FROM letters WHERE number IN ({marks}) ORDER BY number", *numbers
        )
        return [IndexedLetter(*row) for row in found]

    def find(self, wanted: str, limit: int = 20) -> list[IndexedLetter]:
        """Letters by id, by the start of one, or by correlation id."""
        found = self._all(
            f"SELECT {_COLUMNS} FROM letters WHERE id = ? OR correlation_id = ? "
            "OR (id >= ? AND id < ?) ORDER BY number DESC LIMIT ?",
            *(wanted, wanted, wanted, wanted + "\U0010ffff", limit),
        )
        return [IndexedLetter(*row) for row in found]

    def number_of(self, queue: WatchedQueue, letter: Letter) -> int | None:
        """The number of a letter, if it is known."""
        key = (queue.name, letter.kind, letter.stored.position)
        found = self._all(
            "SELECT number FROM letters WHERE queue = ? AND kind = ? AND position = ?", *key
        )
        return found[0][0] if found else None

    async def add(self, letters: Sequence[tuple[WatchedQueue, Letter]]) -> None:
        """Add letters that were read, with their queues."""
        for (queue, _), some in groupby(letters, lambda one: (one[0], one[1].kind)):
            found = [one for _, one in some]
            await asyncio.to_thread(self._store, queue, queue.source.letters, found, self._round)

    def forget(self, numbers: Sequence[int]) -> None:
        """Remove moved letters."""
        with self._lock:
            marks = [(number,) for number in numbers]
            self._file.executemany("DELETE FROM letters WHERE number = ?", marks)
            self.version += 1

    def groups(self, chosen: IndexFilter, limit: int) -> list[Group]:
        """The letters by cause, the most frequent first."""
        where, values = chosen.condition()
        found = self._all_cached(
            "SELECT signature, min(error_type), (SELECT text FROM signatures AS s "
            "WHERE s.signature = letters.signature), count(*), min(died_at), max(died_at), "
            "group_concat(DISTINCT name), group_concat(DISTINCT receiver), "
            "group_concat(DISTINCT queue) "
            f"FROM letters WHERE {where} GROUP BY signature ORDER BY 4 DESC, 1 LIMIT ?",
            *values,
            limit,
        )
        return [Group(*row) for row in found]

    def by_edge(self) -> dict[tuple[str, str, str], int]:
        """The number of letters of each queue, name and receiver."""
        found = self._all_cached(
            "SELECT queue, name, receiver, count(*) FROM letters GROUP BY queue, name, receiver"
        )
        return {(queue, name, receiver): number for queue, name, receiver, number in found}

    def cause(self, signature: str) -> str | None:
        """The text of a group: the type and the signature text of its errors."""
        found = self._all(
            "SELECT min(error_type), (SELECT text FROM signatures WHERE signature = ?1) "
            "FROM letters WHERE signature = ?1",
            signature,
        )
        return ": ".join(one for one in found[0] if one) or None

    def values_of(self, column: str) -> list[str]:
        """The different events, receivers and so on, for a choice."""
        assert column in ("queue", "kind", "name", "receiver")
        found = self._all_cached(
            f"SELECT DISTINCT {column} FROM letters WHERE {column} <> '' ORDER BY 1 LIMIT 200"
        )
        return [value for (value,) in found]

    async def letter(self, entry: IndexedLetter) -> Letter | None:
        """The letter itself, read from its queue; None if it is gone."""
        before = self._all(
            "SELECT position FROM letters NOT INDEXED WHERE queue = ? AND kind = ? AND number < ? "
            "ORDER BY number DESC LIMIT 1",
            *(entry.queue, entry.kind, entry.number),
        )
        queue = self._sources.queue(entry.queue)
        if queue is None:
            return None
        after = before[0][0] if before else None
        office = queue.source.letters
        # It is nearly always the next one. Otherwise other letters were moved, so search for it.
        for start, limit in ((after, 3), (after, 2 * BATCH), (None, None)):
            async for letter in office.browse_queue(
                queue.queue, entry.kind, after=start, limit=limit
            ):
                if storable_text(letter.id, _LONGEST_ID) == entry.id:
                    return letter
        return None

    # -- internals --------------------------------------------------------------------------------

    def _all_cached(self, query: str, *values: Any) -> list[Any]:
        """``_all`` for queries that read the whole index: the answer is kept until it changes."""
        version, answers = self._known
        if version != self.version or len(answers) > _MOST_ANSWERS:
            self._known = version, answers = self.version, {}
        if (query, values) not in answers:
            answers[query, values] = self._all(query, *values)
        return answers[query, values]

    def _all(self, query: str, *values: Any) -> list[Any]:
        with self._lock:
            return self._file.execute(query, values).fetchall()

    def _run(self, query: str, *values: Any) -> None:
        with self._lock:
            self._file.execute(query, values)
            self.version += 1


@lru_cache(maxsize=20_000)
def signature_of(error_type: str | None, error: str) -> tuple[str, str]:
    """The id and the text of an error's signature."""
    text = signature_text(error)
    return signature_id_of_text(error_type, text), text


def _row(
    queue: WatchedQueue, place: Place, letter: Letter, this: int, texts: dict[str, str]
) -> tuple[Any, ...]:
    """A letter as a row; the text of its signature is added to ``texts``."""
    described = _described(letter)
    stored = letter.stored
    for exact in (stored.position, stored.queue, place.home):
        exact.encode()  # raises an error for what no database can store
    texts[described[4]] = signature_of(described[5], described[6])[1]
    died = None if stored.stored_at is None else stored.stored_at.timestamp()
    return (
        *(queue.name, letter.kind, stored.position, stored.queue, place.home),
        *described[:6],
        described[6][:_LONGEST_ERROR],
        *(died, letter.attempts or None, letter.problem is None, this),
    )


def _described(letter: Letter) -> tuple[str, str | None, str, str, str, str | None, str]:
    """Id, correlation id, name, receiver, signature, type and message of the error."""
    error, kind = storable_text(letter.error), letter.error_type and _name(letter.error_type)
    correlated = letter.contents.correlation_id
    return (
        storable_text(letter.id, _LONGEST_ID),
        correlated and _name(correlated),
        _name(letter.name),
        _name(letter.receiver),
        signature_of(kind, error)[0],
        kind,
        error,
    )


def _name(text: str) -> str:
    """A foreign name in a form that can be stored."""
    return storable_text(text, _LONGEST_NAME)


def batches(numbers: Sequence[int], size: int) -> Iterator[Sequence[int]]:
    """Parts of a list."""
    for start in range(0, len(numbers), size):
        yield numbers[start : start + size]
