"""Starts publishers and workers as processes of their own, and ends them in every way there is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from chaos.settings import JobSettings, PublisherSettings, WorkerSettings

ROOT = Path(__file__).parents[1]


def worker_arguments(settings: WorkerSettings) -> list[str]:
    """What makes a process a worker."""
    return ["-m", "chaos.worker", msgspec.json.encode(settings).decode()]


def publisher_arguments(settings: PublisherSettings) -> list[str]:
    """What makes a process a publisher."""
    return ["-m", "chaos.publisher", msgspec.json.encode(settings).decode()]


def job_arguments(settings: JobSettings) -> list[str]:
    """What makes a process one that adds jobs, or a worker of jobs."""
    return ["-m", "chaos.job_process", msgspec.json.encode(settings).decode()]


def command_arguments(*command: str) -> list[str]:
    """What makes a process the ``matador`` command."""
    return ["-c", "from matador.cli import main; main()", *command]


class Process:
    """A Python process in a session of its own, so that a signal reaches it alone."""

    def __init__(
        self,
        arguments: Sequence[str],
        output: Path,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._output = output
        with output.open("ab") as file:
            self._process = subprocess.Popen(
                [sys.executable, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                cwd=ROOT,
                env={**os.environ, **(environment or {})},
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Its id."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Does it still run (or is it frozen)?"""
        return self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        """How it ended; negative: by that signal; None: it has not."""
        return self._process.poll()

    @property
    def output(self) -> str:
        """What it wrote, its log included."""
        return self._output.read_text("utf-8", errors="replace")

    @property
    def memory(self) -> int:
        """Bytes of memory it occupies now."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text("ascii").split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def kill(self) -> None:
        """SIGKILL: no goodbye. Returns when it is gone."""
        self._signal(signal.SIGKILL)
        self._process.wait()

    def terminate(self) -> None:
        """SIGTERM: please."""
        self._signal(signal.SIGTERM)

    def freeze(self) -> None:
        """SIGSTOP: it neither runs nor notices."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT: it goes on as if nothing had happened."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        if self._process.poll() is None:
            self._process.send_signal(number)
