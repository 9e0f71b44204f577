"""The ledger of a replay: the plan, fixed before anything is sent, and the progress.

A replay that was killed resumes with the same rows, whatever has been ingested, compacted or
expired since. The rows are in Parquet files, called chunks; each gets a small file when it is done.
"""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any, Literal, TypeVar

import msgspec

from matador.errors import ConfigurationError, StorageLockedError
from matador.spark.runtime.arrow import RecordBatch, parquet
from matador.spark.tables.lease import Lease
from matador.storage import FolderStorage, Storage
from matador.storage.files import locked_folder

T = TypeVar("T")

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")

Kind = Literal["replay", "backfill", "jobs"]


class ReplayCount(msgspec.Struct, frozen=True):
    """The number of messages of one event to one subscriber, or of jobs of one name in a queue."""

    event_key: str
    subscriber: str
    count: int


class ReplayPlan(msgspec.Struct, frozen=True):
    """The plan of a replay: the files with its rows, and the messages per event and subscriber.

    ``request`` has the options, so that a call with other options cannot resume this replay.
    ``ignored`` rows no longer have a receiver. ``subscriber``, ``queue`` and ``everybody`` replace
    the original subscriber; ``event`` is that of a backfill.
    """

    kind: Kind
    request: dict[str, str]
    chunks: tuple[str, ...]
    counts: tuple[ReplayCount, ...]
    ignored: tuple[ReplayCount, ...] = ()
    subscriber: str | None = None
    queue: str | None = None
    everybody: bool = False
    event: str | None = None


class FailedRow(msgspec.Struct, frozen=True):
    """A row that could not be sent, by its index in the chunk, and why."""

    row: int
    why: str


class Chunk(msgspec.Struct, frozen=True):
    """The result of one chunk: messages sent, subscribers skipped, rows that failed."""

    sent: int = 0
    skipped: int = 0
    failed: tuple[FailedRow, ...] = ()


class Ledger:
    """The folder of one replay. Driver and executors must see it under the same path or URL."""

    def __init__(self, root: Storage, replay_id: str) -> None:
        if not _ID.fullmatch(replay_id):
            raise ConfigurationError(
                f"invalid replay id {replay_id!r}: use up to 100 letters, digits, '_', '-', '.'"
            )
        self._folder = root.child(replay_id)
        self.replay_id = replay_id
        self.rows = self._folder.child("rows")  # the chunks

    @property
    def plan(self) -> ReplayPlan | None:
        """The plan; None until it is fixed."""
        return self._read("plan.json", ReplayPlan)

    @contextlib.contextmanager
    def held(self) -> Generator[Callable[[], None]]:
        """Keep other processes from running the same replay.

        Yields a function that raises ``StorageLockedError`` if that is no longer so.
        """
        folder = self._folder
        try:
            if isinstance(folder, FolderStorage):
                with locked_folder(folder.path):
                    yield lambda: None
            else:
                with Lease(folder) as lease:
                    yield lease.check
        except StorageLockedError as error:
            raise StorageLockedError(
                f"replay {self.replay_id} is already running in another process"
            ) from error

    def clear(self) -> None:
        """Remove the rows of a plan that was never fixed: nothing of it was sent."""
        self._folder.delete_folder("rows")

    def groups(self, chunks: Sequence[str]) -> dict[tuple[str, str], int]:
        """The number of rows by event and subscriber; only these two columns are read."""
        found: Counter[tuple[str, str]] = Counter()
        for name in chunks:
            with self.open(name) as file:
                table = file.read(columns=["event_key", "subscriber"])
            counted = table.group_by(["event_key", "subscriber"]).aggregate([([], "count_all")])
            for row in counted.to_pylist():
                found[row["event_key"], row["subscriber"]] += row["count_all"]
        return found

    def count(self, chunks: Sequence[str]) -> int:
        """The number of rows."""
        total = 0
        for name in chunks:
            with self.open(name) as file:
                total += file.metadata.num_rows
        return total

    def batches(self, name: str, most: int) -> Iterator[RecordBatch]:
        """The rows of a chunk, at most so many at a time."""
        with self.open(name) as file:
            yield from file.iter_batches(most)

    @contextlib.contextmanager
    def open(self, name: str) -> Generator[Any]:
        """The rows of a chunk, as a ``ParquetFile``."""
        with self.rows.reader(name) as source:
            yield parquet.ParquetFile(source)

    def fix(self, plan: ReplayPlan) -> None:
        """Write the plan and its rows to disk. It does not change any more."""
        self.rows.sync(*(one.name for one in self.rows.files()))
        self._write("plan.json", plan)

    def chunk(self, name: str) -> Chunk | None:
        """The result of a chunk; None if it is not done."""
        return self._read(_done(name), Chunk)

    def is_done(self, name: str) -> bool:
        """Whether all rows of a chunk are sent."""
        done = self.chunk(name)
        return done is not None and not done.failed

    def note(self, name: str, chunk: Chunk) -> None:
        """Store the result of a finished chunk."""
        self._write(_done(name), chunk)

    def chunks(self, plan: ReplayPlan) -> list[Chunk]:
        """The results of the chunks that are done."""
        return [one for one in map(self.chunk, plan.chunks) if one is not None]

    def _read(self, name: str, kind: type[T]) -> T | None:
        found = self._folder.read(name)
        return None if found is None else msgspec.json.decode(found, type=kind)

    def _write(self, name: str, content: msgspec.Struct) -> None:
        self._folder.write(name, msgspec.json.encode(content))


def _done(name: str) -> str:
    return f"done/{name}.json"
