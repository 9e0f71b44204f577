"""What Spark says, made short: errors in one line, the rows of a frame, no pages of logs."""

from __future__ import annotations

import contextlib
import logging
import re
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import ParseException, PySparkException
from pyspark.logger import PySparkLogger
from pyspark.sql import DataFrame, SparkSession

_CONDITION = re.compile(r"^\[[A-Z0-9_.]+\]\s*")
_BRIDGE = re.compile(r"^An error occurred while calling \S+\s*:\s*(?:[\w$]+\.)+[\w$]+:\s*")
_STATE = re.compile(r"\s*SQLSTATE:\s*\w+")
_LONGEST = 400
_SKETCHES = "org.apache.datasketches.memory.internal.ResourceImpl"


def hush(spark: SparkSession) -> None:
    """Keep Spark from saying what nobody can use.

    It logs a wrong query as pages of JSON, which is raised too; and its library of sketches prints,
    once it is loaded, that there are things it cannot do, which nobody asks of it.
    """
    PySparkLogger.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL + 1)
    untyped: Any = spark
    java = untyped._jvm.java
    stderr = java.lang.System.err
    java.lang.System.setErr(java.io.PrintStream(java.io.OutputStream.nullOutputStream()))
    try:
        with contextlib.suppress(Py4JError):  # another Spark may have another library
            java.lang.Class.forName(_SKETCHES)
    finally:
        java.lang.System.setErr(stderr)


def first_rows(frame: DataFrame, limit: int) -> tuple[list[dict[str, Any]], bool]:
    """The first rows of a frame as plain data, and whether there are more."""
    found = [row.asDict(recursive=True) for row in frame.limit(limit + 1).collect()]
    return found[:limit], len(found) > limit


def said_by_spark(error: BaseException) -> str | None:
    """What an error of Spark says, in one line; None if it is none of Spark's."""
    if not isinstance(error, PySparkException | Py4JError):
        return None
    text = str(error)
    if isinstance(error, ParseException):
        return _parse_error(text)
    return one_line(text)


def one_line(text: str) -> str:
    """The beginning of what Spark says, without its codes, query plans and stack traces."""
    if "Traceback (most recent call last)" in text:  # of a worker: its last line says it
        raised = re.findall(r"^(?:\w+\.)*\w+(?:Error|Exception|Interrupt): .*", text, re.MULTILINE)
        text = raised[-1] if raised else text
    head = re.split(r"\n\s*(?:at |'|== SQL|JVM stacktrace|Driver stacktrace|\+-)", text.strip())[0]
    head = re.sub(r"(?:;|\.)?\s*line (\d+) pos (\d+)", _position, head)
    for noise in (_BRIDGE, _CONDITION, _STATE):
        head = noise.sub("", head)
    words = " ".join(head.split()).rstrip(" ;.:")
    return words if len(words) <= _LONGEST else words[:_LONGEST] + "…"


def _parse_error(text: str) -> str:
    place = re.search(r"\(line (\d+), pos (\d+)\)", text)
    head = re.split(r"\(line \d+, pos \d+\)|\n\n", text)[0]
    return one_line(head) + ("" if place is None else _position(place))


def _position(found: re.Match[str]) -> str:
    line, column = int(found[1]), int(found[2]) + 1
    return f" (column {column})" if line == 1 else f" (line {line}, column {column})"
