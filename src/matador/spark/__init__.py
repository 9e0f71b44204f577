"""The data pipeline on Spark: journals become tables, and tables become events again.

Nothing of Spark is imported before one of these names is used. Needs the extra ``spark``, and
Java 17 or newer.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from matador.errors import MissingExtraError

if TYPE_CHECKING:
    from matador.spark.class_archive import prepare
    from matador.spark.dataframes.runner import (
        dead_batches,
        redrive_dead_batches,
        run_dataframe_subscribers,
    )
    from matador.spark.dataframes.subscriber import Batch, dataframe_subscriber
    from matador.spark.lake import Lake
    from matador.spark.runtime.session import spark_session
    from matador.spark.source import register
    from matador.spark.workers.worker import run_spark_worker

__all__ = [
    "Batch",
    "Lake",
    "dataframe_subscriber",
    "dead_batches",
    "prepare",
    "redrive_dead_batches",
    "register",
    "run_dataframe_subscribers",
    "run_spark_worker",
    "spark_session",
]

_HOMES = {
    "Batch": "matador.spark.dataframes.subscriber",
    "Lake": "matador.spark.lake",
    "dataframe_subscriber": "matador.spark.dataframes.subscriber",
    "dead_batches": "matador.spark.dataframes.runner",
    "prepare": "matador.spark.class_archive",
    "redrive_dead_batches": "matador.spark.dataframes.runner",
    "register": "matador.spark.source",
    "run_dataframe_subscribers": "matador.spark.dataframes.runner",
    "run_spark_worker": "matador.spark.workers.worker",
    "spark_session": "matador.spark.runtime.session",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'matador.spark' has no attribute {name!r}")
    _require_extra()
    return getattr(importlib.import_module(home), name)


def _require_extra() -> None:
    for module in ("pyspark", "pyarrow", "pandas"):
        try:
            importlib.import_module(module)
        except ModuleNotFoundError as error:
            raise MissingExtraError("the data pipeline", "spark") from error
