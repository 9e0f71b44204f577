"""Clocks that are set, and time zones that change: F18."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from chaos.arena import Arena, expect
from chaos.catalogue import Catalogue
from chaos.clocks import faketime_environment, find_faketime
from chaos.settings import Handler, Publishing

DELAY = 2.0
LATE = 30.0
"""Seconds after its time at which a delayed message counts as forgotten."""

HOUR = 3600
# The hour that comes twice, and the one that does not come, begin within seconds.
_AUTUMN = {"TZ": "Europe/Berlin", "when": "@2026-10-25 02:59:58"}
_SPRING = {"TZ": "America/New_York", "when": "@2026-03-08 01:59:58"}


def add_to(catalogue: Catalogue) -> None:
    """Add these scenarios."""
    catalogue.add("F18", "clocks moved by an hour, DST: no delay fires early or is lost")(
        moved_clocks
    )


def moved_clocks(arena: Arena) -> str:
    """Publishers and workers disagree about the time of day by an hour and more."""
    library = find_faketime()
    app = arena.app(handlers=(Handler(failures=0.3),), max_attempts=100, base_delay=0.3)
    for moved in (HOUR, -HOUR):
        arena.worker(app, environment=_hour(library, moved), moved_clock=_own(library, moved))
    publishers = [
        arena.publisher(app, Publishing(count=10, delay=DELAY)),
        arena.publisher(
            app,
            Publishing(first=10, count=10, delay=DELAY),
            environment=_hour(library, HOUR),
            moved_clock=_own(library, HOUR),
        ),
        arena.publisher(
            app,
            Publishing(first=20, count=10, delay=DELAY),
            environment=_season(library, _AUTUMN),
            moved_clock=_own(library, -HOUR),
        ),
        arena.publisher(
            app,
            Publishing(first=30, count=10, delay=DELAY),
            environment=_season(library, _SPRING),
        ),
    ]
    for publisher in publishers:
        arena.wait_exit(publisher)
    arena.wait(lambda: len(arena.history.sent) == 40, "all to be sent")
    arena.wait_empty()
    first: dict[int, int] = {}
    for start in arena.starts():
        first.setdefault(start.seq, start.at)
    waits = [(first[seq] - intent.at) / 1e9 for seq, intent in arena.history.intents.items()]
    expect(min(waits) >= DELAY, f"handled after {min(waits):.2f} s, delayed by {DELAY:g} s")
    expect(max(waits) < DELAY + LATE, f"handled only after {max(waits):.2f} s")
    arena.judge()
    means = "libfaketime" if library is not None else "Python's own clock moved"
    return f"delayed by {DELAY:g} s: {min(waits):.2f} to {max(waits):.2f} s ({means})"


def _hour(library: Path | None, moved: int) -> Mapping[str, str]:
    return {} if library is None else faketime_environment(library, f"{moved:+d}s")


def _season(library: Path | None, season: Mapping[str, str]) -> Mapping[str, str]:
    zone = {"TZ": season["TZ"]}
    return zone if library is None else {**zone, **faketime_environment(library, season["when"])}


def _own(library: Path | None, moved: int) -> float:
    return float(moved) if library is None else 0.0
