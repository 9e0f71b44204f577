"""The run of jobs: many jobs, workers killed in the middle of them, and every job ends once."""

from __future__ import annotations

import time

import msgspec

from chaos.arena import Arena, expect
from chaos.crew import Crew
from chaos.job_checks import job_troubles
from chaos.job_process import is_doomed
from chaos.processes import Process
from chaos.profiles import KeepsJobs, Unplayable
from chaos.progress import Progress
from chaos.settings import JobSettings

LEASE = 2.0
WORKERS = 2
QUEUE = "work"
_LOOK = 0.05
_PATIENCE = 1800.0
_SHOWN = 5


def job_run(
    arena: Arena, progress: Progress, *, jobs: int, kills: int, lease: float = LEASE
) -> str:
    """Add jobs while workers run them and are killed, each in the middle of some job."""
    profile = arena.profile
    if not isinstance(profile, KeepsJobs):
        raise Unplayable("jobs on Redis are BullMQ's: play this with bullmq")
    queue = profile.job_queue(QUEUE)
    settings = JobSettings(url=profile.url(lease), facts="", queue=QUEUE)
    arena.watch(queue)
    adder = arena.job_process(msgspec.structs.replace(settings, add=jobs))
    crew = Crew(arena, lambda: arena.job_process(settings), WORKERS)
    planned = [jobs * (kill + arena.random.random()) / (kills + 1) for kill in range(kills)]
    cut = 0
    dead: set[int] = set()
    deadline = time.monotonic() + _PATIENCE

    while True:
        history = arena.look()
        crew.tend()
        done = len(history.completed)
        if planned and done >= planned[0]:
            victim = _busy(arena, crew)
            if victim is not None:
                victim.kill()
                dead.add(victim.pid)
                cut += (runs := _running(arena, victim))
                if runs:
                    planned.pop(0)
        progress.show(f"{done:,} of {jobs:,} jobs done, {len(dead)} workers killed", done)
        if not planned and not adder.alive and arena.depth() == 0:
            break
        expect(time.monotonic() < deadline, f"not done after {_PATIENCE:g} s: {done:,} jobs")
        time.sleep(_LOOK)

    arena.wait_exit(adder)
    for worker in crew.workers:
        arena.wait_ready(worker)
        worker.terminate()
    for worker in crew.workers:
        arena.wait_exit(worker)
    verdict = arena.judge(duplicated=len(dead) * settings.concurrency)
    expect(
        verdict.published == jobs, f"{verdict.published:,} jobs were reported added, not {jobs:,}"
    )
    troubles = list(
        job_troubles(
            arena.history,
            doomed={seq for seq in range(jobs) if is_doomed(seq, settings)},
            failed=arena.dead_letters(),
            completed=profile.completed_jobs(queue),
            twofold=frozenset() if profile.atomic else frozenset(dead),
        )
    )
    shown = "".join(f"\n  {trouble}" for trouble in troubles[:_SHOWN])
    expect(not troubles, f"{len(troubles)} jobs did not end as they must:{shown}")
    repeats = sum(len(starts) - 1 for starts in arena.history.starts.values())
    return (
        f"{verdict.published:,} jobs added, {verdict.handled:,} done, {verdict.dead:,} failed for "
        f"good; {len(dead)} workers killed in the middle of {cut} jobs; {repeats:,} attempts "
        f"beyond the first, all counted"
    )


def _busy(arena: Arena, crew: Crew) -> Process | None:
    """A worker that runs something; None: none is at work."""
    busy = [worker for worker in crew.workers if _running(arena, worker)]
    return arena.random.choice(busy) if busy else None


def _running(arena: Arena, worker: Process) -> int:
    """How many jobs it is in the middle of."""
    history = arena.look()
    return sum(
        start.pid == worker.pid and history.end_of(start) is None
        for starts in history.starts.values()
        for start in starts
    )
