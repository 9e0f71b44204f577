"""A Spark session that starts quickly, keeps quiet and runs this interpreter in its workers.

Everything in this package works with a session of the user's own as well: what a query needs is
set with the query, not here.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pyspark import SparkContext
from pyspark.sql import SparkSession

from matador.spark.runtime.java import class_archive_options, find_java_home

_LOOPBACK = "127.0.0.1"


def spark_session(
    master: str | None = None,
    *,
    app_name: str = "matador",
    config: Mapping[str, str] | None = None,
    java_options: Sequence[str] | None = None,
) -> SparkSession:
    """The Spark session of this process: the one there is, or a new one.

    ``master`` is ``local[*]`` unless given. ``config`` goes over our settings. A session that runs
    already is returned as it is, with ``config`` applied as far as Spark can still do that.
    ``java_options`` are for the Java of a new session; else it uses the archive of classes, if
    ``matador spark prepare`` has made one.

    Raises:
        ConfigurationError: there is no Java 17 or newer; the message says how to get one.

    Example:
        >>> spark = spark_session("local[2]", config={"spark.driver.memory": "2g"})
    """
    running = _running_session()
    if running is not None:
        for name, value in (config or {}).items():
            running.conf.set(name, value)
        return running
    chosen = master or "local[*]"
    options = class_archive_options() if java_options is None else java_options
    settings = {**_settings(chosen, options), **(config or {})}
    builder = SparkSession.builder.master(chosen).appName(app_name)
    for name, value in settings.items():
        builder = builder.config(name, value)
    with _environment(_surroundings(chosen)):
        return builder.getOrCreate()


def stop(spark: SparkSession) -> None:
    """End a session and its Java process's work; a later ``spark_session()`` makes a new one."""
    spark.stop()


@contextlib.contextmanager
def session_for(
    spark: SparkSession | None, master: str | None, *, app_name: str
) -> Generator[SparkSession]:
    """A session to work with: the one given, else the one that runs, else a new one.

    Only a new one is stopped at the end: any other has somebody who goes on using it.
    """
    found = spark or _running_session()
    if found is not None:
        yield found
        return
    made = spark_session(master, app_name=app_name)
    try:
        yield made
    finally:
        made.stop()


def _running_session() -> SparkSession | None:
    """The session of this process, if there is one; a bare ``SparkContext`` gets one."""
    active = SparkSession.getActiveSession()
    if active is not None:
        return active
    contexts: Any = SparkContext  # what is active is so in one thread only
    return None if contexts._active_spark_context is None else SparkSession.builder.getOrCreate()


def _settings(master: str, java_options: Sequence[str]) -> dict[str, str]:
    log = Path(__file__).with_name("log4j2.properties").as_uri()
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(max(2, os.cpu_count() or 2)),
        # A stack this deep: stopping a streaming query recurses through its plan.
        "spark.driver.extraJavaOptions": " ".join(
            (
                "-Xss4m -XX:+UseSerialGC -Duser.timezone=UTC",
                f"-Dlog4j2.configurationFile={log}",
                *map(shlex.quote, java_options),
            )
        ),
        "spark.driver.memory": "1g",
        "spark.sql.execution.pyspark.udf.faulthandler.enabled": "true",
    }
    if is_local(master):
        settings["spark.driver.host"] = _LOOPBACK
        settings["spark.driver.bindAddress"] = _LOOPBACK
    return settings


def _surroundings(master: str) -> dict[str, str]:
    wanted = {"JAVA_HOME": str(find_java_home())}
    if "PYSPARK_PYTHON" not in os.environ:
        wanted["PYSPARK_PYTHON"] = sys.executable  # else workers run the first python3 there is
    if is_local(master) and "SPARK_LOCAL_IP" not in os.environ:
        wanted["SPARK_LOCAL_IP"] = _LOOPBACK
    if is_local(master):
        wanted["PYTHONPATH"] = os.pathsep.join(import_paths())
    return wanted


def import_paths() -> list[str]:
    """Where this process imports from, besides the interpreter's own: its workers do so too."""
    own = (sys.prefix, sys.base_prefix, sys.exec_prefix)
    given = [*sys.path, *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    return list(dict.fromkeys(path for path in given if path and not path.startswith(own)))


def is_local(master: str) -> bool:
    """Do the executors of a master run on this machine, and see its files?"""
    return master.startswith("local")


@contextlib.contextmanager
def _environment(wanted: Mapping[str, str]) -> Generator[None]:
    """Set variables while Java starts; the caller's own environment is as it was afterwards."""
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
