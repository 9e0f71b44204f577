"""A Delta table of the lake: its files, its commits and its log.

delta-rs reads and writes the log; this is the only module that imports it. Commits that only add
files are written by ``delta_log``, in a fraction of the time. Files are written by tasks or by the
caller and become rows with the commit. Every commit names the version it was prepared for: if
another process was faster, ``CommitConflictError`` is raised, and the caller retries. So any number
of processes may write without a lock.

delta-rs does not sync what it writes to a disk: the log is synced here. A log entry that a power
failure has cut short was never reported as committed, and is set aside. In an object store a log
entry is created by a conditional request, and appears whole.
"""

from __future__ import annotations

import importlib
import logging
import threading
import time
import uuid
from collections.abc import Generator, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import UTC, date, datetime
from functools import lru_cache, partial
from typing import Any, Literal, NamedTuple
from urllib.parse import quote, unquote

import msgspec

from matador.errors import ConfigurationError
from matador.spark.runtime.arrow import Schema, Table, compute, pa
from matador.spark.tables.delta_log import (
    LOG,
    OWN,
    WRITER_VERSION,
    LogTail,
    TableFacts,
    append_entry,
    entry_name,
    open_log,
    write_entry,
)
from matador.storage import FolderStorage, ObjectStorage, Storage
from matador.storage.objects import store_error

log = logging.getLogger("matador.lake")

# Untyped on purpose: what delta-rs returns has the types of another Arrow library.
_delta: Any = importlib.import_module("deltalake")
_actions: Any = importlib.import_module("deltalake.transaction")
_errors: Any = importlib.import_module("deltalake.exceptions")

PARTITION = "date"

_CHECKPOINT = 100  # commits between two checkpoints, unless the table says otherwise
_RACERS = 4
_RACES = 4
_PATIENCE = 300.0  # seconds
_LONGEST = 200  # characters of a text in the log
_STATISTICS = ("created_at", "started_at", "recorded_at", "event_key", "subscriber", "window_start")


class CommitConflictError(Exception):
    """Another process has committed since the table was read. Nothing was committed."""


class DataFile(msgspec.Struct, frozen=True):
    """A Parquet file of a table. ``path`` is relative to the table, ``statistics`` are Delta's."""

    path: str
    size: int
    rows: int
    date: str | None = None
    statistics: dict[str, Any] = msgspec.field(default_factory=dict[str, Any])

    def least(self, column: str) -> datetime | None:
        """The smallest time of a column; None if it is not known."""
        text = self.statistics.get("minValues", {}).get(column)
        return None if text is None else datetime.fromisoformat(text)


class Changes(NamedTuple):
    """The changes of some commits. Expired rows and files that only moved are left out."""

    added: list[DataFile]
    """The files with rows that are new in the table."""
    removed: list[DataFile]
    """The files that other programs have removed, such as by a DELETE. They may be gone."""
    rewritten: list[DataFile]
    """The files that they have written instead: with the rows that are left, changed or new."""

    @property
    def days(self) -> set[str | None]:
        """The days whose rows other programs have removed or changed."""
        return {one.date for one in [*self.removed, *self.rewritten]}


