"""A Spark Connect server as a process of its own on loopback, for tests.

It has its own folder, and none of the test's import paths: what its tasks import is installed, or
was sent. It is gone when the context ends, or the process of the test.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Generator
from pathlib import Path

import pyspark

from matador.spark.runtime.java import class_archive_options, find_java_home

PATIENCE = 180.0
_LOOPBACK = "127.0.0.1"
# A process that ends when our end of its stdin is closed: killed tests leave nothing behind.
_LEASH = '"$@" & cat >/dev/null; kill -9 $!; wait'
_STARTED = re.compile(r"Spark Connect server started at: \S*?:(\d+)")


@contextlib.contextmanager
def connect_server(folder: Path) -> Generator[str]:
    """Start a server with two cores; gives its address, ``sc://…``.

    Example:
        >>> with connect_server(tmp_path) as url:
        ...     spark = spark_session(remote=url)
    """
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "server.log"
    settings = {
        "spark.connect.grpc.binding.address": _LOOPBACK,
        "spark.connect.grpc.binding.port": "0",
        "spark.driver.host": _LOOPBACK,
        "spark.driver.bindAddress": _LOOPBACK,
        "spark.driver.memory": "1g",
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.enabled": "false",
        # Where much else runs, a Python process takes long to start.
        "spark.python.authenticate.socketTimeout": "300s",
        "spark.driver.extraJavaOptions": " ".join(
            ("-Xss4m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", *class_archive_options())
        ),
    }
    package = Path(pyspark.__file__).parent
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    with log.open("wb") as output:
        process = subprocess.Popen(
            [
                *("bash", "-c", _LEASH, "bash"),
                str(package / "bin" / "spark-submit"),
                *("--class", "org.apache.spark.sql.connect.service.SparkConnectServer"),
                *("--master", "local[2]"),
                *(
                    part
                    for name, value in settings.items()
                    for part in ("--conf", f"{name}={value}")
                ),
                "spark-internal",
            ],
            cwd=folder,
            env={
                **environment,
                "JAVA_HOME": str(find_java_home()),
                "PYSPARK_PYTHON": sys.executable,
                "SPARK_LOCAL_IP": _LOOPBACK,
                "SPARK_LOCAL_DIRS": str(folder / "local"),
            },
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        yield f"sc://{_LOOPBACK}:{_port(process, log)}"
    finally:
        assert process.stdin is not None
        process.stdin.close()
        process.wait(PATIENCE)


def _port(process: subprocess.Popen[bytes], log: Path) -> str:
    until = time.monotonic() + PATIENCE
    while True:
        said = log.read_text(errors="replace")
        found = _STARTED.search(said)
        if found is not None:
            return found[1]
        assert process.poll() is None, said
        assert time.monotonic() < until, said
        time.sleep(0.05)
