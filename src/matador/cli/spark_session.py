"""Opens lakes, starts Spark for a command, and shortens what Spark says."""

from __future__ import annotations

import contextlib
import logging
import signal
import sys
import threading
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from matador.cli.interaction import working
from matador.cli.output import UsageError, show_logs

if TYPE_CHECKING:
    from matador.model.schema import Schema
    from matador.spark import Lake

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def show_spark_logs(verbose: bool) -> None:
    """Print warnings; with ``--verbose`` more of what Spark logs."""
    show_logs(logging.INFO if verbose else logging.WARNING)
    logging.getLogger("py4j").setLevel(logging.WARNING)


def open_lake(folder: Path, schema: Schema | None = None, *, create: bool = False) -> Lake:
    """The lake in a folder. Spark is not started yet.

    Raises:
        UsageError: there is no such lake.
    """
    if not create and not (folder / "events").is_dir():
        problem = "has no tables" if folder.is_dir() else "does not exist"
        raise UsageError(
            f"the lake {folder} {problem}: create one with "
            f"`matador lake ingest APP --journal journal/ --lake {folder}`"
        )
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"the lake {folder} is a file; it must be a folder")
    from matador.spark import Lake  # slow to import, and perhaps not installed

    return Lake(folder, schema=schema)


def start_spark(
    lake: Lake, master: str | None = None, settings: Mapping[str, str] | None = None
) -> Lake:
    """Start Spark, with a spinner.

    Raises:
        ConfigurationError: Java is missing; the message says how to install it.
    """
    with working("starting Spark…"):
        spark = lake.start(master, settings)
    from matador.spark.runtime.messages import silence

    silence(spark)
    return lake


@contextlib.contextmanager
def stopped_by_signals() -> Generator[threading.Event]:
    """An event that SIGINT and SIGTERM set, so that running work can finish cleanly.

    Enter it after Spark was started, which installs a handler of its own.
    """
    stop = threading.Event()

    def stopped(number: int, frame: object) -> None:
        stop.set()

    before = {number: signal.signal(number, stopped) for number in _SIGNALS}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def spark_message(error: BaseException) -> str | None:
    """What an error of Spark says, in one line; None if it is not Spark's."""
    if "pyspark" not in sys.modules:
        return None
    from matador.spark.runtime.messages import spark_error

    return spark_error(error)
