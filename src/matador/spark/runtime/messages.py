"""Shortens the output and errors of Spark: errors in one line, no pages of logs."""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.errors import ParseException, PySparkException
from pyspark.logger import PySparkLogger
from pyspark.sql import DataFrame, SparkSession

from matador.spark.runtime.compat import Py4JError

_CONDITION = re.compile(r"^\[[A-Z0-9_.]+\]\s*")
_BRIDGE = re.compile(r"^An error occurred while calling \S+\s*:\s*(?:[\w$]+\.)+[\w$]+:\s*")
_STATE = re.compile(r"\s*SQLSTATE:\s*\w+")
_LONGEST = 400
_QUERIES = "SQLQueryContextLogger"  # the logger of PySpark for invalid queries
_SKETCHES = "org.apache.datasketches.memory.internal.ResourceImpl"


@contextlib.contextmanager
def without_logged_queries() -> Generator[None]:
    """Keep PySpark from logging invalid queries, which it does besides raising the error."""
    logger = PySparkLogger.getLogger(_QUERIES)
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before


def silence(spark: SparkSession) -> None:
    """Suppress useless output of Spark.

    Spark logs an invalid query as pages of JSON, although it raises an error too; and its sketch
    library, when loaded, prints warnings about features that are not used here.
    """
    PySparkLogger.getLogger(_QUERIES).setLevel(logging.CRITICAL + 1)
    untyped: Any = spark
    if not hasattr(untyped, "_jvm"):  # Spark Connect: what the server prints is not ours
        return
    java = untyped._jvm.java
    stderr = java.lang.System.err
    java.lang.System.setErr(java.io.PrintStream(java.io.OutputStream.nullOutputStream()))
    try:
        with contextlib.suppress(Py4JError):  # another Spark may have another library
            java.lang.Class.forName(_SKETCHES)
    finally:
        java.lang.System.setErr(stderr)


@dataclass(frozen=True, slots=True)
class FirstRows:
    """The first rows of a DataFrame as plain data, and whether there are more."""

    columns: list[str]
    rows: list[dict[str, Any]]
    more: bool


def first_rows(frame: DataFrame, limit: int) -> FirstRows:
    """The first rows of a DataFrame. Columns of the same name are told apart: ``id``, ``id_2``."""
    columns = _distinct(frame.columns)
    if columns != frame.columns:
        frame = frame.toDF(*columns)
    found = [row.asDict(recursive=True) for row in frame.limit(limit + 1).collect()]
    return FirstRows(columns, found[:limit], len(found) > limit)


def _distinct(names: Sequence[str]) -> list[str]:
    found: list[str] = []
    for name in names:
        tried, number = name, 1
        while tried in found or (number > 1 and tried in names):
            number += 1
            tried = f"{name}_{number}"
        found.append(tried)
    return found


def spark_error(error: BaseException) -> str | None:
    """The text of an error raised by Spark, in one line; None for any other error."""
    if not isinstance(error, PySparkException | Py4JError):
        return None
    text = str(error)
    if not isinstance(error, ParseException):
        return one_line(text)
    place = re.search(r"\(line (\d+), pos (\d+)\)", text)
    head = re.split(r"\(line \d+, pos \d+\)|\n\n", text)[0]
    return one_line(head) + ("" if place is None else _position(place))


def reason_of(error: BaseException) -> str:
    """The reason of a failure in one line, for any exception."""
    java: Any = getattr(error, "java_exception", None)
    return one_line(str(error if java is None else java)) or type(error).__name__


def one_line(text: str) -> str:
    """The beginning of a text of Spark, without its codes, query plans and stack traces."""
    if "Traceback (most recent call last)" in text:  # of a Python worker: the last line has it
        raised = re.findall(r"^(?:\w+\.)*\w+(?:Error|Exception|Interrupt): .*", text, re.MULTILINE)
        text = raised[-1] if raised else text
    head = re.split(r"\n\s*(?:at |'|== SQL|JVM stacktrace|Driver stacktrace|\+-)", text.strip())[0]
    head = re.sub(r"(?:;|\.)?\s*line (\d+) pos (\d+)", _position, head)
    for noise in (_BRIDGE, _CONDITION, _STATE):
        head = noise.sub("", head)
    words = " ".join(head.split()).rstrip(" ;.:")
    return words if len(words) <= _LONGEST else words[:_LONGEST] + "…"


def _position(found: re.Match[str]) -> str:
    line, column = int(found[1]), int(found[2]) + 1
    return f" (column {column})" if line == 1 else f" (line {line}, column {column})"