class DeltaTable:
    """One table. An object belongs to one thread; ``refresh`` reads the commits of others."""

    def __init__(
        self, lake: Storage, name: str, schema: Schema, *, partitioned: bool = True
    ) -> None:
        self.name = name
        self._lake = lake
        self.storage = lake.child(name)
        self.columns = schema
        self._partitions = [PARTITION] if partitioned else []
        fields = [*schema, pa.field(PARTITION, pa.date32(), False)] if partitioned else [*schema]
        self.schema = pa.schema(fields)
        self._table: Any = None  # of delta-rs, once it is needed
        self._log = LogTail(self.storage, -1)
        self._facts: TableFacts | None = None
        self._asked: dict[str, int | None] | None = None  # transactions, if delta-rs knows them

    @staticmethod
    def existing(lake: Storage, name: str) -> DeltaTable:
        """A table with the columns that it has, whatever they are; partitioned by date."""
        storage = lake.child(name)
        with _named_errors(storage):
            found = _delta.DeltaTable(storage.root, storage_options=_options(storage))
        fields = [one for one in pa.schema(found.schema().to_arrow()) if one.name != PARTITION]
        return DeltaTable(lake, name, pa.schema(fields))

    # -- state ----------------------------------------------------------------------------------

    def exists(self) -> bool:
        """Whether the table was created."""
        if self.storage.is_local and self.storage.size(entry_name(0)) is not None:
            return True  # delta-rs would list the whole log
        with _named_errors(self.storage):
            return bool(_delta.DeltaTable.is_deltatable(self.storage.root, _options(self.storage)))

    def open(self, *, create: bool = True) -> DeltaTable:
        """Read the current version; create the table if there is none.

        Raises:
            FileNotFoundError: there is no table, and ``create`` is false.
        """
        if self._facts is not None:
            return self.refresh()
        if create and not self.storage.is_local:
            _check_commits(self._lake)
        try:
            self._load()
        except _errors.TableNotFoundError as error:
            if not create:
                raise FileNotFoundError(self.storage.root) from error
            self.create()
        return self

    def create(self) -> None:
        """Create the table, unless another process is faster, and read it."""
        self.storage.make()
        with suppress(_errors.DeltaError):  # another process may be faster
            _delta.DeltaTable.create(
                self.storage.root,
                self.schema,
                mode="ignore",
                partition_by=self._partitions or None,
                storage_options=_options(self.storage),
            )
            self.storage.sync(entry_name(0))
        self._load()

    def _load(self) -> None:
        """Read the current version.

        Raises:
            OSError: the store cannot be reached, or refuses.
        """
        found = open_log(self.storage) if self.storage.is_local else None
        if found is not None:
            self._table = self._asked = None
            self._log, self._facts = found
            return
        try:
            self._table = self._at()
        except _errors.TableNotFoundError:
            raise
        except _errors.DeltaError:
            if not self._set_aside_torn_entry():
                raise
            self._table = self._at()
        self._log = LogTail(self.storage, int(self._table.version()))
        self._asked = {}
        protocol, metadata = self._table.protocol(), self._table.metadata()
        self._facts = TableFacts(
            str(metadata.id), int(protocol.min_writer_version), metadata.configuration
        )

    def _at(self, version: int | None = None) -> Any:
        with _named_errors(self.storage):
            return _delta.DeltaTable(
                self.storage.root, version=version, storage_options=_options(self.storage)
            )

    def _set_aside_torn_entry(self) -> bool:
        """Rename the last entry of the log if a power failure has cut it short."""
        if not isinstance(self.storage, FolderStorage):
            return False
        folder = self.storage.path / LOG
        last = max(folder.glob("[0-9]*.json"), default=None)
        if last is None:
            return False
        try:
            for line in last.read_bytes().splitlines():
                msgspec.json.decode(line)
            if last.stat().st_size:
                return False
        except msgspec.DecodeError:
            pass
        log.error("the last commit of %s is incomplete, and is set aside: %s", self.name, last)
        last.rename(last.with_name(f"_torn-{last.name}"))
        return True

    def refresh(self) -> DeltaTable:
        """Read the commits made since."""
        if self._facts is None:
            return self.open(create=False)
        if not self._log.follow():
            self._load()
        return self

    def _snapshot(self) -> Any:
        """The table of delta-rs at the version that was read. Loaded only if necessary."""
        if self._table is None:
            self._table = self._at(self.version)
        elif self._table.version() != self.version:
            with _named_errors(self.storage):
                self._table.update_incremental()
                if self._table.version() != self.version:  # another process has committed since
                    self._table.load_as_version(self.version)
        return self._table

    @property
    def is_partitioned(self) -> bool:
        """Whether its files are in folders by date."""
        return bool(self._partitions)

    @property
    def id(self) -> str:
        """The id that the table was given when it was created."""
        return self._known.id

    @property
    def _known(self) -> TableFacts:
        assert self._facts is not None, f"{self.name} was not opened"
        return self._facts

    @property
    def version(self) -> int:
        """The version that was read."""
        return self._log.version

    def transaction(self, application: str) -> int | None:
        """The last number that an application has committed with."""
        if application in self._log.transactions:
            return self._log.transactions[application]
        if self._asked is None:  # the log has said everything
            return None
        if application not in self._asked:
            found = self._snapshot().transaction_version(application)
            self._asked[application] = None if found is None else int(found)
        return self._asked[application]

    def files(self) -> list[DataFile]:
        """The files of this version."""
        found: Table = pa.table(self._snapshot().get_add_actions(flatten=True))
        return [_data_file(row) for row in found.to_pylist()]

    def paths(self) -> set[str]:
        """The paths of the files of this version."""
        found: Table = pa.table(self._snapshot().get_add_actions())
        return set(found.column("path").to_pylist())

    def spark_urls(self, files: Iterable[DataFile]) -> list[str]:
        """The addresses of files for Spark."""
        return [self.storage.spark_url(one.path) for one in files]

    def dataset(self) -> Any:
        """The rows of this version, as a dataset of pyarrow."""
        return self._snapshot().to_pyarrow_dataset()

    def read(self, columns: Sequence[str] | None = None, filter: Any = None) -> Table:
        """The rows of this version, as a table of pyarrow."""
        with _named_errors(self.storage):
            return self.dataset().to_table(
                columns=None if columns is None else list(columns), filter=filter
            )

    def changes(self, after: int) -> Changes | None:
        """The changes committed after a version. None: the log no longer goes back so far.

        A commit of this package says so. It has new rows if it removes no files; other removals
        are those of expired rows. Of another program, files that are removed and added together
        may have anything in common.
        """
        found = Changes([], [], [])
        for version in range(after + 1, self.version + 1):
            entry = self.storage.read(entry_name(version))
            if entry is None:
                return None
            lines = [msgspec.json.decode(line, type=_LogLine) for line in entry.splitlines()]
            own = any(line.info is not None and line.info.writer == OWN for line in lines)
            add = [one.add.file for one in lines if one.add is not None and one.add.changes_data]
            remove = [
                one.remove.file
                for one in lines
                if one.remove is not None and one.remove.changes_data
            ]
            if not remove:
                found.added.extend(add)
            elif not own:
                found.removed.extend(remove)
                found.rewritten.extend(add)
        return found

    # -- commits --------------------------------------------------------------------------------

    def commit(
        self,
        add: Sequence[DataFile] = (),
        remove: Sequence[DataFile] = (),
        transactions: Mapping[str, int] | None = None,
        *,
        same_rows: bool = False,
        mode: Literal["append", "overwrite"] = "append",
    ) -> int:
        """Add and remove files, as one step; returns the new version.

        ``same_rows``: the rows only move from files to files. ``overwrite`` also removes all other
        files. The files must be durable already.

        Raises:
            CommitConflictError: another process has committed in between.
        """
        now = time.time_ns() // 1_000_000
        version = self.version + 1
        if mode == "append" and not remove and not same_rows and self._may_append():
            self._append(add, transactions or {}, now)
            return version
        actions = [_add(one, now, changes_data=not same_rows) for one in add]
        actions += [
            _actions.RemoveAction(one.path, not same_rows, now, one.size, _partition(one))
            for one in remove
        ]
        properties = _delta.CommitProperties(
            custom_metadata={"writer": OWN},
            max_commit_retries=0,
            app_transactions=[
                _delta.Transaction(name, number, now)
                for name, number in (transactions or {}).items()
            ],
        )
        try:
            self._snapshot().create_write_transaction(
                actions,
                mode,
                self.schema,
                self._partitions or None,
                commit_properties=properties,
            )
        except _errors.DeltaError as error:
            self.refresh()
            if self.version >= version:
                raise CommitConflictError(f"{self.name}: {error}") from error
            if isinstance(self.storage, ObjectStorage):
                raise store_error(error, self.storage.options, self.storage.root) from None
            raise  # a full disk, or no permission: trying again does not help
        self.storage.sync(entry_name(version))
        self.refresh()
        return version

    def _may_append(self) -> bool:
        """Whether an entry may be written without delta-rs: nothing special was asked for.

        Tables of a later protocol may have rules for writers, and delta-rs knows them. In an object
        store, delta-rs knows how to create an entry exclusively.
        """
        if not self.storage.is_local:
            return False
        return self._known.writer_version <= WRITER_VERSION and self._log.is_last_there()

    def _append(self, add: Sequence[DataFile], transactions: Mapping[str, int], now: int) -> None:
        version = self.version + 1
        entry = append_entry([_add_line(one, now) for one in add], transactions, now)
        assert isinstance(self.storage, FolderStorage)
        if not write_entry(self.storage.path, version, entry):
            self.refresh()
            raise CommitConflictError(f"{self.name}: version {version} is there already")
        self._log.advance(transactions)
        given = self._known.configuration.get("delta.checkpointInterval")
        if version % int(given or _CHECKPOINT) == 0:
            self._checkpoint(version)

    def _checkpoint(self, version: int) -> None:
        """Write a checkpoint, so that readers need not read the log from its beginning."""
        try:
            table = self._snapshot()
            table.create_checkpoint()
            self.storage.sync(f"{LOG}/{version:020d}.checkpoint.parquet", f"{LOG}/_last_checkpoint")
            table.cleanup_metadata()
        except (_errors.DeltaError, OSError) as error:  # the commit itself is done
            log.warning("the log of %s has no checkpoint at %d: %s", self.name, version, error)
        self._table = None  # it remembers the entries before

    def has_columns(self) -> bool:
        """Whether the columns of the table are those of this object."""
        stored = pa.schema(self._snapshot().schema().to_arrow())
        return _plain(stored) == _plain(self.schema)

    def replace(self, add: Sequence[DataFile], transactions: Mapping[str, int]) -> int:
        """Replace all files, and the columns, as one step; returns the new version.

        Raises:
            CommitConflictError: another process has committed in between.
        """
        return self.commit(add, (), transactions, mode="overwrite")

    def vacuum(self, keep_hours: int) -> int:
        """Delete files that no version of the last ``keep_hours`` needs; returns how many."""
        with _named_errors(self.storage):
            gone = self._snapshot().vacuum(
                keep_hours, dry_run=False, enforce_retention_duration=False, full=True
            )
        return len(gone)


