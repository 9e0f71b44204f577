"""The long run: many messages, workers and publishers killed all the while, and nothing lost."""

from __future__ import annotations

import time

from chaos.arena import Arena, expect
from chaos.crew import Crew
from chaos.processes import Process
from chaos.progress import Progress
from chaos.settings import AppSettings, Handler, Publishing

LEASE = 3.0
WORKERS = 2
KEYS = 200
_LOOK = 0.2  # seconds between two looks: the queue has to be counted, and the logs read
_PATIENCE = 3600.0


class Lane:
    """One publisher after the other: each goes on behind what the last one had begun."""

    def __init__(self, arena: Arena, app: AppSettings, name: str, first: int, count: int) -> None:
        self._arena = arena
        self._app = app
        self._name = name
        self._end = first + count
        self._numbers = range(first, self._end)
        self.kills = 0
        self._process = self._start(first)

    @property
    def done(self) -> bool:
        """Was everything published?"""
        return not self._process.alive and self._next() >= self._end

    def tend(self) -> None:
        """Go on if the publisher was killed."""
        if not self._process.alive and not self.done:
            self._process = self._start(self._next())

    def kill(self) -> bool:
        """Kill the publisher, if there is one."""
        if not self._process.alive:
            return False
        self._process.kill()
        self.kills += 1
        return True

    def _next(self) -> int:
        begun = (seq for seq in self._arena.look().intents if seq in self._numbers)
        return max(begun, default=self._numbers.start - 1) + 1

    def _start(self, first: int) -> Process:
        publishing = Publishing(
            first=first, count=self._end - first, keys=KEYS, lane=self._name, together=20, size=200
        )
        return self._arena.publisher(self._app, publishing)


def long_run(arena: Arena, progress: Progress, *, messages: int, kills: int) -> str:
    """Half of the messages a lane; kills at random moments of the way through them."""
    app = arena.app(lease=LEASE, max_attempts=1000, handlers=(Handler(failures=0.02),))
    half = messages // 2
    lanes = [Lane(arena, app, "a", 0, half), Lane(arena, app, "b", half, messages - half)]
    crew = Crew(arena, app, WORKERS)
    draw = arena.random.random
    worker_kills = [messages * (kill + draw()) / kills for kill in range(kills)]
    publisher_kills = [messages * (kill + draw()) / (kills // 5 + 1) for kill in range(kills // 5)]
    killed = 0
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
        progress.show(
            f"{handled:,} of {messages:,} handled, {begun:,} sent, {killed} workers killed", handled
        )
        if all(lane.done for lane in lanes) and arena.depth() == 0:
            break
        expect(time.monotonic() < deadline, f"not done after {_PATIENCE:g} s: {handled:,} handled")
        time.sleep(_LOOK)

    for worker in crew.workers:
        worker.terminate()
    for worker in crew.workers:
        arena.wait_exit(worker)
    verdict = arena.judge(duplicated=kills * 3 * app.concurrency)
    expect(verdict.dead == 0, f"{verdict.dead} dead letters, though every failure is retried")
    return (
        f"{verdict.published:,} reported as sent, {verdict.handled:,} handled; killed: {killed} "
        f"workers, {sum(lane.kills for lane in lanes)} publishers"
    )
