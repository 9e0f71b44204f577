"""Processes that are killed inside commits: every row is there once."""

from __future__ import annotations

from pathlib import Path

import pytest
from chaos.lake import play
from pyspark.sql import SparkSession


@pytest.mark.slow
@pytest.mark.chaos
@pytest.mark.timeout(600)
def test_killed_inside_commits_every_row_is_there_once(spark: SparkSession, tmp_path: Path) -> None:
    played = play(tmp_path, envelopes=1000, kills=2, batches=20)

    assert played.exact, played
    assert played.inside == 2, played
