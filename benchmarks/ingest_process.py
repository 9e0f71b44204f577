"""A process that ingests a journal whenever it is told to: for comparing two versions of Matador.

    python -m benchmarks.ingest_process JOURNAL FOLDER

Prints ``ready``, then a line with the rows and the seconds of an ingest for every line it reads. It
uses nothing but what every version with a lake has.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.cpu_time import cpu_seconds

ROOT = Path(__file__).parents[1]


class IngestProcess:
    """A running process, with the sources that it was given first on its path."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._expect()

    def ingest(self) -> tuple[float, float]:
        """Ingest the journal into a new lake: rows a second, and rows a second of CPU time."""
        assert self._process.stdin is not None
        before = cpu_seconds(self._process.pid)
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        rows, seconds = map(float, self._expect().split())
        return rows / seconds, rows / (cpu_seconds(self._process.pid) - before)

    def _expect(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        if not line:
            raise RuntimeError(f"the ingest has ended: exit code {self._process.wait()}")
        return line


@contextmanager
def ingest_process(sources: Path, journal: Path, folder: Path) -> Generator[IngestProcess]:
    """Start a process with the version of Matador in ``sources``."""
    with subprocess.Popen(
        [sys.executable, "-m", "benchmarks.ingest_process", str(journal), str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{sources}:{ROOT}"},
    ) as process:
        yield IngestProcess(process)
        assert process.stdin is not None
        process.stdin.close()


@contextmanager
def sources_of(commit: str, folder: Path) -> Generator[Path]:
    """The sources of a commit, in a worktree for as long as they are needed."""
    git = ["git", "-C", str(ROOT), "worktree"]
    subprocess.run([*git, "add", "--detach", str(folder), commit], check=True, capture_output=True)
    try:
        yield folder / "src"
    finally:
        subprocess.run([*git, "remove", "--force", str(folder)], check=True)


def main(journal: Path, folder: Path) -> None:
    """Ingest until stdin ends."""
    import matador
    from matador.spark import Lake, spark_session

    wanted = os.environ["PYTHONPATH"].split(":")[0]
    assert str(matador.__file__).startswith(wanted), f"{matador.__file__} is not in {wanted}"
    spark = spark_session(config={"spark.driver.memory": "1g"})

    def ingest() -> tuple[int, float]:
        lake = Lake(folder, spark=spark)
        began = time.perf_counter()
        result = lake.ingest(journal)
        seconds = time.perf_counter() - began
        shutil.rmtree(folder)
        return result.events + result.deliveries, seconds

    ingest()  # Java compiles what it runs often; that is not what is measured
    print("ready", flush=True)
    for _ in sys.stdin:
        print(*ingest(), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
