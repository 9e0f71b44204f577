"""The ledger of a replay: what is to be sent, fixed before the first is sent, and what was.

A replay that is killed goes on with the same rows, whatever was ingested, compacted or expired
meanwhile. The plan is a folder of Parquet files, its chunks; each has a small file once it is sent.
"""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from matador.errors import ConfigurationError, StorageLockedError
from matador.spark.runtime.arrow import parquet
from matador.spark.runtime.files import locked, private_folder, remove, sync_tree, write_json

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")

Kind = Literal["replay", "backfill"]


class ReplayCount(msgspec.Struct, frozen=True):
    """How many messages of one event go to one subscriber."""

    event_key: str
    subscriber: str
    count: int


class ReplayPlan(msgspec.Struct, frozen=True):
    """What a replay is to send.

    Attributes:
        kind: where the rows come from: the lake, or a DataFrame of the user's.
        request: what was asked for, so that nobody goes on with another replay by mistake.
        chunks: the names of the files.
        counts: the messages, per event and subscriber.
        ignored: rows that nobody receives any more.
        to: the subscriber or queue to send to, instead of the original subscriber.
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


class Failure(msgspec.Struct, frozen=True):
    """A row that could not be sent, by its place in its chunk, and why."""

    row: int
    why: str


class Chunk(msgspec.Struct, frozen=True):
    """What came of one chunk: messages sent, subscribers skipped, rows that failed."""

    sent: int = 0
    skipped: int = 0
    failed: tuple[Failure, ...] = ()


class Ledger:
    """The folder of one replay. Driver and executors must see it under the same path."""

    def __init__(self, root: Path, replay_id: str) -> None:
        if not _ID.fullmatch(replay_id):
            raise ConfigurationError(
                f"{replay_id!r} cannot be the id of a replay: "
                f"use letters, digits, '_', '-' and '.', 100 at most"
            )
        self._folder = root / replay_id
        self._id = replay_id

    @property
    def replay_id(self) -> str:
        """The id of the replay."""
        return self._id

    @property
    def rows(self) -> Path:
        """The folder of the chunks."""
        return self._folder / "rows"

    @property
    def plan(self) -> ReplayPlan | None:
        """What is to be sent; None as long as that is not fixed."""
        try:
            return msgspec.json.decode((self._folder / "plan.json").read_bytes(), type=ReplayPlan)
        except FileNotFoundError:
            return None

    @contextlib.contextmanager
    def held(self) -> Generator[None]:
        """Keep other processes from sending the same at the same time.

        Raises:
            StorageLockedError: one does already.
        """
        private_folder(self._folder / "done")
        try:
            with locked(self._folder / "lock"):
                yield
        except StorageLockedError as error:
            raise StorageLockedError(
                f"replay {self._id} is running already, in another process"
            ) from error

    def clear(self) -> None:
        """Remove the rows of a plan that was never finished: nothing of it was sent."""
        remove(self.rows)

    def groups(self, chunks: Sequence[str]) -> dict[tuple[str, str], int]:
        """How many rows there are of an event and a subscriber: two columns are read for it."""
        found: Counter[tuple[str, str]] = Counter()
        for name in chunks:
            table = parquet.read_table(self.rows / name, columns=["event_key", "subscriber"])
            counted = table.group_by(["event_key", "subscriber"]).aggregate([([], "count_all")])
            for row in counted.to_pylist():
                found[row["event_key"], row["subscriber"]] += row["count_all"]
        return found

    def count(self, chunks: Sequence[str]) -> int:
        """How many rows there are."""
        return sum(parquet.read_metadata(self.rows / name).num_rows for name in chunks)

    def fix(self, plan: ReplayPlan) -> None:
        """From here on the plan is not changed, and is on the disk, rows and all."""
        sync_tree(self.rows)
        write_json(self._folder / "plan.json", plan)

    def chunk(self, name: str) -> Chunk | None:
        """What came of a chunk; None if it was not sent, or not to its end."""
        try:
            return msgspec.json.decode(self._done(name).read_bytes(), type=Chunk)
        except FileNotFoundError:
            return None

    def note(self, name: str, chunk: Chunk) -> None:
        """A chunk came to its end."""
        write_json(self._done(name), chunk)

    def chunks(self, plan: ReplayPlan) -> list[Chunk]:
        """What came of the chunks that came to their end."""
        return [one for one in map(self.chunk, plan.chunks) if one is not None]

    def _done(self, name: str) -> Path:
        return self._folder / "done" / f"{name}.json"
