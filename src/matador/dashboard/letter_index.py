"""An index of all dead letters, so that a page never has to read all of them.

It is a temporary database without payloads: where each letter is, what it is about and why it died.
It is built by reading the queues once, and kept up to date by comparing counts. It may lag behind:
whoever moves a letter asks the broker, which knows.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from typing import Any, Final, NamedTuple

from matador.errors import QueueNotFoundError
from matador.events.app import Matador
from matador.events.dead_letters import Letter, Place
from matador.model.text import storable_text
from matador.model.topology import DeadLetterKind, WorkQueue
from matador.observe.signatures import signature_id_of_text, signature_text

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
    correlation_id TEXT, event_key TEXT NOT NULL, subscriber TEXT NOT NULL,
    signature TEXT NOT NULL, error_type TEXT,
    error TEXT NOT NULL, died_at REAL, attempts INTEGER, decodable INTEGER NOT NULL,
    round INTEGER NOT NULL, UNIQUE (queue, kind, position));
CREATE INDEX by_signature ON letters (signature);
CREATE INDEX by_id ON letters (id);
CREATE INDEX by_correlation ON letters (correlation_id);
CREATE INDEX by_edge ON letters (event_key, subscriber);
CREATE TABLE signatures (signature TEXT PRIMARY KEY, text TEXT NOT NULL) WITHOUT ROWID;
"""
_COLUMNS = (
    "number, queue, kind, position, stored_in, home, id, correlation_id, event_key, subscriber, "
    "signature, error_type, error, died_at, attempts, decodable"
)


class Entry(NamedTuple):
    """One dead letter of the index. ``queue`` is the short name of its work queue."""

    number: int
    queue: str
    kind: DeadLetterKind
    position: str
    stored_in: str
    home: str
    id: str
    correlation_id: str | None
    event_key: str
    subscriber: str
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
    subscribers: str
    events: str
    example: str


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexFilter:
    """What the index can select by. All that are given must match; ``error`` ignores case."""

    signature: str = ""
    queue: str = ""
    kind: str = ""
    event_key: str = ""
    subscriber: str = ""
    error: str = ""

    def condition(self) -> tuple[str, list[str]]:
        """An SQL condition, and its parameters."""
        exact = {
            "signature": self.signature,
            "queue": self.queue,
            "kind": self.kind,
            "event_key": self.event_key,
            "subscriber": self.subscriber,
        }
        given = {name: value for name, value in exact.items() if value}
        parts, values = [f"{name} = ?" for name in given], list(given.values())
        if self.error:
            parts.append("instr(lower(coalesce(error_type, '') || ': ' || error), ?) > 0")
            values.append(self.error.lower())
        return " AND ".join(parts) or "1", values

    def fits(self, letter: Letter) -> bool:
        """Does it select a letter that may not be in the index?"""
        row = _described(letter)
        wanted = (self.signature, self.event_key, self.subscriber)
        found = (row[4], row[2], row[3])
        text = f"{row[5] or ''}: {row[6]}".lower()
        return (
            all(one in ("", other) for one, other in zip(wanted, found, strict=True))
            and self.queue in ("", letter.queue.name)
            and self.kind in ("", letter.kind)
            and self.error.lower() in text
        )


