"""Creates an archive of Spark's Java classes, so that sessions start much sooner.

A rehearsal runs what is usually done with Spark, in its own process and folder, and Java keeps the
classes it has loaded, about 200 MB. The archive fits one Java and one installation of PySpark; Java
ignores it elsewhere. It contains code, so it is used only if no other user can have written it.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark import SparkContext

from matador.errors import DontRetry, SparkPreparationError
from matador.events.app import Matador
from matador.model.envelope import Envelope
from matador.model.event import event
from matador.model.schema import Schema
from matador.model.subscriber import subscriber
from matador.observe.journal.hook import Journal
from matador.spark.lake import Lake
from matador.spark.runtime.java import archive_path, archive_problem
from matador.spark.runtime.session import spark_session
from matador.storage.files import private_folder

_PATIENCE = 600.0
_REHEARSE = "from matador.spark.class_archive import rehearse; rehearse()"


def prepare(*, again: bool = False) -> Path:
    """Make Spark start in half the time on this machine. Takes a minute, once.

    Returns the path of the class archive, about 200 MB, below ``MATADOR_CACHE`` or in the user's
    cache folder. ``again`` replaces an existing one; an archive that another user may have written
    is always replaced.

    Raises:
        ConfigurationError: there is no Java 17 or newer.
        SparkPreparationError: it failed; the message says why.
    """
    path = archive_path()
    try:
        private_folder(path.parent)
        problem = archive_problem(path.parent)
        if problem is not None:
            raise SparkPreparationError(f"{problem}: set MATADOR_CACHE to a folder of your own")
        if path.is_file() and not again and archive_problem(path) is None:
            return path
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=".new-") as folder:
            made = Path(folder) / path.name
            _rehearse(made, Path(folder))
            made.chmod(0o600)
            made.replace(path)
    except OSError as error:
        raise SparkPreparationError(f"{path.parent}: {error.strerror or error}") from error
    return path


def _rehearse(path: Path, folder: Path) -> None:
    try:
        done = subprocess.run(
            [sys.executable, "-c", _REHEARSE, str(path)],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=_PATIENCE,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise SparkPreparationError(f"the rehearsal did not end within {_PATIENCE:g} s") from error
    if done.returncode != 0 or not path.is_file():
        said = (done.stderr or done.stdout).strip().splitlines()
        raise SparkPreparationError(said[-1] if said else "Java wrote no archive")


_ORDERS = 20


@event("order.placed", description="A customer placed an order.")
@dataclass(frozen=True)
class OrderPlaced:
    """A typical event."""

    order_id: str
    amount: int


@subscriber(description="Ship it.", idempotent="yes")
async def ship(envelope: Envelope[OrderPlaced]) -> None:
    """Fails for some orders, so that there are dead letters."""
    if envelope.data.amount == 0:
        raise DontRetry(f"order {envelope.data.order_id} has no amount")


async def _work(app: Matador, journal: Journal) -> None:
    async with app:
        await app.send_many(OrderPlaced(str(number), number % 5) for number in range(_ORDERS))
    await journal.flush()


def rehearse() -> None:
    """Ingest, query, report and replay, then end Java properly: only then it writes the archive."""
    (archive,) = sys.argv[1:]
    spark = spark_session("local[2]", java_options=[f"-XX:ArchiveClassesAtExit={archive}"])
    journal = Journal("journal")
    schema = Schema({OrderPlaced: [ship]})
    asyncio.run(_work(Matador("memory://", schema=schema, hooks=[journal]), journal))
    lake = Lake("lake", schema=schema, spark=spark)
    lake.ingest("journal")
    lake.events(OrderPlaced).where("data.amount > 1").groupBy("subscriber").count().collect()
    lake.sql("SELECT event_key, count(*) FROM events GROUP BY event_key ORDER BY 1").collect()
    lake.report().html("report.html")
    lake.replay(Matador("memory://", schema=schema), where="subscriber = 'ship'")
    spark.readStream.format("text").load(str(Path("journal").absolute())).writeStream.format(
        "noop"
    ).trigger(availableNow=True).start().awaitTermination()
    context: Any = SparkContext
    gateway = context._gateway
    spark.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait()
