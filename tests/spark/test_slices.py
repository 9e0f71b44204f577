"""What a task does in its process: slices of an ordinary worker, without Spark around them."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from pathlib import Path

import msgspec
from tests.spark.shop import open_shop

from matador.spark.runtime.shutdown import StopAddress, StopLine
from matador.spark.workers.task import Slice, SliceReport, _host_of, run_slice


def a_slice(
    reference: str,
    *,
    seconds: float = 60.0,
    drain: float = 30.0,
    until_empty: bool = True,
    stop: StopAddress | None = None,
) -> Slice:
    return Slice(reference, ("events",), 5, seconds, drain, until_empty, stop)


def outcomes(work: Slice) -> Counter[str]:
    """Run a slice; how many messages ended how."""
    report = msgspec.json.decode(run_slice(work), type=SliceReport)
    found: Counter[str] = Counter()
    for one in report.counts:
        found[one.outcome] += one.count
    found.update({"empty": 1} if report.empty else {})
    found.update({"not-started": 1} if report.problem else {})
    return found


def has_ended(work: Slice) -> bool:
    """Was the application shut down that the process keeps?"""
    sync = _host_of(work)._sync
    assert sync is not None
    return sync.has_ended


def test_the_application_is_loaded_once_and_shut_down_after_each_slice(tmp_path: Path) -> None:
    shop = open_shop(tmp_path, "shop_kept", "again", "picky")
    work = a_slice(shop.reference)
    for _ in range(3):
        shop.send(range(10))
        assert outcomes(work) == {"success": 19, "dead-letter": 1, "empty": 1}
        assert has_ended(work)
    with StopLine("127.0.0.1", stopped := threading.Event()) as line:
        stopped.set()
        assert outcomes(a_slice(shop.reference, stop=line.address("127.0.0.1"))) == {}
    assert has_ended(work)
    shop.send(range(10))
    assert outcomes(work) == {"success": 19, "dead-letter": 1, "empty": 1}


def test_a_callback_that_takes_too_long_is_cut_short_and_given_back(tmp_path: Path) -> None:
    shop = open_shop(tmp_path, "shop_slow", "again", seconds=60)
    shop.send(range(3))
    work = a_slice(shop.reference, seconds=0.5, drain=0.1, until_empty=False)
    assert outcomes(work) == {}
    assert has_ended(work)
    assert asyncio.run(shop.depth()) == (3, 0)


def test_a_paused_queue_with_messages_ends_the_slice_and_is_named(tmp_path: Path) -> None:
    shop = open_shop(tmp_path, "shop_paused", "again")
    work = a_slice(shop.reference, seconds=20)
    shop.send(range(3))
    asyncio.run(shop.pause())
    report = msgspec.json.decode(run_slice(work), type=SliceReport)
    assert (report.paused, report.empty, report.problem) == (["events"], False, None)
    asyncio.run(shop.pause(False))
    assert outcomes(work) == {"success": 3, "empty": 1}


def test_an_application_that_cannot_start_is_reported_not_raised(tmp_path: Path) -> None:
    assert outcomes(a_slice(f"{tmp_path / 'none.py'}:app")) == {"not-started": 1}
