"""The pipeline on a standalone cluster of two workers, with executors killed in the middle.

One cluster and one driver for all of it: starting them takes longer than what they do.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.spark.cluster import standalone_cluster
from tests.spark.shop import Shop, open_shop

from matador.observe import Journal
from matador.transports import SqliteTransport

ORDERS = 120
PATIENCE = 300.0
ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.timeout(900)  # half a minute, where nothing else runs
def test_killed_executors_lose_nothing_and_repeat_nothing(tmp_path: Path) -> None:
    shop = open_shop(tmp_path, "shop_cluster", "again", "once", seconds=0.1)
    for half in (range(ORDERS // 2), range(ORDERS // 2, ORDERS)):  # something for each executor
        shop.send(half, Journal(tmp_path / "journal"))
    program = Path(__file__).with_name("cluster_program.py")
    with standalone_cluster(tmp_path / "cluster") as cluster:
        with (tmp_path / "driver.log").open("w") as log:
            driver = subprocess.Popen(
                [sys.executable, str(program), cluster.url, shop.reference, str(tmp_path)],
                env={**os.environ, "PYTHONPATH": f"{ROOT}/src:{ROOT}"},
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        try:
            _wait(driver, lambda: len(shop.log()) > ORDERS // 2)
            cluster.executors()[0].kill()
            _wait(driver, (tmp_path / "batch-started").exists)
            os.kill(int((tmp_path / "executor").read_text()), signal.SIGKILL)
            (tmp_path / "batch-killed").touch()
            _wait(driver, lambda: len(_waiting(shop)) > ORDERS // 10)
            cluster.executors()[0].kill()
            sent_before = len(_waiting(shop))
            printed, _ = driver.communicate(timeout=PATIENCE)
        finally:
            driver.kill()
            driver.wait()
    said = (tmp_path / "driver.log").read_text()
    assert driver.returncode == 0, said
    reported = json.loads(printed.splitlines()[-1])

    assert reported["ingested"] == [2 * ORDERS, 0]
    assert reported["refused"].startswith(
        "the executors cannot import the payload types: ModuleNotFoundError: No module named "
        "'neighbour'; "
    )
    _check_subscribers(shop)
    assert reported["kept"] == ORDERS
    assert reported["totals"]["rows"] == ORDERS
    assert reported["totals"]["dead_letters"] == 0

    assert sent_before < ORDERS, "it was killed in the middle"
    assert reported["replayed"] == [ORDERS, 0]
    assert _waiting(shop) == Counter(range(ORDERS))


def _check_subscribers(shop: Shop) -> None:
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


def _waiting(shop: Shop) -> Counter[int]:
    """The numbers of the orders in the queue."""

    async def look() -> Counter[int]:
        transport = SqliteTransport(shop.folder / "queue.db")
        await transport.connect()
        try:
            return Counter([_number(one.body) async for one in transport.browse("shop.events")])
        finally:
            await transport.disconnect()

    return asyncio.run(look())


def _number(body: bytes) -> int:
    envelope: dict[str, Any] = msgspec.json.decode(body)
    return envelope["data"]["number"]


def _wait(driver: subprocess.Popen[str], condition: Callable[[], bool]) -> None:
    """Wait until something is so, while the driver runs."""
    until = time.monotonic() + PATIENCE
    while not condition():
        assert driver.poll() is None, "the driver has ended"
        assert time.monotonic() < until, "it takes too long"
        time.sleep(0.05)
