"""The data source and replays against the least that could be done.

    python -m benchmarks.pipeline_source [--rows 100000] [--rounds 3]

- Reading a queue in SQLite into columns, against an identity ``mapInArrow`` over the same rows,
  which have to be read from Parquet then.
- Replaying a lake into SQLite, planning and ledger included, against ``send_many`` of the same
  payloads. All wait for the disk (``synchronous=FULL``). Tasks send in parallel if the application
  is given by its reference, as ``matador lake replay`` does, but have one file to write to here.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from benchmarks.cpu_time import cpu_seconds
from benchmarks.rounds import Bar, Outcome, hold_both, table
from benchmarks.shop import OrderPlaced, payloads
from matador import Envelope, Matador, Schema, Topology, subscriber
from matador.codec.as_json import as_json
from matador.spark import Lake, spark_session
from matador.spark.runtime.arrow import RecordBatch, map_in_arrow, pa
from matador.spark.tables.decode import EVENT
from matador.spark.tables.layout import EVENTS
from matador.spark.tables.parquet_writer import FileWriter

_APP = """
from matador import Matador
from benchmarks.pipeline_source import SCHEMA, TOPOLOGY

app = Matador({url!r}, schema=SCHEMA, topology=TOPOLOGY)
"""


@subscriber(description="Never run here.", idempotent="yes")
async def ship(envelope: Envelope[OrderPlaced]) -> None:
    """Only its queue matters."""


SCHEMA = Schema({OrderPlaced: [ship]})
TOPOLOGY = Topology("shop", queues=["events"])


def hold_all(spark: SparkSession, folder: Path, rows: int, rounds: int) -> list[Outcome]:
    """Hold the contests, by the clock and by CPU time; ``folder`` is used for files."""
    reading, replaying = _Reading(spark, folder / "reading", rows), _Replaying(spark, folder, rows)
    identity, tasks, driver, direct = (
        *("mapInArrow identity", "lake.replay('module:app')", "lake.replay(app)"),
        "send_many",
    )
    return [
        *hold_both(
            "batch read, rows",
            "data source",
            {"data source": reading.ours, identity: reading.identity},
            [Bar(identity, 0.5)],
            rounds,
            "/s",
        ),
        *hold_both(
            "replay into SQLite by Spark's tasks, messages",
            tasks,
            {tasks: replaying.from_executors, direct: replaying.direct},
            [Bar(direct, 0.5)],
            rounds,
            "/s",
            cpu_bars=(),  # Java and the workers of Spark are in it: the clock is what tasks improve
        ),
        *hold_both(
            "replay into SQLite by the driver, messages",
            driver,
            {driver: replaying.from_here, direct: replaying.direct},
            [Bar(direct, 0.5)],
            rounds,
            "/s",
        ),
    ]


class _Clock:
    """Counts seconds, and seconds of CPU time of this process and what it has started."""

    def __init__(self) -> None:
        self._began, self._used = time.perf_counter(), cpu_seconds()

    def rates(self, rows: int) -> tuple[float, float]:
        """Rows a second, and a second of CPU time."""
        return rows / (time.perf_counter() - self._began), rows / (cpu_seconds() - self._used)


class _Reading:
    def __init__(self, spark: SparkSession, folder: Path, rows: int) -> None:
        folder.mkdir()
        self._spark, self._rows = spark, rows
        self._url = f"sqlite:///{folder / 'queue.db'}"
        self._parquet = str(folder / "rows")
        _send(self._url, rows)
        self._queue().write.parquet(self._parquet)
        self.identity()

    def _queue(self) -> DataFrame:
        options = {"url": self._url, "queue": "shop.events"}
        return self._spark.read.format("matador").options(**options).load()

    def ours(self) -> tuple[float, float]:
        return self._rate(self._queue())

    def identity(self) -> tuple[float, float]:
        rows = self._spark.read.parquet(self._parquet)
        return self._rate(map_in_arrow(rows, _same, rows.schema))

    def _rate(self, frame: DataFrame) -> tuple[float, float]:
        clock = _Clock()
        frame.write.format("noop").mode("overwrite").save()
        return clock.rates(self._rows)


class _Replaying:
    def __init__(self, spark: SparkSession, folder: Path, rows: int) -> None:
        self._folder, self._rows = folder, rows
        self._lake = Lake(folder / "lake", spark=spark)
        table = self._lake.layout.table("events").open()
        writer = FileWriter(table.storage, EVENTS, "2026-11-17")
        writer.write(_events(rows))
        table.commit([writer.close()])
        self.from_executors()  # Java compiles what it runs often; that is not what is measured

    def from_here(self) -> tuple[float, float]:
        folder = self._new_folder()
        url = f"sqlite:///{folder / 'queue.db'}"
        return self._replay(Matador(url, schema=SCHEMA, topology=TOPOLOGY), folder)

    def from_executors(self) -> tuple[float, float]:
        folder = self._new_folder()
        file = folder / f"app_{folder.name}.py"
        file.write_text(_APP.format(url=f"sqlite:///{folder / 'queue.db'}"))
        return self._replay(f"{file}:app", folder)

    def _replay(self, app: Matador | str, folder: Path) -> tuple[float, float]:
        clock = _Clock()
        result = self._lake.replay(app)
        rates = clock.rates(self._rows)
        assert result.sent == self._rows
        shutil.rmtree(folder)
        return rates

    def _new_folder(self) -> Path:
        folder = self._folder / uuid.uuid4().hex
        folder.mkdir()
        return folder

    def direct(self) -> tuple[float, float]:
        folder = self._new_folder()
        rates = _send(f"sqlite:///{folder / 'queue.db'}", self._rows)
        shutil.rmtree(folder)
        return rates


def _same(batches: Iterator[RecordBatch]) -> Iterator[RecordBatch]:
    yield from batches


def _send(url: str, rows: int) -> tuple[float, float]:
    """Send so many events directly; the rates."""
    events = payloads(rows)

    async def send() -> tuple[float, float]:
        async with Matador(url, schema=SCHEMA, topology=TOPOLOGY) as app:
            clock = _Clock()
            for start in range(0, rows, 10_000):
                await app.send_many(events[start : start + 10_000])
            return clock.rates(rows)

    return asyncio.run(send())


def _events(rows: int) -> Any:
    now = time.time_ns() // 1000
    data = [as_json(payload).decode() for payload in payloads(rows)]
    constants: dict[str, Any] = {
        "way": EVENT,
        "event_key": "order.placed",
        "subscriber": "ship",
        "queue": "shop.events",
        "transport": "sqlite",
        "recorded_at": now,
        "importance": "should-investigate",
    }
    columns = {
        "id": [str(uuid.UUID(int=number)) for number in range(rows)],
        "created_at": [now + number for number in range(rows)],
        "data_json": data,
        **{name: [value] * rows for name, value in constants.items()},
    }
    arrays = [
        pa.array(columns[field.name], field.type)
        if field.name in columns
        else pa.nulls(rows, field.type)
        for field in EVENTS
    ]
    return pa.Table.from_arrays(arrays, schema=EVENTS)


def main() -> int:
    """Run both contests and print their ratios; 1 if a bar is not met."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    spark = spark_session("local[2]")
    with tempfile.TemporaryDirectory() as folder:
        outcomes = hold_all(spark, Path(folder), given.rows, given.rounds)
    spark.stop()
    print(table(outcomes))
    return 0 if all(outcome.met for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
