"""huey on SQLite, run with the peers' interpreter: prints messages per second.

``huey_sqlite.py send|consume FILE NUMBER CALLERS FSYNC``
"""

# pyright: basic, reportMissingImports=false
# (huey is in the peers' environment alone, and has no types)
from __future__ import annotations

import sys
import threading
import time
from typing import Any

from huey import SqliteHuey


def main() -> None:
    what, path, number, callers, fsync = sys.argv[1:6]
    total, threads = int(number), int(callers)
    huey = SqliteHuey(filename=path, fsync=fsync == "yes", results=False)
    counted = 0
    done = threading.Event()

    @huey.task()
    def count(payload: dict[str, Any]) -> None:
        nonlocal counted
        counted += 1
        if counted == total:
            done.set()

    payload: dict[str, Any] = {
        "order_id": "order-00000001",
        "amount": 1,
        "customer": "customer-0001@example.com",
        "note": "x" * 90,
    }
    if what == "send":
        print(send(count, payload, total, threads))
        return
    for _ in range(total):
        count(payload)
    consumer = huey.create_consumer(
        workers=threads, periodic=False, initial_delay=0.001, backoff=1.0, max_delay=0.001
    )
    start = time.perf_counter()
    consumer.start()
    done.wait()
    print(total / (time.perf_counter() - start), flush=True)
    consumer.stop(graceful=False)


def send(task: Any, payload: dict[str, Any], total: int, threads: int) -> float:
    each = total // threads

    def caller() -> None:
        for _ in range(each):
            task(payload)

    workers = [threading.Thread(target=caller) for _ in range(threads)]
    start = time.perf_counter()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return each * threads / (time.perf_counter() - start)


if __name__ == "__main__":
    main()
