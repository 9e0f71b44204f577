"""Writing a DataFrame publishes its rows, with fan-out, each once."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.sql import SparkSession
from tests.spark.frames import frame
from tests.spark.post import Post, open_post


def numbers(post: Post, queue: str) -> Counter[int]:
    return Counter(msgspec.json.decode(one.data)["number"] for one in post.envelopes(queue))


def publish(rows: Any, post: Post, **options: str) -> None:
    given = {"app": post.reference, **options}
    rows.write.format("matador").options(**given).mode("append").save()


def test_rows_are_published_to_every_subscriber(spark: SparkSession, tmp_path: Path) -> None:
    post = open_post(tmp_path)
    rows = frame(
        spark,
        [(1, "ann", {"a": 1}, {"who": "me"}, "c-1"), (2, "bob", None, None, None)],
        "number int, to string, extra map<string,bigint>, metadata map<string,string>, "
        "correlation_id string",
    )
    publish(rows, post, event="parcel.sent")
    for queue in ("events", "slow"):
        found = {msgspec.json.decode(one.data)["number"]: one for one in post.envelopes(queue)}
        assert msgspec.json.decode(found[1].data)["extra"] == {"a": 1}
        assert found[1].docket.metadata == {"who": "me"}
        assert found[1].docket.correlation_id == "c-1"
        assert msgspec.json.decode(found[2].data)["extra"] == {}, "null: the default"


def test_a_write_with_a_name_publishes_nothing_twice(spark: SparkSession, tmp_path: Path) -> None:
    post = open_post(tmp_path)
    rows = spark.range(20).selectExpr("id as number")
    for _ in range(2):
        publish(rows, post, event="parcel.sent", write_id="import-1")
    assert numbers(post, "events") == Counter(range(20))
    publish(rows, post, event="parcel.sent")
    assert set(numbers(post, "events").values()) == {2}, "another write is another write"


def test_what_was_read_can_be_written_back_with_its_ids(
    spark: SparkSession, tmp_path: Path
) -> None:
    post = open_post(tmp_path)
    post.send(range(5))
    options = {"url": post.url, "queue": "post.slow"}
    rows = spark.read.format("matador").options(**options).load().cache()
    ids = {row.id for row in rows.select("id").collect()}
    post.purge("events", "slow")
    publish(rows, post)
    assert post.messages("events") == [], "for their subscriber only"
    assert {one.id for one in post.messages("slow")} == ids


def test_a_stream_publishes_each_row_once_after_a_restart(
    spark: SparkSession, tmp_path: Path
) -> None:
    post = open_post(tmp_path)
    source = tmp_path / "source"
    for part in range(2):
        spark.range(part * 10, part * 10 + 10).write.mode("append").parquet(str(source))

        def run() -> None:
            query = (
                spark.readStream.schema("id bigint")
                .parquet(str(source))
                .selectExpr("id as number")
                .writeStream.format("matador")
                .options(app=post.reference, event="parcel.sent")
                .option("checkpointLocation", str(tmp_path / "checkpoint"))
                .trigger(availableNow=True)
                .start()
            )
            query.awaitTermination()

        run()
        # As if Spark had been killed before it noted that the batch was done.
        (tmp_path / "checkpoint" / "commits" / str(part)).unlink()
        (tmp_path / "checkpoint" / "commits" / f".{part}.crc").unlink(missing_ok=True)
        run()
        assert numbers(post, "events") == Counter(range(part * 10 + 10))


@pytest.mark.parametrize(
    ("columns", "options", "said"),
    [
        ("id as nmber", {"event": "parcel.sent"}, "did you mean 'number'"),
        ("id as number", {"event": "parcel.snt"}, "did you mean 'parcel.sent'"),
        ("id as number", {}, "no event; set option"),
        ("'x' as number", {"event": "parcel.lost"}, r"\$\.number"),
    ],
)
def test_wrong_rows_are_explained(
    spark: SparkSession, tmp_path: Path, columns: str, options: dict[str, str], said: str
) -> None:
    post = open_post(tmp_path)
    with pytest.raises(Exception, match=said):
        publish(spark.range(1).selectExpr(columns), post, **options)


def test_a_task_that_dies_half_way_publishes_nothing_twice(tmp_path: Path) -> None:
    post = open_post(tmp_path)
    (tmp_path / "die").touch()
    program = Path(__file__).with_name("write_program.py")
    done = subprocess.run(
        [sys.executable, program, post.reference, "3000"],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert not (tmp_path / "die").exists(), "a task died"
    for queue in ("events", "slow"):
        assert numbers(post, queue) == Counter(range(3000))
