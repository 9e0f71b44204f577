"""How tasks hear of an early end, and the driver of its signals."""

from __future__ import annotations

import asyncio
import os
import signal
import threading

import pytest

from matador.spark.runtime.shutdown import StopAddress, StopLine, signals_set

HOST = "127.0.0.1"


async def test_all_who_wait_are_told_and_those_who_come_later_too() -> None:
    stop = threading.Event()
    with StopLine(HOST, stop) as line:
        address = line.address(HOST)
        gone = asyncio.create_task(address.wait())
        waiting = [asyncio.create_task(address.wait()) for _ in range(3)]
        done, _ = await asyncio.wait([gone, *waiting], timeout=0.3)
        assert not done
        gone.cancel()
        stop.set()
        assert await asyncio.wait_for(asyncio.gather(*waiting), 10) == [True] * 3
        assert await asyncio.wait_for(address.wait(), 10)


async def test_the_end_of_the_driver_tells_them_as_well() -> None:
    with StopLine(HOST, threading.Event()) as line:
        waiting = asyncio.create_task(line.address(HOST).wait())
        await asyncio.wait([waiting], timeout=0.2)
    assert await asyncio.wait_for(waiting, 10)


async def test_a_driver_that_cannot_be_reached_tells_nothing() -> None:
    with StopLine(HOST, threading.Event()) as line:
        port = line.address(HOST).port
    assert not await StopAddress(HOST, port).wait()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_sets_the_event_and_only_meanwhile(number: signal.Signals) -> None:
    stop = threading.Event()
    before = signal.getsignal(number)
    with signals_set(stop):
        os.kill(os.getpid(), number)
        assert stop.wait(10)
    assert signal.getsignal(number) is before
