"""Handlers that run in processes of their own."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

from matador.jobs import ActiveJob, PermanentJobError, Queue, current_job
from matador.runtime.context import Context

queue = Queue("busy")


def handle(job: ActiveJob[Any]) -> Any:
    """Does what its data say."""
    match job.data:
        case "pid":
            return os.getpid()
        case "die" if job.attempts == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        case "exit":
            os._exit(7)
        case "raise":
            raise ValueError("bad input")
        case "odd":
            raise _OddError("a", "b")
        case "never":
            raise PermanentJobError("never")
        case "progress":
            job.update_progress(50)
        case "unwritable":
            return object()
        case {"stop after": half, "path": path}:
            for file in Path("/proc/self/fd").iterdir():
                if half and file.is_socket():
                    os.write(int(file.name), half.encode())
            Path(path).write_text(str(os.getpid()))
            os.kill(os.getpid(), signal.SIGSTOP)
        case {"hang": path}:
            Path(path).write_text(str(os.getpid()))
            time.sleep(600)
        case _:
            pass
    return job.attempts


class _OddError(Exception):
    """Cannot be pickled."""

    def __init__(self, one: str, two: str) -> None:
        super().__init__(f"{one} and {two}")


async def handle_async(job: ActiveJob[Any]) -> int:
    await job.update_progress("half")
    return os.getpid()


def shout(ctx: Context, data: dict[str, str]) -> str:
    return f"{data['to']} {ctx.attempt}"


@queue.job(timeout=60)
def square(number: int) -> int:
    current_job().update_progress(number)
    return number * number
