"""Runs queries over the lake in separate processes.

Spark cannot interrupt every query, and a query that takes all memory ends its Java. So a query runs
in a process with its own Spark. To stop a query, the process is killed; the next query starts
another process.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import resource
import tempfile
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from matador.dashboard.options import DashboardOptions, LakeSpark
from matador.errors import ConfigurationError, MatadorError
from matador.model.schema import Schema
from matador.runtime.children import Child, ChildDiedError, Parent

if TYPE_CHECKING:
    from matador.spark import Lake

MOST_ROWS = 200
MOST_COLUMNS = 100
QUERY_SECONDS = 120.0
_START_SECONDS = 300.0  # to wait for other queries, and for Spark to start
_AT_ONCE = 2
_LONGEST_CELL = 300
_MEMORY = 1 << 30  # bytes that a process may use for an answer; its Java has a separate limit
_GRACE = 5.0  # seconds for Java to end after its last sign of life
_LIMITS = {"spark.driver.maxResultSize": "256m"}


@dataclass(frozen=True, slots=True)
class Answer:
    """The first rows of a query's result."""

    columns: list[str]
    rows: list[list[str]]
    more: bool
    seconds: float


class LakePlace(NamedTuple):
    """A lake, and the Spark that reads it, for any process."""

    place: str
    storage_options: dict[str, str]
    payloads: tuple[type[Any], ...]
    spark: LakeSpark

    @classmethod
    def of(cls, options: DashboardOptions, place: str, schema: Schema) -> LakePlace:
        """The lake of a dashboard."""
        payloads = tuple(one.payload for one in schema.events)
        return cls(place, dict(options.storage_options), payloads, options.spark)

    def open(self, schema: Schema | None = None, **session: Any) -> Lake:
        """The lake, with its Spark running. Blocks.

        Raises:
            ConfigurationError: it has no tables.
        """
        from matador.spark import Lake
        from matador.spark.runtime.messages import silence
        from matador.spark.runtime.session import spark_session

        schema = schema or Schema({payload: [] for payload in self.payloads})
        lake = Lake(self.place, schema=schema, storage_options=self.storage_options)
        if not lake.exists():
            raise ConfigurationError(
                f"the lake {self.place} has no tables: run `matador lake ingest`"
            )
        master, remote, config = self.spark.master, self.spark.remote, self.spark.config
        config = {**session.pop("config", {}), **config}
        lake.start_later(partial(spark_session, master, remote=remote, config=config, **session))
        silence(lake.spark)
        return lake


def explained(error: Exception) -> MatadorError:
    """An exception of Spark as a ``MatadorError`` with one line of text."""
    if isinstance(error, MatadorError):
        return error
    if isinstance(error, ModuleNotFoundError):
        return ConfigurationError(
            f"the lake needs an extra: pip install 'matador-events[spark]' ({error})"
        )
    from matador.spark.runtime.messages import reason_of, spark_error

    return ConfigurationError(spark_error(error) or f"{type(error).__name__}: {reason_of(error)}")


class LakeQueries:
    """The processes that answer queries: at most two at once, and one for each user."""

    def __init__(self, place: LakePlace) -> None:
        self._place = place
        self._idle: list[_Process] = []
        self._free = asyncio.Semaphore(_AT_ONCE)
        self._users: set[str] = set()
        self._tasks: set[asyncio.Task[Answer]] = set()
        self._ending = asyncio.Event()
        self.seconds = QUERY_SECONDS

    async def ask(self, sql: str, user: str) -> Answer:
        """The first rows of one SELECT, which only reads. It is stopped if the caller is canceled.

        Raises:
            ConfigurationError: the text is not a query, Spark refuses it, or it takes too much time
                or memory.
        """
        if user in self._users:
            raise ConfigurationError(
                "your last query still runs: wait for its answer, or leave its page to stop it"
            )
        begun = asyncio.Event()
        asking = asyncio.create_task(self._ask(sql, begun))
        ending = asyncio.create_task(self._ending.wait())
        beginning = asyncio.create_task(begun.wait())
        self._users.add(user)
        self._tasks.add(asking)
        asking.add_done_callback(self._tasks.discard)
        limit, first = self.seconds, asyncio.FIRST_COMPLETED
        try:
            ends = {asking, ending}
            await asyncio.wait({*ends, beginning}, timeout=_START_SECONDS, return_when=first)
            if begun.is_set():
                await asyncio.wait(ends, timeout=limit, return_when=first)
            if asking.done():
                return asking.result()
        finally:
            self._users.discard(user)
            for task in (asking, ending, beginning):
                task.cancel()
        if self._ending.is_set():
            raise ConfigurationError("the query was stopped: the dashboard is shutting down")
        if not begun.is_set():
            raise ConfigurationError(
                f"the query has not begun within {_START_SECONDS:g} seconds: others are being "
                "answered, or Spark does not start. Try again later, or use `matador lake query`"
            )
        raise ConfigurationError(
            f"the query was stopped after {limit:g} seconds. Select less, for example by date, or "
            "use `matador lake query`, which has no limit"
        )

    def end(self) -> None:
        """Stop running queries, for a server that shuts down."""
        self._ending.set()

    async def stop(self) -> None:
        """End all processes."""
        self.end()
        await asyncio.gather(*self._tasks, return_exceptions=True)  # each ends its process
        while self._idle:
            await self._idle.pop().kill()

    async def _ask(self, sql: str, begun: asyncio.Event) -> Answer:
        async with self._free:
            process = self._idle.pop() if self._idle else _Process(self._place)
            keep = False
            try:
                answer = await process.problem()
                if answer is None:
                    begun.set()
                    answer = await process.ask(sql)
                    keep = True
            except ChildDiedError as error:
                raise ConfigurationError(
                    f"the query has ended its process ({error}): most likely it needs more memory "
                    "than there is. Select less, or give Spark more with spark.driver.memory"
                ) from None
            finally:
                if keep and not self._idle:
                    self._idle.append(process)
                else:
                    await process.kill()
        if isinstance(answer, Answer):
            return answer
        raise ConfigurationError(answer)


