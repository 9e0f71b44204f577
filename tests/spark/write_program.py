"""Writes so many rows with an application, in a session that runs failed tasks again."""

from __future__ import annotations

import sys

from matador.spark import spark_session


def main(reference: str, count: int) -> None:
    spark = spark_session("local[2,3]")
    rows = spark.range(0, count, 1, 2).selectExpr("id as number")
    writing = rows.write.format("matador").option("app", reference).option("event", "parcel.sent")
    writing.mode("append").save()
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
