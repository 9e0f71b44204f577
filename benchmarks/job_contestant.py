"""Jobs of Matador as a contestant, in a process of its own, as its peers are.

python -m benchmarks.job_contestant send-many|send-one|consume|latency URL NUMBER [MORE]

MORE: how many jobs run at once, then ``bulk`` if jobs are to be added by ``add_many`` instead of 64
callers.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from benchmarks.peers import harness
from matador.jobs import ActiveJob, Queue, Worker

QUEUE = "bench"
BULK = 500


class OurJobs:
    def __init__(self, url: str, concurrency: int) -> None:
        self._url = url
        self._concurrency = concurrency
        self._queue = Queue(QUEUE, provider=url)
        self._worker: Worker | None = None

    async def fresh(self, url: str) -> None:
        """Remove whatever is there from before."""
        if url.startswith("sqlite"):
            for file in Path(url.removeprefix("sqlite:///")).parent.glob("jobs.db*"):
                file.unlink()
            return
        import redis

        client_class: Any = redis.Redis
        with client_class.from_url(url) as client:
            client.flushdb()

    async def connect(self) -> None:
        """Open the queue."""
        await self._queue.open()

    async def send(self, payload: harness.Payload) -> None:
        """One, confirmed."""
        await self._queue.add("count", payload)

    async def send_many(self, payloads: list[harness.Payload]) -> None:
        """By 64 callers, each awaiting its own confirmation, unless it was asked for otherwise."""
        if "bulk" in sys.argv[5:]:
            for start in range(0, len(payloads), BULK):
                some = payloads[start : start + BULK]
                await self._queue.add_many([("count", payload) for payload in some])
            return
        await harness.by_callers(self.send, payloads)

    async def work(self, handle: harness.Handle) -> None:
        """A worker."""

        async def count(job: ActiveJob[Any]) -> None:
            handle(job.data)

        self._worker = Worker(QUEUE, count, provider=self._url, concurrency=self._concurrency)
        await self._worker.start()

    async def close(self) -> None:
        """End them."""
        if self._worker is not None:
            await self._worker.shutdown()
        await self._queue.shutdown()

    async def left(self) -> int:
        """Jobs that are not finished."""
        async with Queue(QUEUE, provider=self._url) as queue:
            stats = await queue.stats()
            return stats.waiting + stats.delayed + stats.active


def main() -> None:
    concurrency = int(sys.argv[4]) if len(sys.argv) > 4 else harness.CONCURRENCY
    harness.run_async(OurJobs(sys.argv[2], concurrency), ["-m", "benchmarks.job_contestant"])


if __name__ == "__main__":
    main()