class _Process:
    """A process with its own Spark and a folder for spilled data, which is removed with it."""

    def __init__(self, place: LakePlace) -> None:
        self._is_open = False
        self._folder = tempfile.TemporaryDirectory(
            prefix="matador-query-", ignore_cleanup_errors=True
        )
        try:
            name = self._folder.name
            self._child = Child("matador-lake-query", _serve, place, name, leads=True)
        except Exception as error:  # a payload class that another process cannot import
            self._folder.cleanup()
            raise explained(error) from error

    async def problem(self) -> str | None:
        """Wait until the lake is open; return the error text if it cannot be opened."""
        if not self._is_open:
            problem: str | None = pickle.loads(await self._child.receive())
            if problem is not None:
                return problem
            self._is_open = True
        return None

    async def ask(self, sql: str) -> Answer | str:
        """The answer, or the error text."""
        await self._child.send(sql.encode())
        return pickle.loads(await self._child.receive())

    async def kill(self) -> None:
        """Kill the process."""
        self._child.kill()
        await asyncio.to_thread(self._child.join)
        await asyncio.to_thread(self._folder.cleanup)


# -- in the other process --------------------------------------------------------------------------


def _serve(parent: Parent, place: LakePlace, folder: str) -> None:
    """Answer queries until the dashboard closes the connection."""
    os.environ["TMPDIR"] = os.environ["SPARK_LOCAL_DIRS"] = tempfile.tempdir = folder
    try:
        lake = _opened(place, folder)
    except Exception as error:  # noqa: BLE001 - the error is shown to the user
        parent.send(pickle.dumps(str(explained(error))))
        return
    parent.send(pickle.dumps(None))
    while True:
        sql = parent.receive().decode()
        answer: Answer | str
        try:
            answer = _answer(lake, sql)
        except MemoryError:
            answer = "the answer takes too much memory: select less"
        except Exception as error:  # noqa: BLE001 - the error is shown to the user
            _end_with_java(error)
            answer = str(explained(error))
        parent.send(pickle.dumps(answer))


def _answer(lake: Lake, sql: str) -> Answer:
    from matador.spark.runtime.messages import first_rows

    began = time.monotonic()
    frame = lake.sql(sql)
    if len(frame.columns) > MOST_COLUMNS:
        raise ConfigurationError(
            f"the answer has {len(frame.columns):,} columns; at most {MOST_COLUMNS} are shown"
        )
    found = first_rows(frame, MOST_ROWS)
    rows = [[_cell(one) for one in row.values()] for row in found.rows]
    return Answer(found.columns, rows, found.more, time.monotonic() - began)


def _opened(place: LakePlace, folder: str) -> Lake:
    from matador.spark.runtime.java import class_archive_options

    options = [
        *class_archive_options(),
        f"-Djava.io.tmpdir={folder}",
        "-XX:+ExitOnOutOfMemoryError",
    ]
    lake = place.open(config=_LIMITS, java_options=options)
    with contextlib.suppress(OSError):  # only Linux reports it
        taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (taken + _MEMORY, taken + _MEMORY))
    return lake


def _end_with_java(error: Exception) -> None:
    """End this process if Java has ended: the dashboard starts another one."""
    from matador.spark.runtime.session import java_exit_code

    if not isinstance(error, MatadorError):
        code = java_exit_code(error, _GRACE)
        if code is not None:
            os._exit(code)


def _cell(value: Any) -> str:
    text = "" if value is None else str(value)
    return text if len(text) <= _LONGEST_CELL else f"{text[:_LONGEST_CELL]}…"
