"""Workers that are started again when they die, as a supervisor of processes would."""

from __future__ import annotations

from collections.abc import Callable

from chaos.arena import Arena
from chaos.processes import Process


class Crew:
    """So many workers, kept up by ``tend``, which a wait's condition calls.

    ``start`` starts one, and does not wait until it is ready.
    """

    def __init__(self, arena: Arena, start: Callable[[], Process], size: int) -> None:
        self._arena = arena
        self._start = start
        self._workers = [start() for _ in range(size)]
        self.deaths = 0

    @property
    def workers(self) -> list[Process]:
        """Those who work now."""
        return list(self._workers)

    def tend(self) -> None:
        """Replace those who have died."""
        for place, worker in enumerate(self._workers):
            if not worker.alive:
                self.deaths += 1
                self._workers[place] = self._start()

    def kill_one(self) -> None:
        """Kill one at random; ``tend`` replaces it."""
        self._arena.random.choice(self._workers).kill()

    def is_done(self) -> bool:
        """Tend them; is nothing left to do?"""
        self.tend()
        return self._arena.depth() == 0
