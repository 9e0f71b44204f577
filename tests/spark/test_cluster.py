"""Subscribers on a standalone cluster of two workers, with executors killed in the middle."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.spark.cluster import Cluster, standalone_cluster
from tests.spark.shop import open_shop

from matador.observe import Journal

ORDERS = 300
PATIENCE = 300.0
ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.timeout(900)  # half a minute, where nothing else runs
def test_killed_executors_lose_nothing(tmp_path: Path) -> None:
    shop = open_shop(tmp_path, "shop_cluster", "again", "once", seconds=0.1)
    shop.send(range(ORDERS), Journal(tmp_path / "journal"))
    program = Path(__file__).with_name("cluster_program.py")
    with standalone_cluster(tmp_path / "cluster") as cluster:
        with (tmp_path / "driver.log").open("w") as log:
            driver = subprocess.Popen(
                [sys.executable, str(program), cluster.url, shop.reference, str(tmp_path)],
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        try:
            _kill_one(cluster, driver, once=lambda: len(shop.log()) > ORDERS // 2)
            _kill_one(cluster, driver, once=(tmp_path / "batch-started").exists)
            (tmp_path / "batch-killed").touch()
            printed, _ = driver.communicate(timeout=PATIENCE)
        finally:
            driver.kill()
            driver.wait()
    said = (tmp_path / "driver.log").read_text()
    assert driver.returncode == 0, said
    reported = json.loads(printed.splitlines()[-1])

    log = shop.log()
    everyone = set(range(ORDERS))
    assert {number for what, number in log if what == "again-end"} == everyone
    once_begun = {number: times for (what, number), times in log.items() if what == "once-begin"}
    assert set(once_begun.values()) == {1}
    once_ended = {number for what, number in log if what == "once-end"}
    # What was running when its executor died is a dead letter: neither lost nor run again. One
    # whose end was noted may be among them, if it died before it was settled.
    dead, _ = asyncio.run(shop.depth("shop.events.undeliverable"))
    assert len(everyone - once_ended) <= dead <= 20
    assert dead >= len(once_begun) - len(once_ended)
    assert asyncio.run(shop.depth()) == (0, 0)

    assert reported["kept"] == ORDERS
    assert reported["totals"]["rows"] == ORDERS
    assert reported["totals"]["dead_letters"] == 0


def _kill_one(cluster: Cluster, driver: subprocess.Popen[str], *, once: Callable[[], bool]) -> None:
    """Kill an executor as soon as something is so."""
    until = time.monotonic() + PATIENCE
    while not once():
        assert driver.poll() is None, "the driver has ended"
        assert time.monotonic() < until, "it takes too long"
        time.sleep(0.05)
    cluster.executors()[0].kill()
