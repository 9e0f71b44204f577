"""A Spark session that starts quickly, prints nothing and runs this interpreter in its workers.

Everything in this package works with the user's own session as well, and with one of Spark Connect:
queries bring their settings with them.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession, is_remote

from matador.errors import ConfigurationError
from matador.spark.runtime.compat import java_gateway, spark_context
from matador.spark.runtime.connect import connect, is_connect
from matador.spark.runtime.java import class_archive_options, find_java_home

log = logging.getLogger("matador.spark")

_LOOPBACK = "127.0.0.1"
_MIXED = (
    "this process is {}, so it cannot {} as well: PySpark has one kind of session per process; use "
    "another process"
)
_BRIEF_JAVA = "-XX:TieredStopAtLevel=1"  # no second compiler, which pays off after a while only
_BRIEF = {"spark.sql.adaptive.enabled": "false"}  # plans once; adaptive planning would not help
INSTALLED = (sys.prefix, sys.base_prefix, sys.exec_prefix)
"""Where the modules of the interpreter and its packages are."""


def spark_session(
    master: str | None = None,
    *,
    remote: str | None = None,
    app_name: str = "matador",
    config: Mapping[str, str] | None = None,
    java_options: Sequence[str] | None = None,
    brief: bool = False,
) -> SparkSession:
    """The Spark session of this process: the running one, or a new one.

    ``master`` is ``local[*]`` by default. ``remote`` is the address of a Spark Connect server
    instead, ``sc://host:15002``; Java is not needed then. ``config`` overrides our settings. A
    session that is already running is returned, with ``config`` applied as far as Spark allows;
    what it refuses is logged. ``java_options`` are for the Java of a new session; by default it
    uses the class archive, if ``matador spark prepare`` has created one. ``brief``: a new session
    is for a short job on little data, so Java and Spark skip optimizations.

    Raises:
        ConfigurationError: there is no Java 17 or newer; the message says how to install one. Or an
            option is invalid, or this process has a session of the other kind.
        MissingExtraError: ``remote`` needs the extra ``spark-connect``.
        ClusterError: the server does not answer.
        KeyboardInterrupt: Ctrl-C was pressed while Spark started; its Java is gone.

    Example:
        >>> spark = spark_session("local[2]", config={"spark.driver.memory": "2g"})
        >>> spark = spark_session(remote="sc://spark.example.com:15002")
    """
    if master is not None and remote is not None:
        raise ConfigurationError("spark_session: give master or remote, not both")
    running = running_session()
    if running is not None:
        if remote is not None and not is_connect(running):
            raise ConfigurationError(_MIXED.format("running its own Spark", "connect to a server"))
        _reconfigure(running, config or {})
        return running
    if master is None and remote is None:
        remote = os.environ.get("SPARK_REMOTE")  # as PySpark does
    if remote is not None:
        return connect(remote, app_name, config)
    if is_remote():
        raise ConfigurationError(
            _MIXED.format("connected to a Spark server", "start a Spark of its own")
        )
    chosen = master or "local[*]"
    options = class_archive_options() if java_options is None else java_options
    if brief and is_local(chosen):
        options = [*options, _BRIEF_JAVA]
    settings: Any = {**_settings(chosen, options), **(_BRIEF if brief else {}), **(config or {})}
    builder = SparkSession.builder.master(chosen).appName(app_name).config(map=settings)
    with _environment(_surroundings(chosen)), _interruptible():
        return builder.getOrCreate()


def _reconfigure(running: SparkSession, config: Mapping[str, str]) -> None:
    """Change the settings of a running session that it lets us change."""
    for name, value in config.items():
        try:
            running.conf.set(name, value)
        except PySparkException:
            log.warning("the running Spark session keeps its %s: it cannot be changed now", name)


@contextlib.contextmanager
def session_for(
    spark: SparkSession | None,
    master: str | None,
    *,
    remote: str | None = None,
    app_name: str,
    config: Mapping[str, str] | None = None,
) -> Generator[SparkSession]:
    """A session to work with: the given one, else the running one, else a new one.

    Only a new one is stopped at the end: others are still in use.
    """
    if spark is not None:
        yield spark
        return
    is_new = running_session() is None
    made = spark_session(master, remote=remote, app_name=app_name, config=config)
    try:
        yield made
    finally:
        if is_new:
            made.stop()


@contextlib.contextmanager
def _interruptible() -> Generator[None]:
    """Make Ctrl-C end Java while it starts, and raise ``KeyboardInterrupt`` once it has ended.

    Raised in the middle of PySpark instead, it would print the errors of the broken connection,
    and leave a Java process behind that continues to start.
    """
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return
    started: list[subprocess.Popen[bytes]] = []
    interrupted = False

    def interrupt(number: int, frame: object) -> None:
        nonlocal interrupted
        interrupted = True
        logging.getLogger("py4j").setLevel(logging.CRITICAL + 1)
        for process in started:
            process.kill()

    def start(*args: Any, **options: Any) -> subprocess.Popen[bytes]:
        process = subprocess.Popen[bytes](*args, **options)
        started.append(process)
        if interrupted:
            process.kill()
        return process

    gateway: Any = java_gateway()
    level = logging.getLogger("py4j").level
    popen, gateway.Popen = gateway.Popen, start
    signal.signal(signal.SIGINT, interrupt)
    try:
        yield
        if interrupted:
            raise KeyboardInterrupt
    except BaseException as error:
        if not interrupted and isinstance(error, Exception):
            raise
        _forget_java()
        for process in started:  # by another signal, too
            process.kill()
            process.wait()
        if interrupted:
            raise KeyboardInterrupt from None
        raise
    finally:
        gateway.Popen = popen
        logging.getLogger("py4j").setLevel(level)
        if signal.getsignal(signal.SIGINT) is interrupt:  # a session that started has its own
            signal.signal(signal.SIGINT, before)


def _forget_java() -> None:
    """Make PySpark start a new Java the next time: this one is dead."""
    context: Any = spark_context()
    gateway, context._gateway, context._jvm = context._gateway, None, None
    context._active_spark_context = None
    if gateway is not None:
        with contextlib.suppress(Exception):
            gateway.shutdown()


def java_exit_code(error: Exception, seconds: float) -> int | None:
    """The exit code of the Java that this process has started, if an error may mean its end.

    Waits for its end for so many seconds; None if it lives.
    """
    context: Any = spark_context()
    java: subprocess.Popen[bytes] | None = getattr(context._gateway, "proc", None)
    if java is None or isinstance(error, PySparkException):  # Java has raised it, so it lives
        return None
    try:
        return java.wait(seconds)
    except subprocess.TimeoutExpired:
        return None


def running_session() -> SparkSession | None:
    """The session of this process, if there is one; a bare ``SparkContext`` is given one."""
    active = SparkSession.getActiveSession()
    if active is not None:
        return active
    if is_remote():  # a session is only active in one thread
        try:
            return SparkSession.active()
        except PySparkException:
            return None
    contexts: Any = spark_context()
    return None if contexts._active_spark_context is None else SparkSession.builder.getOrCreate()


def _settings(master: str, java_options: Sequence[str]) -> dict[str, str]:
    log = Path(__file__).with_name("log4j2.properties").as_uri()
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(max(2, os.cpu_count() or 2)),
        # Stopping a streaming query recurses through its plan, which needs a deep stack.
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
    # By default workers would run the first python3 on the path.
    wanted = {"PYSPARK_PYTHON": sys.executable}
    if is_local(master):
        wanted["SPARK_LOCAL_IP"] = _LOOPBACK
    wanted = {name: os.environ.get(name, value) for name, value in wanted.items()}
    if is_local(master):
        wanted["PYTHONPATH"] = os.pathsep.join(import_paths())
    return {"JAVA_HOME": str(find_java_home()), **wanted}


def import_paths() -> list[str]:
    """The import paths of this process, without the interpreter's own; its workers need them."""
    given = [*sys.path, *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    return list(dict.fromkeys(path for path in given if path and not path.startswith(INSTALLED)))


def is_local(master: str) -> bool:
    """Whether the executors of a master run on this machine and see its files."""
    return master.startswith("local")


def runs_here(spark: SparkSession) -> bool:
    """Whether the executors of a session run on this machine, with our import paths."""
    return not is_connect(spark) and is_local(spark.sparkContext.master or "")


@contextlib.contextmanager
def _environment(wanted: Mapping[str, str]) -> Generator[None]:
    """Set variables while Java starts, and restore the environment afterwards."""
    before = dict(os.environ)
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name in wanted:
            os.environ.pop(name, None)
        os.environ.update({name: before[name] for name in wanted if name in before})
