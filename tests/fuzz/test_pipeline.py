"""A short run of spoiled messages through whole workers on SQLite."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.fuzz.pipeline import run


@pytest.mark.parametrize("seed", [1, 2])
async def test_spoiled_messages_stop_no_worker_and_are_kept(seed: int, tmp_path: Path) -> None:
    found = await run(tmp_path / "fuzz.db", count=1500, seed=seed)
    assert found.problems == []
    assert set(found.outcomes) >= {"handled", "malformed", "undeliverable", "unhandled"}
    assert found.outcomes["handled"] >= 150, "the good neighbours at least"