def statistics_of(rows: Table) -> dict[str, Any]:
    """Delta's statistics of some rows: their number, and the range of some columns."""
    least: dict[str, Any] = {}
    most: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for name in rows.column_names:
        if name in _STATISTICS:
            column = rows.column(name)
            nulls[name] = column.null_count
            found = compute.min_max(column).as_py()
            if found["min"] is not None and _is_short(found):
                least[name], most[name] = _as_text(found["min"]), _as_text(found["max"])
    return {
        "numRecords": rows.num_rows,
        "minValues": least,
        "maxValues": most,
        "nullCount": nulls,
    }


def combined(all_statistics: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The statistics of several sets of rows together."""
    columns = [set(one["minValues"]) for one in all_statistics]
    shared = set[str].intersection(*columns) if columns else set[str]()
    return {
        "numRecords": sum(one["numRecords"] for one in all_statistics),
        "minValues": {c: min(one["minValues"][c] for one in all_statistics) for c in shared},
        "maxValues": {c: max(one["maxValues"][c] for one in all_statistics) for c in shared},
        "nullCount": {
            c: sum(one["nullCount"][c] for one in all_statistics)
            for c in all_statistics[0]["nullCount"]
            if all(c in one["nullCount"] for one in all_statistics)
        }
        if all_statistics
        else {},
    }


@contextmanager
def _named_errors(storage: Storage) -> Generator[None]:
    """Raise errors of an object store as ``ObjectStoreError``, without secrets."""
    try:
        yield
    except _errors.TableNotFoundError:
        raise
    except (OSError, _errors.DeltaError) as error:
        if not isinstance(storage, ObjectStorage) or isinstance(error, FileNotFoundError):
            raise
        raise store_error(error, storage.options, storage.root) from None


def _options(storage: Storage) -> dict[str, str] | None:
    return dict(storage.options) or None


@lru_cache(maxsize=32)
def _check_commits(lake: Storage) -> None:
    """Make sure, once in a process, that a store never lets two writers create one log entry.

    delta-rs looks for the entries of others before it asks the store to create one. Only writers
    that look at the same time depend on the store alone: so some of them race, a few times.

    Raises:
        ConfigurationError: two of them have created the same entry.
    """
    name = f"_check/{uuid.uuid4().hex}"
    columns = pa.schema([pa.field("nothing", pa.string())])
    racers = [DeltaTable(lake, name, columns, partitioned=False) for _ in range(_RACERS)]
    try:
        racers[0].create()
        with ThreadPoolExecutor(_RACERS, thread_name_prefix="matador-check") as threads:
            for _ in range(_RACES):
                start = threading.Barrier(_RACERS)
                won = [*threads.map(partial(_wins, start), racers)]
                if sum(won) > 1:
                    raise ConfigurationError(
                        f"the store of {lake.root} ignores the condition of a conditional request "
                        "(PUT with If-None-Match), so that two writers could overwrite each "
                        "other's commits; use a store that supports it, or a lock in DynamoDB "
                        "(storage option aws_s3_locking_provider=dynamodb)"
                    )
    finally:
        lake.delete_folder(name)


def _wins(start: threading.Barrier, racer: DeltaTable) -> bool:
    try:
        racer.refresh()
    finally:
        start.wait(_PATIENCE)
    try:
        racer.commit()
    except CommitConflictError:
        return False
    return True


def _plain(schema: Schema) -> list[tuple[str, str]]:
    """The names and types of columns; lists may call their elements as they like."""
    names = {"item": "element", "entries": "key_value"}
    text = [(one.name, str(one.type)) for one in schema]
    for old, new in names.items():
        text = [(name, kind.replace(f"<{old}:", f"<{new}:")) for name, kind in text]
    return [(name, kind.replace("large_", "").replace(" not null", "")) for name, kind in text]


def _is_short(found: Mapping[str, Any]) -> bool:
    return all(not isinstance(one, str) or len(one) <= _LONGEST for one in found.values())


def _as_text(value: Any) -> str:
    if isinstance(value, datetime):
        return value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return str(value)


def _partition(file: DataFile) -> dict[str, str | None]:
    return {} if file.date is None else {PARTITION: file.date}


def _add(file: DataFile, now: int, *, changes_data: bool) -> Any:
    statistics = _statistics(file)
    return _actions.AddAction(file.path, file.size, _partition(file), now, changes_data, statistics)


def _add_line(file: DataFile, now: int) -> dict[str, Any]:
    """The same as the log has it."""
    return {
        "path": quote(file.path, safe="/="),
        "partitionValues": _partition(file),
        "size": file.size,
        "modificationTime": now,
        "dataChange": True,
        "stats": _statistics(file),
    }


def _statistics(file: DataFile) -> str:
    return msgspec.json.encode({**file.statistics, "numRecords": file.rows}).decode()


def _data_file(row: Mapping[str, Any]) -> DataFile:
    bounds: dict[str, dict[str, Any]] = {"minValues": {}, "maxValues": {}, "nullCount": {}}
    kinds = {"min": "minValues", "max": "maxValues", "null_count": "nullCount"}
    for name, value in row.items():
        kind, _, column = name.partition(".")
        if kind in kinds and value is not None:
            counted = kind == "null_count"
            bounds[kinds[kind]][column] = value if counted else _as_text(value)
    day: date | None = row.get(f"partition.{PARTITION}")
    rows = int(row["num_records"] or 0)
    return DataFile(
        unquote(row["path"]),
        int(row["size_bytes"]),
        rows,
        None if day is None else str(day),
        {"numRecords": rows, **bounds},
    )


class _File(msgspec.Struct, frozen=True):
    path: str
    size: int = 0
    changes_data: bool = msgspec.field(name="dataChange", default=True)
    partitions: dict[str, str | None] | None = msgspec.field(name="partitionValues", default=None)
    stats: str | None = None

    @property
    def file(self) -> DataFile:
        """The file, as ``DeltaTable.files`` has it."""
        statistics = msgspec.json.decode(self.stats or "{}", type=dict[str, Any])
        rows = int(statistics.setdefault("numRecords", 0))
        day = (self.partitions or {}).get(PARTITION)
        return DataFile(unquote(self.path), self.size, rows, day, statistics)


class _CommitInfo(msgspec.Struct, frozen=True):
    writer: Any = None


class _LogLine(msgspec.Struct, frozen=True):
    add: _File | None = None
    remove: _File | None = None
    info: _CommitInfo | None = msgspec.field(name="commitInfo", default=None)
