"""A standalone Spark cluster of separate processes on loopback, for tests.

A master and some workers, each with its own folder and free ports. All of them, and the executors
they start, are gone when the context ends, or the process of the test.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path

import pyspark

from matador.spark.runtime.java import class_archive_options, find_java_home

LOOPBACK = "127.0.0.1"
PATIENCE = 180.0
# A process that ends when our end of its stdin is closed: killed tests leave nothing behind.
_LEASH = '"$@" & cat >/dev/null; kill -9 $!; wait'


def _java_options() -> str:
    """Small and quick to start: compiled once over, one collector thread, classes as archived."""
    options = ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xss4m"]
    return " ".join([*options, *class_archive_options()])


@dataclass(frozen=True)
class Executor:
    """A Java process that runs tasks: its number, as the master counts, and its process id."""

    number: int
    pid: int

    def kill(self) -> None:
        """End it the way a lost machine does: without a word."""
        os.kill(self.pid, signal.SIGKILL)


@dataclass(frozen=True)
class Cluster:
    """A running cluster."""

    url: str
    folder: Path

    def executors(self) -> list[Executor]:
        """The executors that run now, of the workers of this cluster and of no other."""
        found: list[Executor] = []
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # ended while we looked
                command = (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
                here = (process / "cwd").readlink().is_relative_to(self.folder)
                if here and "org.apache.spark.executor.CoarseGrainedExecutorBackend" in command:
                    number = int(command[command.index("--executor-id") + 1])
                    found.append(Executor(number, int(process.name)))
        return sorted(found, key=lambda one: one.number)

    def config(self) -> dict[str, str]:
        """Settings for a session that share this cluster evenly and start quickly."""
        return {
            "spark.cores.max": "2",
            "spark.executor.cores": "1",
            "spark.executor.memory": "512m",
            "spark.executor.extraJavaOptions": _java_options(),
            "spark.driver.host": LOOPBACK,
            "spark.driver.bindAddress": LOOPBACK,
        }


@contextlib.contextmanager
def standalone_cluster(folder: Path, *, workers: int = 2) -> Generator[Cluster]:
    """Start a cluster; ``workers`` processes of one core each.

    Example:
        >>> with standalone_cluster(tmp_path) as cluster:
        ...     spark = spark_session(cluster.url, config=cluster.config())
    """
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        master = _Daemon(folder / "master", "master.Master", "--port", "0")
        stack.callback(master.stop)
        url = master.wait_for(r"(spark://127\.0\.0\.1:\d+)")
        running: list[_Daemon] = []
        for number in range(workers):
            home = folder / f"worker-{number}"
            arguments = ("--cores", "1", "--memory", "768m", "--work-dir", str(home), url)
            worker = _Daemon(home, "worker.Worker", "--port", "0", *arguments)
            stack.callback(worker.stop)
            running.append(worker)
        for worker in running:
            worker.wait_for(r"Successfully registered with master")
        cluster = Cluster(url, folder)
        stack.callback(lambda: _end(cluster.executors))
        yield cluster


class _Daemon:
    """A master or a worker as a process of its own."""

    def __init__(self, home: Path, name: str, *arguments: str) -> None:
        home.mkdir(parents=True)
        self._log = home / "daemon.log"
        package = Path(pyspark.__file__).parent
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [
                    *("bash", "-c", _LEASH, "bash"),
                    str(package / "bin" / "spark-class"),
                    f"org.apache.spark.deploy.{name}",
                    *("--host", LOOPBACK, "--webui-port", "0"),
                    *arguments,
                ],
                cwd=home,
                env={
                    **os.environ,
                    "JAVA_HOME": str(find_java_home()),
                    "SPARK_HOME": str(package),
                    "SPARK_LOCAL_IP": LOOPBACK,
                    "SPARK_LOCAL_DIRS": str(home),
                    "SPARK_DAEMON_JAVA_OPTS": _java_options(),
                    "SPARK_DAEMON_MEMORY": "192m",
                    "PYSPARK_PYTHON": sys.executable,
                },
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def wait_for(self, pattern: str) -> str:
        """What the log says, once it does; the first group of the pattern if it has one."""
        until = time.monotonic() + PATIENCE
        while True:
            text = self._log.read_text(errors="replace")
            found = re.search(pattern, text)
            if found is not None:
                return found.group(found.re.groups)
            if self._process.poll() is not None or time.monotonic() > until:
                raise AssertionError(f"no {pattern!r} in\n{text}")
            time.sleep(0.05)

    def stop(self) -> None:
        """End it, at once: there is nothing in it to keep."""
        self._process.communicate(timeout=PATIENCE)


def _end(executors: Callable[[], list[Executor]]) -> None:
    """Have no executor outlive its cluster; a worker starts a new one for each that dies."""
    until = time.monotonic() + PATIENCE
    while (left := executors()) and time.monotonic() < until:
        for one in left:
            with contextlib.suppress(ProcessLookupError):
                one.kill()
        time.sleep(0.1)