class LetterIndex:
    """The index of an application's dead letters. Belongs to its event loop."""

    def __init__(self, app: Matador) -> None:
        self._app = app
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
        self.complete = False

    def close(self) -> None:
        """Forget everything."""
        with self._lock:
            self._file.close()

    # -- bringing it up to date -------------------------------------------------------------------

    async def refresh(self, expected: dict[tuple[str, str], int | None], *, whole: bool) -> None:
        """Read what is new. ``expected`` has the number of letters of each queue and kind.

        A queue whose number still differs is read as a whole; all are if ``whole``. One that
        cannot be counted (None) is read as a whole, too.
        """
        async with self._reading:
            office = self._app.dead_letters
            try:
                for queue, kind in office.queues():
                    number = expected.get((queue.name, kind))
                    if not whole and number is not None:
                        await self._read(queue, kind, after=self._last(queue, kind))
                        known = self.count_of(queue, kind)
                        # Some brokers never count what they show: once is enough to find that out.
                        if known == number or self._differs.get((queue.name, kind)) == (
                            number,
                            known,
                        ):
                            continue
                    await self._read(queue, kind, after=None)
                    self._differs[queue.name, kind] = (number, self.count_of(queue, kind))
                self.complete = True
            finally:
                self.reading = None

    async def _read(self, queue: WorkQueue, kind: DeadLetterKind, *, after: str | None) -> None:
        self._round += 1
        this = self._round
        if after is None:
            self._unreadable.pop((queue.name, kind), None)
        batch: list[Letter] = []
        seen = 0
        try:
            async for letter in self._app.dead_letters.browse_queue(queue, kind, after=after):
                batch.append(letter)
                if len(batch) == BATCH:
                    await asyncio.to_thread(self._store, batch, this)
                    seen += len(batch)
                    self.reading = f"{seen:,} dead letters of {queue.name} read"
                    batch = []
        except QueueNotFoundError:
            pass  # it was never made, so it has none
        await asyncio.to_thread(self._store, batch, this)
        if after is None:
            await asyncio.to_thread(self._forget_older, queue.name, kind, this)

    def _store(self, letters: Sequence[Letter], this: int) -> None:
        rows: list[tuple[Any, ...]] = []
        texts: dict[str, str] = {}
        # Those that are known are only confirmed, which is much quicker.
        known = self._confirm(letters, this) if letters else set[str]()
        for letter in letters:
            if letter.stored.position in known:
                continue
            try:
                rows.append(self._row(letter, this, texts))
            except Exception as error:  # noqa: BLE001 - one letter must not hide the others
                self._leave_out(letter, error)
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

    def _row(self, letter: Letter, this: int, texts: dict[str, str]) -> tuple[Any, ...]:
        """A letter as a row; the text of its signature is added to ``texts``."""
        described = _described(letter)
        place, stored = self._app.dead_letters.place(letter), letter.stored
        for exact in (stored.position, stored.queue, place.home):
            exact.encode()  # raises an error for what no database can store
        texts[described[4]] = signature_of(described[5], described[6])[1]
        died = None if stored.stored_at is None else stored.stored_at.timestamp()
        docket = None if letter.envelope is None else letter.envelope.docket
        return (
            *(letter.queue.name, letter.kind, stored.position, stored.queue, place.home),
            *described[:6],
            described[6][:_LONGEST_ERROR],
            *(died, docket and docket.attempts, docket is not None, this),
        )

    def _leave_out(self, letter: Letter, error: Exception) -> None:
        """A letter cannot be in the index. It is counted, so that it is not looked for again."""
        left_out = self._unreadable.setdefault((letter.queue.name, letter.kind), set())
        if letter.stored.position not in left_out and len(left_out) < _MOST_LEFT_OUT:
            left_out.add(letter.stored.position)
            log.warning("a dead letter of %s cannot be shown: %s", letter.queue.name, error)

    @property
    def unreadable(self) -> int:
        """How many letters were found that cannot be shown."""
        return sum(map(len, self._unreadable.values()))

    def _confirm(self, letters: Sequence[Letter], this: int) -> set[str]:
        """The positions of letters, all of one queue and kind, that are in the index."""
        where = "queue = ? AND kind = ? AND position"
        place = (letters[0].queue.name, letters[0].kind)
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

    def _last(self, queue: WorkQueue, kind: str) -> str | None:
        found = self._all(
            "SELECT position FROM letters NOT INDEXED WHERE queue = ? AND kind = ? "
            "ORDER BY number DESC LIMIT 1",
            queue.name,
            kind,
        )
        return found[0][0] if found else None

    # -- looking ----------------------------------------------------------------------------------

    def count_of(self, queue: WorkQueue, kind: str) -> int:
        """How many letters of one queue and kind are known."""
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

    def page(self, chosen: IndexFilter, before: int | None, limit: int) -> list[Entry]:
        """Letters that match, the latest first, starting before a number."""
        where, values = chosen.condition()
        found = self._all(
            f"SELECT {_COLUMNS} FROM letters WHERE {where} AND number < ? "
            "ORDER BY number DESC LIMIT ?",
            *values,
            before or 2**62,
            limit,
        )
        return [Entry(*row) for row in found]

    def entries(self, numbers: Sequence[int]) -> list[Entry]:
        """The letters with these numbers that are still there."""
        marks = ", ".join("?" * len(numbers))
        found = self._all(
            f"SELECT {_COLUMNS} FROM letters WHERE number IN ({marks}) ORDER BY number", *numbers
        )
        return [Entry(*row) for row in found]

    def find(self, wanted: str, limit: int = 20) -> list[Entry]:
        """Letters by id, by the start of one, or by correlation id."""
        found = self._all(
            f"SELECT {_COLUMNS} FROM letters WHERE id = ? OR correlation_id = ? "
            "OR (id >= ? AND id < ?) ORDER BY number DESC LIMIT ?",
            *(wanted, wanted, wanted, wanted + "\U0010ffff", limit),
        )
        return [Entry(*row) for row in found]

    def number_of(self, letter: Letter) -> int | None:
        """The number of a letter, if it is known."""
        key = (letter.queue.name, letter.kind, letter.stored.position)
        found = self._all(
            "SELECT number FROM letters WHERE queue = ? AND kind = ? AND position = ?", *key
        )
        return found[0][0] if found else None

    async def add(self, letters: Sequence[Letter]) -> None:
        """Add letters that were found by reading."""
        for _, some in groupby(letters, lambda one: (one.queue.name, one.kind)):
            await asyncio.to_thread(self._store, list(some), self._round)

    def forget(self, numbers: Sequence[int]) -> None:
        """These were moved."""
        with self._lock:
            marks = [(number,) for number in numbers]
            self._file.executemany("DELETE FROM letters WHERE number = ?", marks)
            self.version += 1

    def groups(self, chosen: IndexFilter, limit: int) -> list[Group]:
        """The causes, the most frequent first."""
        where, values = chosen.condition()
        found = self._all_cached(
            "SELECT signature, min(error_type), (SELECT text FROM signatures AS s "
            "WHERE s.signature = letters.signature), count(*), min(died_at), max(died_at), "
            "group_concat(DISTINCT subscriber), group_concat(DISTINCT event_key), min(id) "
            f"FROM letters WHERE {where} GROUP BY signature ORDER BY 4 DESC, 1 LIMIT ?",
            *values,
            limit,
        )
        return [Group(*row) for row in found]

    def by_edge(self) -> dict[tuple[str, str], int]:
        """The number of letters of each event and subscriber."""
        found = self._all_cached(
            "SELECT event_key, subscriber, count(*) FROM letters GROUP BY event_key, subscriber"
        )
        return {(event, subscriber): number for event, subscriber, number in found}

    def values_of(self, column: str) -> list[str]:
        """The different events, subscribers and so on, for a choice."""
        assert column in ("queue", "kind", "event_key", "subscriber")
        found = self._all_cached(
            f"SELECT DISTINCT {column} FROM letters WHERE {column} <> '' ORDER BY 1 LIMIT 200"
        )
        return [value for (value,) in found]

    async def letter(self, entry: Entry) -> Letter | None:
        """The letter itself, read from its queue; None if it is gone."""
        before = self._all(
            "SELECT position FROM letters NOT INDEXED WHERE queue = ? AND kind = ? AND number < ? "
            "ORDER BY number DESC LIMIT 1",
            *(entry.queue, entry.kind, entry.number),
        )
        queue = self._app.topology.queue(entry.queue)
        after = before[0][0] if before else None
        office = self._app.dead_letters
        # Nearly always it is the next one. Otherwise others were moved, and it is looked for.
        for start, limit in ((after, 3), (after, 2 * BATCH), (None, None)):
            async for letter in office.browse_queue(queue, entry.kind, after=start, limit=limit):
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


def _described(letter: Letter) -> tuple[str, str | None, str, str, str, str | None, str]:
    """Id, correlation id, event, subscriber, signature, type and message of the error."""
    docket = None if letter.envelope is None else letter.envelope.docket
    stored = letter.stored
    error = (docket and docket.last_error) or stored.reason or letter.problem or ""
    error, kind = storable_text(error), stored.error_type and _name(stored.error_type)
    return (
        storable_text(letter.id, _LONGEST_ID),
        docket and docket.correlation_id and _name(docket.correlation_id),
        "" if docket is None else _name(docket.event_key),
        "" if docket is None else _name(docket.target_subscriber),
        signature_of(kind, error)[0],
        kind,
        error,
    )


def _name(text: str) -> str:
    """A name that somebody sent, as it can be stored."""
    return storable_text(text, _LONGEST_NAME)


def batches(numbers: Sequence[int], size: int) -> Iterator[Sequence[int]]:
    """Parts of a list."""
    for start in range(0, len(numbers), size):
        yield numbers[start : start + size]
