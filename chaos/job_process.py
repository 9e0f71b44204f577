"""A process that adds jobs, or a worker of jobs: ``python -m chaos.job_process SETTINGS``."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import sys
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from chaos.application import HandlerFailed, filling
from chaos.facts import End, FactLog, Intent, Ready, Result, Sent, Start, now
from chaos.profiles import JOB
from chaos.settings import JobSettings
from matador.jobs import ActiveJob, Fixed, JobOptions, PermanentJobError, Queue, Worker
from matador.runtime.process import run

_CALLERS = 32
_SIZE = 200


@dataclass(frozen=True, slots=True)
class Work:
    """The data of a job: its number, and filling that can be checked."""

    seq: int
    filling: str


def is_doomed(seq: int, settings: JobSettings) -> bool:
    """Whether the job of this number fails for good."""
    return seq % settings.doomed == settings.doomed - 1


async def add_all(settings: JobSettings, facts: FactLog) -> None:
    """Add the jobs, each by one of several callers who wait for their confirmation."""
    numbers = iter(range(settings.add))
    async with Queue(settings.queue, provider=settings.url) as queue:
        options: JobOptions = {"attempts": 5, "backoff": Fixed(0.1)}
        if queue.capabilities.keep:
            options["remove_on_complete"] = False
        facts.write(Ready(os.getpid()))

        async def call() -> None:
            for seq in numbers:
                facts.write(Intent(seq, None, now()))
                job = await queue.add("work", Work(seq, filling(seq, _SIZE)), **options)
                facts.write(Sent(seq, JOB, job.id, now()))

        await asyncio.gather(*[call() for _ in range(_CALLERS)])


def make_handler(
    settings: JobSettings, facts: FactLog, runs: Iterator[int]
) -> Callable[[ActiveJob[Work]], Awaitable[int]]:
    """The handler: it takes its time, and fails as it is told."""

    async def handle(job: ActiveJob[Work]) -> int:
        seq, pid, number = job.data.seq, os.getpid(), next(runs)
        intact = job.data.filling == filling(seq, _SIZE)
        attempt = job.attempts + 1
        facts.write(Start(seq, JOB, job.id, None, attempt, attempt > 1, intact, pid, number, now()))

        def finish(result: Result) -> None:
            facts.write(End(seq, JOB, pid, number, result, now()))

        await asyncio.sleep(settings.seconds)
        if is_doomed(seq, settings):
            finish("raised")
            raise PermanentJobError("doomed")
        if seq % settings.flaky == 0 and attempt == 1:
            finish("raised")
            raise HandlerFailed("bad luck")
        finish("done")
        return seq

    return handle


def main(argument: str) -> None:
    """Add jobs and end, or work until a signal comes."""
    settings = msgspec.json.decode(argument, type=JobSettings)
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    facts = FactLog(Path(settings.facts))
    if settings.add:
        asyncio.run(add_all(settings, facts))
        return

    async def ready() -> None:
        facts.write(Ready(os.getpid()))

    handler = make_handler(settings, facts, itertools.count())
    worker = Worker(
        settings.queue, handler, provider=settings.url, concurrency=settings.concurrency
    )
    run(worker, meanwhile=ready)


if __name__ == "__main__":
    main(sys.argv[1])
