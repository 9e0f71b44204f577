"""Fault scenarios as tests, on servers that only they use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from chaos.catalogue import Scenario, play


def assert_holds(scenario: Scenario, transport: str, folder: Path) -> None:
    """Play a scenario. Where it cannot be played the test skips, or fails in CI."""
    played = play(scenario, transport, folder / "arena")
    if played.result == "not played":
        if os.environ.get("CI", "").lower() in ("1", "true"):
            pytest.fail(played.seen)
        pytest.skip(played.seen)
    assert played.result == "ok", played.seen
    assert played.verdict is not None
    assert played.verdict.lost == 0
