"""The long run: many messages, everybody killed all the while, the broker too, and nothing lost."""

from __future__ import annotations

import time

from chaos.arena import Arena, expect
from chaos.crew import Crew
from chaos.processes import Process
from chaos.profiles import Restarts, Unplayable
from chaos.progress import Progress
from chaos.settings import AppSettings, Handler, Publishing
from matador.runtime.consumer import MOST_HELD

LEASE = 3.0
RESTARTED = 1000
"""Runs that a restart of the broker may cause a second time: those whose settlement it missed."""

WORKERS = 2
KEYS = 200
_LOOK = 0.2  # seconds between two looks: the queue has to be counted, and the logs read
_STILL = 20.0  # seconds without progress after which the rest may be lost
_PATIENCE = 3600.0
_FAR = 10_000_000  # from the numbers of one lane to those of the next


class Lane:
    """One publisher after the other, until so many publishes were reported as stored.

    Each goes on behind what the last one had begun: what was refused, or has no outcome, is not
    sent again.
    """

    def __init__(self, arena: Arena, app: AppSettings, name: str, first: int, count: int) -> None:
        self._arena = arena
        self._app = app
        self._name = name
        self._count = count
        self._numbers = range(first, first + _FAR)
        self.kills = 0
        self._process = self._start(first, count)

    @property
    def done(self) -> bool:
        """Was everything published?"""
        return not self._process.alive and self._missing() <= 0

    def tend(self) -> None:
        """Go on if the publisher was killed, or was refused something."""
        if not self._process.alive and not self.done:
            self._process = self._start(self._next(), self._missing())

    def kill(self) -> bool:
        """Kill the publisher, if there is one."""
        if not self._process.alive:
            return False
        self._process.kill()
        self.kills += 1
        return True

    def _missing(self) -> int:
        return self._count - sum(seq in self._numbers for seq, _ in self._arena.look().sent)

    def _next(self) -> int:
        begun = (seq for seq in self._arena.look().intents if seq in self._numbers)
        return max(begun, default=self._numbers.start - 1) + 1

    def _start(self, first: int, count: int) -> Process:
        publishing = Publishing(
            first=first,
            count=count,
            keys=KEYS if self._arena.profile.ordered else 0,
            lane=self._name,
            together=20,
            size=200,
            patience=0.5,
        )
        return self._arena.publisher(self._app, publishing)


def long_run(
    arena: Arena, progress: Progress, *, messages: int, kills: int, restarts: int = 0
) -> str:
    """Half of the messages a lane; kills at random moments of the way through them.

    Of the restarts of the broker, every other one is a kill, the first included.
    """
    profile = arena.profile
    if restarts and not isinstance(profile, Restarts):
        raise Unplayable("the broker is no server that could be restarted")
    app = arena.app(
        lease=LEASE, max_attempts=1000, max_deliveries=1000, handlers=(Handler(failures=0.02),)
    )
    half = messages // 2
    lanes = [Lane(arena, app, "a", 0, half), Lane(arena, app, "b", _FAR, messages - half)]
    crew = Crew(arena, lambda: arena.worker(app, wait=False), WORKERS)
    draw = arena.random.random
    worker_kills = [messages * (kill + draw()) / kills for kill in range(kills)]
    publisher_kills = [messages * (kill + draw()) / (kills // 5 + 1) for kill in range(kills // 5)]
    broker_ends = [messages * (end + draw()) / restarts for end in range(restarts)]
    killed = restarted = 0
    seen, still_until = 0, time.monotonic() + _STILL
    deadline = time.monotonic() + _PATIENCE

    while True:
        history = arena.look()
        handled, begun = len(history.completed), len(history.intents)
        crew.tend()
        for lane in lanes:
            lane.tend()
        if worker_kills and handled >= worker_kills[0]:
            worker_kills.pop(0)
            crew.kill_one()
            killed += 1
        if publisher_kills and begun >= publisher_kills[0]:
            publisher_kills.pop(0)
            arena.random.choice(lanes).kill()
        if broker_ends and handled >= broker_ends[0] and isinstance(profile, Restarts):
            broker_ends.pop(0)
            profile.stop(kill=restarted % 2 == 0)
            profile.start()
            restarted += 1
        progress.show(
            f"{handled:,} of {messages:,} handled, {begun:,} sent, {killed} workers killed, "
            f"{restarted} restarts",
            handled,
        )
        if handled != seen:
            seen, still_until = handled, time.monotonic() + _STILL
        # Counting may take seconds, in which the kills that are left would come too late.
        done = handled >= len(history.sent) or time.monotonic() > still_until
        if done and all(lane.done for lane in lanes) and arena.depth() == 0:
            break
        expect(time.monotonic() < deadline, f"not done after {_PATIENCE:g} s: {handled:,} handled")
        time.sleep(_LOOK)

    crew.tend()  # one may have been killed at the very end
    for worker in crew.workers:
        arena.wait_ready(worker)  # one that has just replaced another cannot end in good order yet
        worker.terminate()
    for worker in crew.workers:
        arena.wait_exit(worker)
    # What a worker holds by reading ahead, and twice as much that waits to be settled.
    held = 3 * max(app.concurrency, MOST_HELD)
    verdict = arena.judge(duplicated=kills * held + restarts * RESTARTED)
    expect(verdict.dead == 0, f"{verdict.dead} dead letters, though every failure is retried")
    return (
        f"{verdict.published:,} reported as sent, {verdict.handled:,} handled; killed: {killed} "
        f"workers, {sum(lane.kills for lane in lanes)} publishers; the broker restarted "
        f"{restarted} times, killed {(restarted + 1) // 2} of them"
    )
