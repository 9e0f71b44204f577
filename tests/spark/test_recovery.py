"""Processes that are killed inside commits: every row is there once."""

from __future__ import annotations

from pathlib import Path

import pytest
from chaos import lake_kafka
from chaos.lake import play
from pyspark.sql import SparkSession
from tests.support.brokers import broker_url


@pytest.mark.slow
@pytest.mark.chaos
@pytest.mark.timeout(600)
def test_killed_inside_commits_every_row_is_there_once(spark: SparkSession, tmp_path: Path) -> None:
    played = play(tmp_path, envelopes=1000, kills=4, batches=40, java=False)

    assert played.exact, played
    assert (played.inside("ingest"), played.inside("compaction")) == (2, 2), played


@pytest.mark.slow
@pytest.mark.chaos
@pytest.mark.timeout(600)
def test_killed_while_it_reads_kafka_every_event_is_there_once(tmp_path: Path) -> None:
    played = lake_kafka.play(tmp_path, broker_url("kafka"), envelopes=500, kills=2)

    assert played.exact, played
    assert played.sent >= 500
