"""The code of the guides "Subscribers on Spark" and "Running on a cluster" does what they say."""

from __future__ import annotations

from pathlib import Path

import pytest
from docs.snippets.spark_worker import work_until_empty
from examples import revenue as frames
from pyspark.sql import SparkSession
from tests.spark.shop import open_shop

from matador import Matador, Schema, SubscriberStub
from matador.observe import Journal


def test_the_worker_of_the_guide(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shop = open_shop(tmp_path, "shop_guide", "picky")
    shop.send(range(20))
    work_until_empty(shop.reference, spark)
    assert capsys.readouterr().out.splitlines() == [
        "picky: 2 × dead-letter, DontRetry: no tens",
        "picky: 18 × success, no error",
    ]


def test_the_dataframe_subscriber_of_the_guide(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(frames, "REVENUE", tmp_path / "revenue")
    journal, checkpoint = str(tmp_path / "journal"), str(tmp_path / "checkpoint")
    stub = SubscriberStub("books", description="Keeps the books.")
    app = Matador(
        f"sqlite:///{tmp_path / 'queue.db'}",
        schema=Schema({frames.OrderPlaced: [stub]}),
        hooks=[Journal(journal)],
    )
    for amounts in ([5, 7], [-1]):
        with app.sync() as sender:
            sender.send_many(frames.OrderPlaced("1", amount, "NL") for amount in amounts)
        frames.run(journal, checkpoint, spark)
    frames.redrive(checkpoint, spark)
    rows = spark.read.parquet(str(tmp_path / "revenue")).collect()
    assert [(row.country, row.amount) for row in rows] == [("NL", 12)]
    assert capsys.readouterr().out.splitlines() == [
        "revenue: 2 rows, 0 dead batches",
        "revenue: 0 rows, 1 dead batches",
        "revenue, batch 1: there are negative amounts",
    ]
