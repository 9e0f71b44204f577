"""A worker of jobs in a process of its own: ``python -m tests.support.job_program URL KIND``.

It says ``ready``, then a line for each job that it runs.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from matador.jobs import ActiveJob, Worker

QUEUE = "q"
KINDS = ("say", "die-in-a-step", "die-after-a-step")


@asynccontextmanager
async def job_program(url: str, kind: str) -> AsyncGenerator[Process]:
    """Start one; it is killed in the end."""
    command = (sys.executable, "-m", "tests.support.job_program", url, kind)
    process = await asyncio.create_subprocess_exec(*command, stdout=PIPE)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def hear(process: Process) -> str:
    """The next line that it says."""
    assert process.stdout is not None
    async with asyncio.timeout(20):
        return (await process.stdout.readline()).decode().strip()


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _die(_: object = None) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


async def _run(url: str, kind: str) -> None:
    async def handle(job: ActiveJob[Any]) -> Any:
        _say(job.id)
        if kind == "die-in-a-step":
            _die()
        return job.data["n"] + 1

    worker = Worker(QUEUE, handle, provider=url, concurrency=4)
    if kind == "die-after-a-step":
        worker.on("completed", _die)
    async with worker:
        _say("ready")
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_run(*sys.argv[1:]))
