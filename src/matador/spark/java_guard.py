"""Ends the Java process if Spark's start is interrupted."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Generator
from typing import Any

from pyspark import java_gateway

_JAVA_ENDS_WITHIN = 3.0


@contextlib.contextmanager
def java_ends_with_a_failed_start() -> Generator[None]:
    """End the Java processes that were started inside, if an exception leaves the block.

    Java ignores Ctrl-C. Interrupted while it starts, PySpark deletes the folder in which Java would
    report its port, and Java then runs for ever.
    """
    started: list[subprocess.Popen[bytes]] = []

    class RecordedPopen(subprocess.Popen[bytes]):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            started.append(self)  # first: an interrupt may come before Popen returns
            super().__init__(*args, **kwargs)

    module: Any = java_gateway
    before, module.Popen = module.Popen, RecordedPopen
    try:
        yield
    except BaseException:
        for process in started:
            if hasattr(process, "pid"):
                process.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(_JAVA_ENDS_WITHIN)
                process.kill()
                process.wait()
        raise
    finally:
        module.Popen = before
