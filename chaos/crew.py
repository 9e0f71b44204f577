"""Workers that are started again when they die, as a supervisor of processes would."""

from __future__ import annotations

from chaos.arena import Arena
from chaos.processes import Process
from chaos.settings import AppSettings


class Crew:
    """So many workers, kept up by ``tend``, which a wait's condition calls."""

    def __init__(self, arena: Arena, app: AppSettings, size: int) -> None:
        self._arena = arena
        self._app = app
        self._workers = [arena.worker(app, wait=False) for _ in range(size)]
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
                self._workers[place] = self._arena.worker(self._app, wait=False)

    def kill_one(self) -> None:
        """Kill one at random; ``tend`` replaces it."""
        self._arena.random.choice(self._workers).kill()

    def is_done(self) -> bool:
        """Tend them; is nothing left to do?"""
        self.tend()
        return self._arena.depth() == 0
