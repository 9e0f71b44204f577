"""A program with a session of Spark Connect: ``connect_program.py URL APPLICATION FOLDER``.

Does with it all that a lake, the data source and a worker can do, and prints what came of it as one
line of JSON. PySpark has one kind of session per process, so this is not the process of the tests.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from tests.spark.read_only_queries import DOING_MORE, PREDICATES_DOING_MORE, READING

from matador.errors import MatadorError
from matador.loading import load_application
from matador.spark import (
    Batch,
    Lake,
    dataframe_subscriber,
    register,
    run_dataframe_subscribers,
    run_spark_worker,
    spark_session,
)
from matador.spark.runtime.executors import parallelism
from matador.spark.runtime.messages import silence, spark_error
from matador.spark.tables.read_only_sql import check_predicate

_SLICE = 120.0  # seconds; a worker that is told to stop does not wait for its end


def raised(work: Callable[[], object]) -> str:
    """The error that something raises, by name and text; for what succeeds, nothing."""
    try:
        work()
    except MatadorError as error:
        return f"{type(error).__name__}: {error}"
    except Exception as error:
        return f"Spark: {spark_error(error) or repr(error)}"
    return ""


def the_lake(lake: Lake, reference: str, folder: Path) -> dict[str, Any]:
    """Everything that can be done with a lake, except for replays."""
    module = load_application(reference).module
    first = lake.ingest(folder / "journal")
    second = lake.ingest(folder / "journal")
    typed = lake.events(module.OrderPlaced)
    report = lake.report()
    report.html(folder / "report.html")
    return {
        "ingested": [first.events, first.quarantined, second.segments],
        "typed": typed.where("data.number >= 10 AND data.customer = 'ann'").count(),
        "sum": lake.sql("SELECT sum(data.number) AS n FROM order_placed").collect()[0]["n"],
        "published": lake.publish(),
        "released": lake.release().released,
        "compacted": lake.compact().files_before > 0,
        "vacuumed": lake.vacuum().files,
        "volume": sum(row["sent"] for row in lake.volume().collect()),
        "report": (folder / "report.html").stat().st_size > 1000,
    }


def in_a_store(spark: SparkSession, reference: str, folder: Path, store: str) -> dict[str, Any]:
    """A lake in an object store, of which the server knows nothing; ``store``: URL and options."""
    place, options = json.loads(store)
    application = load_application(reference)
    lake = Lake(place, schema=application.app.schema, spark=spark, storage_options=options)
    first = lake.ingest(folder / "journal")
    second = lake.ingest(folder / "journal")
    typed = lake.events(application.module.OrderPlaced).where("data.number >= 10")
    sent = lake.replay(reference, event="order.placed", where="data.number < 5")
    return {
        "ingested": [first.events, first.quarantined, second.segments],
        "typed": typed.count(),
        "sent": sent.sent,
    }


def sql(spark: SparkSession, lake: Lake, folder: Path) -> dict[str, Any]:
    """What becomes of queries."""
    spark.range(5).createOrReplaceTempView("private")
    spark.range(5).createOrReplaceGlobalTempView("private")
    spark.sql(f"CREATE TABLE private_table USING parquet LOCATION '{folder / 'table'}' AS SELECT 1")
    tables = ("global_temp.private", "private_table", "default.private_table", "date")
    spark.range(5).createOrReplaceTempView("date")
    odd = "SELECT 'it''s ${env:PATH} \\'x\\' \\u00e9\\%' AS a, r'\\d' AS b, \"q\" AS c -- d"
    return {
        "reading": {query: raised(lambda q=query: lake.sql(q).collect()) for query in READING},
        "more": {query: raised(lambda q=query: lake.sql(q)) for query in DOING_MORE},
        "tables": [raised(lambda t=table: lake.sql(f"SELECT * FROM {t}")) for table in tables],
        "predicates": [
            raised(lambda p=one: check_predicate(spark, p)) for one in PREDICATES_DOING_MORE
        ],
        "odd": list(lake.sql(odd).collect()[0]),
        "unrestricted": lake.sql("SELECT * FROM private", unrestricted=True).count(),
        "wrong": raised(lambda: lake.sql("SELECT nothing FROM events")),
    }


def replays(lake: Lake, reference: str) -> dict[str, Any]:
    """Sent by the executors, and by this process."""
    app = load_application(reference).app
    there = lake.replay(reference, where="data_json LIKE '%1%'", subscriber="again")
    wrong = raised(lambda: lake.replay(app, where="nothing > 1", dry_run=True))
    return {
        "there": [there.sent, there.failed, there.total],
        "here": lake.replay(app, event="order.placed", where="data.number < 3").sent,
        "wrong": wrong,
    }


def source(spark: SparkSession, reference: str, folder: Path) -> dict[str, Any]:
    """The data source: read, written, and as a stream."""
    register(spark)
    read = spark.read.format("matador").option("journal", str(folder / "journal")).load()
    rows = spark.range(0, 5, 1, 2).selectExpr("id + 1000 AS number")
    writing = rows.write.format("matador").option("app", reference)
    writing.option("event", "order.placed").mode("append").save()
    stream = spark.readStream.format("matador").option("journal", str(folder / "journal")).load()
    query = (
        stream.select("id")
        .writeStream.option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(folder / "streamed"))
    )
    query.awaitTermination()
    streamed = spark.read.parquet(str(folder / "streamed")).count()
    return {"read": read.count(), "streamed": streamed}


def workers(spark: SparkSession, reference: str) -> dict[str, Any]:
    """A worker until its queue is empty, and one that is stopped long before its slice ends."""
    emptied = run_spark_worker(reference, spark=spark, tasks=2, slice_seconds=5, until_empty=True)
    stop = threading.Event()
    threading.Timer(2.0, stop.set).start()
    began = time.monotonic()
    run_spark_worker(reference, spark=spark, tasks=1, slice_seconds=_SLICE, stop=stop)
    return {"handled": emptied.handled, "lost": emptied.lost, "stopped": time.monotonic() - began}


def refusals(spark: SparkSession, url: str, reference: str, folder: Path) -> dict[str, str]:
    """What Spark Connect cannot do."""
    module = load_application(reference).module

    @dataframe_subscriber(module.OrderPlaced, description="Never runs.")
    def keep(orders: DataFrame, batch: Batch) -> None:
        raise AssertionError

    changed = folder / "changed" / Path(reference.rpartition(":")[0]).name
    changed.parent.mkdir()
    changed.write_text(Path(reference.rpartition(":")[0]).read_text() + "\nMORE = 1\n")

    def dataframes() -> object:
        return run_dataframe_subscribers(
            [keep], journal=folder / "journal", checkpoint=folder / "dataframes", spark=spark
        )

    return {
        "dataframes": raised(dataframes),
        "changed": raised(lambda: run_spark_worker(f"{changed}:app", spark=spark, tasks=1)),
        "mixed": raised(lambda: spark_session("local[1]", remote=url)),
    }


def main(url: str, reference: str, folder: Path, store: str) -> None:
    """Do all of it."""
    began = time.monotonic()
    spark = spark_session(remote=url)
    silence(spark)
    cores = parallelism(spark)
    lake = Lake(folder / "lake", schema=load_application(reference).app.schema, spark=spark)
    steps: dict[str, Callable[[], object]] = {
        "lake": lambda: the_lake(lake, reference, folder),
        "sql": lambda: sql(spark, lake, folder),
        "workers": lambda: workers(spark, reference),
        "replays": lambda: replays(lake, reference),
        "refusals": lambda: refusals(spark, url, reference, folder),
        "source": lambda: source(spark, reference, folder),
        "store": lambda: in_a_store(spark, reference, folder, store) if store else None,
        "expired": lambda: lake.expire(timedelta(0)).events,
    }
    found: dict[str, Any] = {"cores": cores, "again": spark_session(remote=url) is spark}
    for name, step in steps.items():  # one that fails is the failure of its own test
        try:
            found[name] = step()
        except Exception as error:
            found[name] = {"failed": spark_error(error) or repr(error)}
        print(f"{time.monotonic() - began:.1f} s: {name}", file=sys.stderr, flush=True)
    spark.stop()
    found["refusals"]["classic"] = raised(lambda: spark_session("local[1]"))
    setting = {"spark.executor.memory": "2g"}
    found["refusals"]["setting"] = raised(lambda: spark_session(remote=url, config=setting))
    found["seconds"] = time.monotonic() - began
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), sys.argv[4])
