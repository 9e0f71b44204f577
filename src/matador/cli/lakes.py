"""What the commands on lakes share: opening one, starting Spark, and saying what Spark says."""

from __future__ import annotations

import contextlib
import logging
import signal
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import nullcontext
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ParamSpec, TypeVar

import typer

from matador.cli.journal import a_path
from matador.cli.output import CommandError, UsageError, err, show_logs
from matador.errors import MissingExtraError

if TYPE_CHECKING:
    from matador.model.schema import Schema
    from matador.spark import Lake

P = ParamSpec("P")
T = TypeVar("T")

LakeFolder = Annotated[
    Path, typer.Option("--lake", metavar="FOLDER", parser=a_path, help="Where the tables are.")
]

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def quiet(verbose: bool) -> None:
    """Log what is worth it; the rest of what Spark says only with ``--verbose``."""
    show_logs(logging.INFO if verbose else logging.WARNING)
    logging.getLogger("py4j").setLevel(logging.WARNING)


def open_lake(folder: Path, schema: Schema | None = None, *, make: bool = False) -> Lake:
    """The lake in a folder. Spark is not started yet.

    Raises:
        UsageError: there is no such lake.
    """
    if not make and not (folder / "events").is_dir():
        what = "holds no tables" if folder.is_dir() else "is not there"
        raise UsageError(
            f"the lake {folder} {what}: make one with "
            f"`matador lake ingest APP --journal journal/ --lake {folder}`"
        )
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"the lake {folder} is a file; it must be a folder")
    from matador.spark import Lake  # Spark takes long to import, and may not be there

    return Lake(folder, schema=schema)


def start_spark(lake: Lake) -> Lake:
    """Start Spark now, and show that this takes a while.

    Raises:
        ConfigurationError: there is no Java; the message says how to get one.
    """
    with working("starting Spark…"):
        spark = lake.spark
    from matador.spark.runtime.messages import silence

    silence(spark)
    return lake


def working(text: str) -> contextlib.AbstractContextManager[object]:
    """Something that moves on a terminal, for as long as something is done."""
    console = err()
    return console.status(text) if console.is_terminal else nullcontext()


@contextlib.contextmanager
def stopped_by_signals() -> Generator[threading.Event]:
    """An event that SIGINT and SIGTERM set, so that what runs can end in good order.

    To be entered after Spark is started, which has a handler of its own.
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


def on_spark(command: Callable[P, T]) -> Callable[P, T]:
    """A command whose errors of Spark become one line."""

    @wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return command(*args, **kwargs)
        except MissingExtraError:
            raise
        except Exception as error:
            said = spark_error(error)
            if said is None:
                raise
            raise CommandError(said) from error

    return run


def spark_error(error: BaseException) -> str | None:
    """What an error of Spark says, in one line; None if it is none of Spark's."""
    if "pyspark" not in sys.modules:
        return None
    from matador.spark.runtime import messages

    return messages.spark_error(error)
