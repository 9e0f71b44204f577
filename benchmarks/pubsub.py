"""Pub/sub against events, on the same transports; and how long a look for a duplicate takes.

    script/benchmark pubsub [--rounds 3] [--messages 8000] [--cpu] [--url redis://… --url amqp://…]

One queue, one handler that counts, payloads of about 200 bytes, everything in one process.

- **publish**: 64 callers that each await their own confirmation.
- **publish many**: 1,000 messages a call.
- **consume**: a full queue, 64 messages at once.
- **duplicates**: with 10,000 keys remembered, the time of a whole run of `Deduplicator` around work
  that does nothing: for a new key, and for a key that is known. The bar is 1 ms.

On memory and SQLite, and on each URL given. On RabbitMQ both use a durable classic queue, which is
what other programs declare for pub/sub; events have a quorum queue by default. With ``--cpu``
microseconds of CPU time of this process per message are compared, user and system, and not rates: a
busy machine changes them less. What the broker's process does is not in them. The exit code is 1 if
a bar is not met.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path

from benchmarks import shop
from benchmarks.rounds import Bar, Contest, hold, table
from matador import Deduplication, Matador, Schema, Topology
from matador.model.topology import WorkQueue
from matador.pubsub import Publisher, Subscriber
from matador.runtime.dedup import Deduplicator
from matador.transports.base import Routing, Transport
from matador.transports.urls import transport_from_url

AT_LEAST = 0.9
CALLERS = 64
KEYS = 10_000
MOST_SECONDS = 0.001
KEY = "order.placed"


class Events:
    """An application with one queue of its own."""

    def __init__(self, url: str) -> None:
        self.transport = transport_from_url(url)
        self.app = Matador(
            self.transport,
            schema=Schema({shop.OrderPlaced: [shop.count]}),
            topology=Topology(
                f"bench-{uuid.uuid4().hex[:12]}",
                queues=[
                    WorkQueue(
                        "events",
                        concurrency=shop.CONCURRENCY,
                        type="classic" if url.startswith("amqp") else None,
                    )
                ],
            ),
            consume_from=["events"],
        )
        self.producer = self.app.producer()

    async def open(self) -> None:
        """Start to send."""
        await self.producer.start()

    async def send(self, payload: shop.OrderPlaced) -> None:
        """One, confirmed."""
        await self.producer.send(payload)

    async def send_many(self, payloads: list[shop.OrderPlaced]) -> None:
        """Many, confirmed."""
        await self.producer.send_many(payloads)

    async def consume(self) -> None:
        """Handle what is there."""
        async with self.app:
            await shop.counter.wait()

    async def close(self) -> None:
        """Stop, and delete the queues."""
        await self.producer.shutdown()
        full = self.app.topology.full_name("events")
        kinds = ("", ".retry", ".unhandled", ".undeliverable")
        await delete(self.transport, *(full + kind for kind in kinds))


class PubSub:
    """A publisher and a subscriber with an exchange and a queue of their own."""

    def __init__(self, url: str) -> None:
        name = f"bench-{uuid.uuid4().hex[:12]}"
        self.transport = transport_from_url(url)
        self.publisher = Publisher(self.transport, exchange=name)
        self.subscriber = Subscriber(
            self.transport, exchange=name, queue=f"{name}.q", concurrency=shop.CONCURRENCY
        )

        @self.subscriber.on("order.*")
        async def count(message: shop.OrderPlaced) -> None:
            shop.counter.add()

    async def open(self) -> None:
        """Make the queue, and start to publish."""
        async with self.subscriber:
            pass
        await self.publisher.start()

    async def send(self, payload: shop.OrderPlaced) -> None:
        """One, confirmed."""
        await self.publisher.publish(KEY, payload)

    async def send_many(self, payloads: list[shop.OrderPlaced]) -> None:
        """Many, confirmed."""
        await self.publisher.publish_many([(KEY, one) for one in payloads])

    async def consume(self) -> None:
        """Handle what is there."""
        async with self.subscriber:
            await shop.counter.wait()

    async def close(self) -> None:
        """Stop, and delete the queues."""
        await self.publisher.shutdown()
        await delete(self.transport, self.subscriber.queue, f"{self.subscriber.queue}.dlq")


async def delete(transport: Transport, *queues: str) -> None:
    """Delete queues, and disconnect."""
    await transport.connect()
    if isinstance(transport, Routing):
        for queue in queues:
            await transport.delete_queue(queue)
    await transport.disconnect()


Ways = Events | PubSub


Clock = Callable[[], float]


async def publish(way: Ways, messages: int, clock: Clock) -> float:
    """The seconds per message of many callers."""

    async def caller(own: list[shop.OrderPlaced]) -> None:
        for payload in own:
            await way.send(payload)

    each = shop.payloads(messages // CALLERS)
    begun = clock()
    await asyncio.gather(*(caller(each) for _ in range(CALLERS)))
    return (clock() - begun) / (CALLERS * len(each))


async def publish_many(way: Ways, messages: int, clock: Clock) -> float:
    """The seconds per message in batches of 1,000."""
    batch = shop.payloads(1000)
    begun = clock()
    for _ in range(messages // 1000):
        await way.send_many(batch)
    return (clock() - begun) / (messages // 1000 * 1000)


async def consume(way: Ways, messages: int, clock: Clock) -> float:
    """Fill the queue, then handle what is on it; the seconds per message."""
    for start in range(0, messages, 1000):
        await way.send_many(shop.payloads(min(1000, messages - start)))
    shop.counter.expect(messages)
    begun = clock()
    await way.consume()
    return (clock() - begun) / messages


WHAT: dict[str, Callable[[Ways, int, Clock], Awaitable[float]]] = {
    "publish": publish,
    "publish many": publish_many,
    "consume": consume,
}


def contest(what: str, name: str, url: str, messages: int, *, cpu: bool) -> Contest:
    """One thing on one transport; ``sqlite`` is a file in a fresh folder."""
    clock = time.process_time if cpu else time.perf_counter

    async def measured(kind: type[Ways], url: str) -> float:
        way = kind(url)
        await way.open()
        try:
            took = await WHAT[what](way, messages, clock)
            return took * 1e6 if cpu else 1 / took
        finally:
            await way.close()

    def turn(kind: type[Ways]) -> Callable[[], float]:
        def run() -> float:
            if url != "sqlite":
                return asyncio.run(measured(kind, url))
            with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".benchmark-") as folder:
                return asyncio.run(measured(kind, f"sqlite:///{folder}/b.db"))

        return run

    contestants = {"pub/sub": turn(PubSub), "events": turn(Events)}
    return Contest(
        f"{what}, {name}",
        "pub/sub",
        contestants,
        (Bar("events", AT_LEAST),),
        unit=" µs" if cpu else "/s",
        lower_is_better=cpu,
    )


async def duplicates() -> tuple[float, float]:
    """The median seconds of a new key and of a known one, with all keys in use."""
    once = Deduplicator(Deduplication(max_keys=KEYS))

    async def work() -> bytes:
        return b""

    async def took(key: str) -> float:
        begun = time.perf_counter()
        await once.run(key, work)
        return time.perf_counter() - begun

    for n in range(KEYS):
        await took(f"old-{n}")
    new = [await took(f"new-{n}") for n in range(KEYS)]
    known = [await took(f"new-{n}") for n in range(KEYS)]
    return statistics.median(new), statistics.median(known)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--messages", type=int, default=8000)
    parser.add_argument("--url", action="append", default=[])
    parser.add_argument("--only", choices=list(WHAT))
    parser.add_argument("--cpu", action="store_true")
    chosen = parser.parse_args()
    places = {"memory": "memory://", "SQLite": "sqlite"}
    places |= {url.partition(":")[0]: url for url in chosen.url}
    outcomes = [
        hold(contest(what, name, url, chosen.messages, cpu=chosen.cpu), chosen.rounds)
        for name, url in places.items()
        for what in WHAT
        if chosen.only in (None, what)
    ]
    print(table(outcomes))
    new, known = asyncio.run(duplicates())
    print(
        f"\nduplicates, {KEYS} keys: {new * 1e6:.1f} µs for a new key, {known * 1e6:.1f} µs known"
    )
    fine = max(new, known) < MOST_SECONDS and all(outcome.met for outcome in outcomes)
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
