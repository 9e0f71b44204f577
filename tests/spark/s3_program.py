"""Ingests a journal into a lake on S3, without Java, in child processes that are killed in commits.

Each is told the number of a commit and a delay in seconds: the kill falls so long after this commit
has begun. The server gets the request or not, and answers it or not. Commit 0 is none: it is not
killed. After each child, the program says how it has ended, and waits for a line.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from tests.spark.inline import InlineLake
from tests.support.s3 import s3_options

from matador.spark.tables.delta import DeltaTable


def ingest(lake: str, journal: str, number: int, delay: float) -> None:
    commit = DeltaTable.commit
    begun = 0

    def killed(table: DeltaTable, *given: Any, **more: Any) -> int:
        nonlocal begun
        if not table.name.startswith("_check"):
            begun += 1
            if begun == number:
                threading.Thread(target=_kill, args=(delay,), daemon=True).start()
        return commit(table, *given, **more)

    patching = pytest.MonkeyPatch()
    patching.setattr(DeltaTable, "commit", killed)
    InlineLake(lake, patching, s3_options()).ingest(Path(journal), batch_size=1)


def _kill(delay: float) -> None:
    time.sleep(delay)
    os.kill(os.getpid(), signal.SIGKILL)


def main(lake: str, journal: str, *kills: str) -> None:
    for one in kills:  # forked: importing everything takes longer than an ingest
        number, delay = one.split(":")
        child = os.fork()
        if child == 0:
            ingest(lake, journal, int(number), float(delay))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)
        sys.stdin.readline()


if __name__ == "__main__":
    main(*sys.argv[1:])
