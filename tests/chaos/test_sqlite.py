"""Every fault scenario on SQLite, with small numbers: real processes, real signals."""

from __future__ import annotations

from pathlib import Path

import pytest
from chaos.arena import Arena
from chaos.catalogue import Scenario, play
from chaos.long_run import long_run
from chaos.profiles import BehindProxy, BlocksPublishers, Restarts
from chaos.progress import Progress
from chaos.scenarios import CATALOGUE

pytestmark = pytest.mark.chaos

OF_SERVERS = {Restarts, BehindProxy, BlocksPublishers}
SCENARIOS = [one for one in CATALOGUE.all() if not OF_SERVERS.intersection(one.needs)]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_holds(scenario: Scenario, tmp_path: Path) -> None:
    played = play(scenario, "sqlite", tmp_path / "arena")
    if played.result == "not played":
        pytest.skip(played.seen)
    assert played.result == "ok", played.seen
    assert played.verdict is not None
    assert played.verdict.lost == 0


def test_nothing_is_lost_in_a_run_with_kills(tmp_path: Path) -> None:
    with Arena("sqlite", tmp_path / "arena") as arena:
        long_run(arena, Progress(), messages=3000, kills=5)
        assert arena.verdict is not None
        assert arena.verdict.lost == 0
