"""Shows the logs of Spark, stops work on signals, and shortens what Spark says."""

from __future__ import annotations

import contextlib
import logging
import signal
import sys
import threading
from collections.abc import Generator

from matador.cli.output import show_logs

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def show_spark_logs(verbose: bool) -> None:
    """Print warnings; with ``--verbose`` more of what Spark logs."""
    show_logs(logging.INFO if verbose else logging.WARNING)
    logging.getLogger("py4j").setLevel(logging.WARNING)


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
