"""Runs a function many times over in the executors, and brings back one small answer each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from pyspark.sql import SparkSession

from matador.spark.arrow import RecordBatch, map_in_arrow, pa


def run_tasks(spark: SparkSession, work: Callable[[int], bytes], count: int) -> list[bytes]:
    """``work(0)`` to ``work(count - 1)``, each in a task of its own; their answers in order.

    ``work`` is pickled, so it is a function of a module, or a ``functools.partial`` of one. A task
    may run more than once: what it leaves behind must not get in the way of another attempt.
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
