"""Replays a lake slowly, so that a test has the time to kill it."""

from __future__ import annotations

import sys

from matador.spark import Lake, spark_session


def main(reference: str, lake: str, replay_id: str, rate: float) -> None:
    spark = spark_session("local[2]")
    Lake(lake, spark=spark).replay(reference, subscriber="tell", rate=rate, replay_id=replay_id)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], float(sys.argv[4]))
