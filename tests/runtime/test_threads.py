"""The threads of sync callbacks."""

from __future__ import annotations

import threading

from matador.runtime.threads import Threads
from matador.testing import wait_for


async def test_a_call_that_nobody_waits_for_any_more_is_not_made() -> None:
    threads, door, made = Threads(1), threading.Event(), list[str]()
    first = threads.start(lambda: door.wait(30))
    second = threads.start(lambda: made.append("second"))
    second.cancel()
    third = threads.start(lambda: made.append("third"))
    door.set()
    assert (await first).get() is True
    (await third).get()
    threads.close()
    assert made == ["third"]


async def test_a_thread_that_is_idle_is_used_again() -> None:
    threads, used = Threads(10), set[threading.Thread]()
    for _ in range(20):
        (await threads.start(lambda: used.add(threading.current_thread()))).get()
        # It is idle a moment after its call is done.
        await wait_for(lambda: threads._idle._value == 1)
    threads.close()
    assert len(used) == 1


async def test_no_more_threads_are_made_than_allowed() -> None:
    threads, used = Threads(2), set[threading.Thread]()
    door = threading.Event()

    def call() -> None:
        used.add(threading.current_thread())
        door.wait(30)

    calls = [threads.start(call) for _ in range(6)]
    door.set()
    for one in calls:
        (await one).get()
    threads.close()
    assert len(used) == 2
