"""DataFrame subscribers whose process is killed: ``dataframe_program.py SHOP FOLDER``.

There are three, all at their second batch when it happens: two in the middle of it, and one whose
batch has ended, which Spark does not know yet. What each was given is noted in a file.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from pyspark.sql import DataFrame, SparkSession

from matador.loading import load_application
from matador.spark import spark_session
from matador.spark.dataframes.runner import BatchTotals, run_dataframe_subscribers
from matador.spark.dataframes.subscriber import (
    Batch,
    BatchResult,
    DataFrameSubscriber,
    dataframe_subscriber,
)

FATAL = 1  # the batch
_PATIENCE = 300.0


@dataclass(frozen=True)
class Crew:
    """The three subscribers over the journal in a folder."""

    module: ModuleType
    folder: Path
    deadly: bool = False

    def run(self, spark: SparkSession) -> list[BatchTotals]:
        """Give them all there is, a segment of the journal a batch."""
        meeting = threading.Barrier(3)
        return run_dataframe_subscribers(
            [
                self._declare("middle", "yes", meeting),
                self._declare("careful", "no", meeting),
                self._declare("ended", "yes", meeting),
            ],
            journal=self.folder / "journal",
            checkpoint=self.folder / "checkpoint",
            spark=spark,
            batch_size=1,
            on_result=self._result,
        )

    def given(self, name: str) -> list[dict[str, Any]]:
        """The batches that one was given, in order."""
        return [json.loads(line) for line in self._notes(name).read_text().splitlines()]

    def kept(self, name: str) -> Path:
        """Where it keeps what it was given, by batch."""
        return self.folder / f"{name}-kept"

    def _notes(self, name: str) -> Path:
        return self.folder / f"{name}.jsonl"

    def _declare(
        self, name: str, idempotent: Literal["yes", "no"], meeting: threading.Barrier
    ) -> DataFrameSubscriber:
        @dataframe_subscriber(
            self.module.OrderPlaced, name=name, description="Keeps.", idempotent=idempotent
        )
        def keep(orders: DataFrame, batch: Batch) -> None:
            numbers = sorted(row[0] for row in orders.select("data.number").collect())
            with self._notes(name).open("a") as notes:
                found = {"id": batch.id, "again": batch.redelivered, "numbers": numbers}
                notes.write(json.dumps(found) + "\n")
            if self.deadly and batch.id == FATAL:
                meeting.wait(_PATIENCE)
                if name != "ended":
                    threading.Event().wait(_PATIENCE)
            target = self.kept(name) / f"batch={batch.id}"
            orders.select("data.number").write.mode("overwrite").parquet(str(target))

        return keep

    def _result(self, result: BatchResult) -> None:
        if self.deadly and (result.subscriber, result.batch_id) == ("ended", FATAL):
            os.killpg(0, signal.SIGKILL)


def main(arguments: Sequence[str]) -> None:
    """Run until killed."""
    module = load_application(arguments[0]).module
    Crew(module, Path(arguments[1]), deadly=True).run(spark_session("local[2]"))


if __name__ == "__main__":
    main(sys.argv[1:])
