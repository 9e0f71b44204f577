"""A worker at its default concurrency, against one that handles 64 messages at once.

    script/benchmark concurrency [--rounds 5] [--messages 8000] [--url redis://… --url amqp://…]

With a handler that does nothing, what counts is how many messages share a round trip. A worker
reads ahead, so the default concurrency must not be much slower. On SQLite, and on each URL given.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path

from benchmarks import shop
from benchmarks.rounds import Bar, Contest, hold, table
from matador import Matador, Schema, Topology
from matador.model.topology import WorkQueue
from matador.runtime.worker import DEFAULT_CONCURRENCY

MANY = 64
AT_LEAST = 0.8


async def consume(url: str, messages: int, concurrency: int) -> float:
    """Fill a queue of its own, then handle what is on it; messages per second."""
    app = Matador(
        url,
        schema=Schema({shop.OrderPlaced: [shop.count]}),
        topology=Topology(
            f"bench-{uuid.uuid4().hex[:12]}",
            queues=[WorkQueue("events", concurrency=concurrency)],
        ),
        consume_from=["events"],
    )
    async with app.producer() as producer:
        for start in range(0, messages, 1000):
            await producer.send_many(shop.payloads(min(1000, messages - start)))
    shop.counter.expect(messages)
    begun = time.perf_counter()
    async with app:
        await shop.counter.wait()
        return messages / (time.perf_counter() - begun)


def contest(name: str, url: str | None, messages: int) -> Contest:
    """One transport; without a URL, SQLite in a fresh folder."""

    def turn(concurrency: int) -> Callable[[], float]:
        def run() -> float:
            if url is not None:
                return asyncio.run(consume(url, messages, concurrency))
            with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".benchmark-") as folder:
                return asyncio.run(consume(f"sqlite:///{folder}/b.db", messages, concurrency))

        return run

    ours, other = f"concurrency {DEFAULT_CONCURRENCY}, the default", f"concurrency {MANY}"
    contestants = {ours: turn(DEFAULT_CONCURRENCY), other: turn(MANY)}
    return Contest(f"consume, {name}", ours, contestants, (Bar(other, AT_LEAST),))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--messages", type=int, default=8000)
    parser.add_argument("--url", action="append", default=[])
    chosen = parser.parse_args()
    contests = [contest("SQLite", None, chosen.messages)]
    contests += [contest(url.partition(":")[0], url, chosen.messages) for url in chosen.url]
    outcomes = [hold(one, chosen.rounds) for one in contests]
    print(table(outcomes))
    return 0 if all(outcome.met for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
