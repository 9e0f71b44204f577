"""Runs functions in the executors, and sends applications and payload types there."""

from __future__ import annotations

import copyreg
import dataclasses
import io
import pickle
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from pyspark import cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as sql

from matador.errors import ConfigurationError
from matador.loading import is_file, split_reference
from matador.model.event import EventType
from matador.model.schema import Schema
from matador.spark.runtime.arrow import RecordBatch, map_in_arrow, pa
from matador.spark.runtime.connect import is_connect
from matador.spark.runtime.messages import one_line
from matador.spark.runtime.session import INSTALLED, import_paths, runs_here

_MOST_CORES = 4096
_pickler: Any = cloudpickle  # it has no types

# A dataclass of a script is pickled by value. Fields without a default refer to one marker object,
# which must be the same object after unpickling: else every field would seem to have a default.
copyreg.pickle(type(dataclasses.MISSING), lambda _: "MISSING")


def ship(spark: SparkSession, reference: str, py_files: Sequence[str | Path] = ()) -> str:
    """Send files to the executors; returns the reference that finds the application there."""
    where, attribute = split_reference(reference)
    files = [str(Path(one).resolve()) for one in py_files]
    if is_file(where):
        files.append(str(Path(where).resolve()))
        reference = f"{Path(where).stem}:{attribute}"
    add_files(spark, files)
    return reference


def add_files(spark: SparkSession, files: Sequence[str]) -> None:
    """Send Python files, or zips of them, to the executors.

    Raises:
        ConfigurationError: the session has another file of that name.
    """
    if not is_connect(spark):
        for file in files:
            spark.sparkContext.addPyFile(file)
        return
    for file in files:
        try:
            spark.addArtifacts(file, pyfile=True)
        except PySparkException as error:
            raise ConfigurationError(
                f"{file} cannot be sent to the Spark Connect server: {one_line(str(error))}; a "
                "session keeps the first file of a name, so use a new session after a change"
            ) from error


@dataclass(frozen=True, slots=True)
class EventTypes:
    """The event types of a schema, by key and alias, without the code of subscribers. Pickled.

    Classes of modules are pickled by name; ``paths`` is where executors on this machine find them.
    """

    pickled: bytes
    paths: tuple[str, ...]

    def load(self) -> Mapping[str, EventType]:
        """The types, in an executor. Raises whatever importing their modules raises."""
        sys.path.extend(path for path in self.paths if path not in sys.path)
        return _pickler.loads(self.pickled)


def event_types(spark: SparkSession, schema: Schema) -> EventTypes:
    """The event types of a schema, ready to be sent to executors.

    Single-file modules are sent along, unless the executors see the same files anyway.
    """
    keys = {key for event in schema.events for key in event.keys}
    events = {key: replace(schema.event(key), metadata={}) for key in keys}
    try:
        pickled: bytes = _pickler.dumps(events)
    except Exception as error:  # the classes of users decide what is raised
        raise ConfigurationError(
            "the payload types of the schema cannot be sent to the Spark executors; define them at "
            f"the top level of a module that the executors can import ({error})"
        ) from error
    if runs_here(spark):
        return EventTypes(pickled, tuple(import_paths()))
    add_files(spark, _single_files(_modules_of(pickled)))
    return EventTypes(pickled, ())


def _modules_of(pickled: bytes) -> set[str]:
    """The modules that a pickle refers to."""
    names: set[str] = set()

    class Reading(pickle.Unpickler):
        def find_class(self, module_name: str, global_name: str) -> Any:
            names.add(module_name)
            return super().find_class(module_name, global_name)

    Reading(io.BytesIO(pickled)).load()
    return names


def _single_files(modules: Iterable[str]) -> list[str]:
    """The files of modules that are neither installed nor part of a package."""
    top = [sys.modules.get(name) for name in modules if "." not in name]
    files = [str(getattr(module, "__file__", None) or "__init__.py") for module in top]
    return sorted(
        file
        for file in files
        if not file.startswith(INSTALLED) and Path(file).name != "__init__.py"
    )


def parallelism(spark: SparkSession) -> int:
    """How many tasks run at the same time, as far as Spark says."""
    if not is_connect(spark):
        return spark.sparkContext.defaultParallelism
    # A range has as many partitions as there are cores, unless it is told otherwise. The partitions
    # are numbered from zero.
    numbers = spark.range(0, _MOST_CORES).select(sql.spark_partition_id().alias("number"))
    (row,) = numbers.agg(sql.max("number").alias("last")).collect()
    return max(1, int(row["last"]) + 1)


def run_tasks(spark: SparkSession, work: Callable[[int], bytes], count: int) -> list[bytes]:
    """Run ``work(0)`` to ``work(count - 1)``, each in its own task; returns the answers in order.

    ``work`` is pickled: it must be a function of a module, or a ``functools.partial`` of one. A
    task may run more than once, so its leftovers must not disturb another attempt.
    """
    if count == 0:
        return []
    numbers = spark.range(0, count, 1, count)
    frame = map_in_arrow(numbers, partial(_answers, work), "number bigint, answer binary")
    found = {int(row.number): bytes(row.answer) for row in frame.collect()}
    return [found[number] for number in range(count)]


def _answers(work: Callable[[int], bytes], numbers: Iterator[RecordBatch]) -> Iterator[RecordBatch]:
    for batch in numbers:
        for number in batch.column(0).to_pylist():
            answer = work(number)
            yield pa.RecordBatch.from_arrays(
                [pa.array([number], pa.int64()), pa.array([answer], pa.binary())],
                names=["number", "answer"],
            )
