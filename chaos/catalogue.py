"""Which scenarios there are, and how one is run."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from chaos.arena import Arena, ExpectationFailed
from chaos.checker import Verdict
from chaos.profiles import Unplayable

Play: TypeAlias = Callable[[Arena], str]
"""Plays a scenario in an arena; returns what was seen, in a few words."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """A fault, what must hold, and how to bring it about.

    ``needs`` are protocols of ``chaos.profiles`` without which it cannot be played.
    """

    name: str
    holds: str
    play: Play
    needs: tuple[type, ...] = ()


Result: TypeAlias = Literal["ok", "FAILED", "not played"]


@dataclass(frozen=True, slots=True)
class Played:
    """What came of a scenario. ``verdict`` None: it did not get as far as the checker."""

    scenario: Scenario
    result: Result
    seen: str
    seconds: float
    verdict: Verdict | None


class Catalogue:
    """Scenarios by name, in the order they were added."""

    def __init__(self) -> None:
        self._scenarios: dict[str, Scenario] = {}

    def add(self, name: str, holds: str, *needs: type) -> Callable[[Play], Play]:
        """A decorator: the function plays the scenario of that name."""

        def add(play: Play) -> Play:
            assert name not in self._scenarios, f"there are two scenarios {name}"
            self._scenarios[name] = Scenario(name, holds, play, needs)
            return play

        return add

    def all(self) -> list[Scenario]:
        """Every scenario."""
        return list(self._scenarios.values())

    def find(self, name: str) -> list[Scenario]:
        """The scenario of a name, or all of a fault: ``F6`` finds ``F6-timeout`` too.

        Raises:
            LookupError: there is none.
        """
        found = [
            one
            for one in self._scenarios.values()
            if name.lower() in (one.name.lower(), one.name.lower().partition("-")[0])
        ]
        if not found:
            raise LookupError(f"no scenario {name!r}; --list says which there are")
        return found


def play(
    scenario: Scenario, transport: str, folder: Path, *, scale: int = 1, seed: int = 1
) -> Played:
    """Play a scenario in a new arena."""
    started = time.monotonic()
    try:
        arena = Arena(transport, folder, scale=scale, seed=seed)
    except Unplayable as error:
        return Played(scenario, "not played", str(error), 0.0, None)
    with arena:
        result: Result = "ok"
        try:
            for need in scenario.needs:
                if not isinstance(arena.profile, need):
                    raise Unplayable(f"{transport} lacks {need.__name__}")
            seen = scenario.play(arena)
        except ExpectationFailed as error:
            result, seen = "FAILED", str(error)
            arena.measure()
        except Unplayable as error:
            result, seen = "not played", str(error)
        return Played(scenario, result, seen, time.monotonic() - started, arena.verdict)
