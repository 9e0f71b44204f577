"""A session of our own: the right interpreter, a Java that is new enough, clear errors."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from matador.errors import ConfigurationError
from matador.spark import spark_session
from matador.spark.runtime.executors import run_tasks
from matador.spark.runtime.java import find_java_home
from matador.testing import wait_for


def interpreter(number: int) -> bytes:
    return f"{number} {sys.executable}".encode()


def test_workers_run_this_interpreter_and_answers_come_in_order(spark: SparkSession) -> None:
    answers = run_tasks(spark, interpreter, 3)

    assert answers == [f"{number} {sys.executable}".encode() for number in range(3)]
    assert run_tasks(spark, interpreter, 0) == []


def test_there_is_one_session_a_process(spark: SparkSession) -> None:
    again = spark_session(config={"spark.sql.shuffle.partitions": "3"})

    assert again is spark
    assert again.conf.get("spark.sql.session.timeZone") == "UTC"
    assert again.conf.get("spark.sql.shuffle.partitions") == "3"


def java(folder: Path, version: str) -> Path:
    """A Java by its looks."""
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "java").write_text("#!/bin/sh\nprintf '%s\\n' \"$@\"\n")
    (folder / "bin" / "java").chmod(0o755)
    (folder / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\n')
    return folder


VECTOR = "--add-modules=jdk.incubator.vector"
OPENS = "--add-opens=java.base/sun.security.action=ALL-UNNAMED"
NATIVE = "--enable-native-access=ALL-UNNAMED"


@pytest.mark.parametrize(
    ("version", "arguments"),
    [
        ("17.0.15", ["-a b", OPENS, "c"]),
        ("21.0.1", ["-a b", OPENS, "c"]),
        ("24", [NATIVE, "-a b", OPENS, "c"]),
        ("25.0.1", [NATIVE, "-a b", "c"]),
    ],
)
def test_java_home_comes_first_and_is_asked_only_for_what_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, arguments: list[str]
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(java(tmp_path / "new", version)))
    found = find_java_home()

    said = subprocess.run(
        [found / "bin" / "java", "-a b", VECTOR, OPENS, "c"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout.splitlines() == arguments


def test_no_java_is_one_line_with_the_command_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(java(tmp_path / "old", "1.8.0_402")))
    monkeypatch.setenv("PATH", str(tmp_path / "old" / "bin"))
    monkeypatch.setattr("matador.spark.runtime.java._PLACES", [tmp_path / "nowhere"])

    with pytest.raises(ConfigurationError, match="apt-get install openjdk-17-jre-headless"):
        find_java_home()


def test_without_the_extra_there_is_one_line_with_the_command() -> None:
    code = (
        "import sys\n"
        "sys.modules['pyspark'] = None\n"
        "import matador.spark\n"
        "try:\n"
        "    matador.spark.Lake\n"
        "except matador.errors.MissingExtraError as error:\n"
        "    print(error)\n"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert said.stdout == (
        "the data pipeline needs an extra: pip install 'matador-events[spark]'\n"
    )


def test_importing_the_package_imports_nothing_of_spark() -> None:
    code = "import sys, matador.spark; print('pyspark' in sys.modules, 'pyarrow' in sys.modules)"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert said.stdout == "False False\n"


START = """
import os, signal, sys, threading
from pyspark import SparkContext
from matador.spark import spark_session

if sys.argv[1] == "late":
    initialize = SparkContext._initialize_context
    def interrupted(self, conf):
        SparkContext._initialize_context = initialize
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
        return initialize(self, conf)
    SparkContext._initialize_context = interrupted
try:
    spark_session("local[1]")
except KeyboardInterrupt:
    print("interrupted")
if sys.argv[1] == "late":
    spark = spark_session("local[1]")
    print(spark.range(3).count())
    spark.stop()
"""


def processes(mark: str) -> list[str]:
    """The command lines of all processes with a mark in their environment."""
    found: list[str] = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark.encode() in (folder / "environ").read_bytes():
                found.append((folder / "cmdline").read_bytes().replace(b"\0", b" ").decode())
    return found


@pytest.mark.parametrize("sign", ["spark-class", "org.apache.spark.deploy.SparkSubmit", "late"])
def test_ctrl_c_while_spark_starts_leaves_no_java_and_prints_nothing(sign: str) -> None:
    mark = f"MATADOR_TEST={uuid.uuid4()}"
    name, _, value = mark.partition("=")
    with subprocess.Popen(
        [sys.executable, "-c", START, "late" if sign == "late" else "early"],
        env={**os.environ, name: value},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as program:
        if sign != "late":
            asyncio.run(wait_for(lambda: any(sign in one for one in processes(mark)), timeout=60))
            program.send_signal(signal.SIGINT)
        out, err = program.communicate(timeout=100)
    assert (out, err) == ("interrupted\n3\n" if sign == "late" else "interrupted\n", "")
    assert program.returncode == 0
    asyncio.run(wait_for(lambda: not processes(mark)))
