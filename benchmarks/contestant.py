"""Matador as a contestant on a broker, in a process of its own, as its peers are.

    python -m benchmarks.contestant send-many|send-one|consume|latency URL NUMBER [KIND]

``KIND`` is ``plain``, or ``classic`` for a classic queue of RabbitMQ.
"""

from __future__ import annotations

import sys
from typing import Any

from benchmarks.peers import harness
from benchmarks.shop import OrderPlaced
from matador import Envelope, Matador, Schema, Topology, WorkQueue, subscriber
from matador.transports.base import Measuring
from matador.transports.urls import transport_from_url

NAMESPACE = "bench"
CLASSIC = "bench.classic"
PARTITIONS = 8  # of a topic, as its peers have them


class Ours:
    def __init__(self, url: str, kind: str) -> None:
        self._url = url
        if url.startswith("kafka"):
            self._url = f"{url}?partitions={PARTITIONS}"
        self._classic = kind == "classic"
        self._queue = CLASSIC if self._classic else f"{NAMESPACE}.events"
        self._apps: list[Matador] = []
        self._app: Matador | None = None

    def _make(self, handle: harness.Handle | None) -> Matador:
        @subscriber(description="Counts.", idempotent="yes")
        async def count(envelope: Envelope[OrderPlaced]) -> None:
            if handle is not None:
                handle({"note": envelope.data.note})

        queue = WorkQueue(
            CLASSIC if self._classic else "events",
            concurrency=harness.CONCURRENCY,
            exact=self._classic,
        )
        app = Matador(
            self._url,
            schema=Schema({OrderPlaced: [count]}),
            topology=Topology(NAMESPACE, queues=[queue]),
            consume_from=[] if handle is None else [queue.name],
        )
        self._apps.append(app)
        return app

    async def fresh(self, url: str) -> None:
        """Remove the queues."""
        if url.startswith("redis"):
            import redis

            client_class: Any = redis.Redis
            with client_class.from_url(url) as client:
                client.flushdb()
            return
        if url.startswith("kafka"):
            from benchmarks.peers import kafka_topics

            kafka_topics.remove(url, self._queue, self._queue)
            return
        from benchmarks.peers import rabbit

        kinds = ("", ".retry", ".unhandled", ".undeliverable")
        names = [f"{self._queue}{kind}" for kind in kinds]
        rabbit.remove(url, *names, exchanges=(f"{NAMESPACE}.exchange", f"{NAMESPACE}.dlx"))
        if self._classic:
            rabbit.declare(url, CLASSIC, quorum=False)

    async def connect(self) -> None:
        """An application that only sends."""
        self._app = self._make(None)
        await self._app.start()

    async def send(self, payload: harness.Payload) -> None:
        """One, confirmed."""
        assert self._app is not None
        await self._app.send(OrderPlaced(**payload))

    async def send_many(self, payloads: list[harness.Payload]) -> None:
        """By 64 callers, each awaiting its own confirmation."""
        await harness.by_callers(self.send, payloads)

    async def work(self, handle: harness.Handle) -> None:
        """An application that handles."""
        await self._make(handle).start()

    async def close(self) -> None:
        """End them."""
        for app in self._apps:
            await app.shutdown()

    async def left(self) -> int:
        """What is on the queue, in whatever state."""
        transport = transport_from_url(self._url)
        assert isinstance(transport, Measuring)
        await transport.connect()
        depth = await transport.depth(self._queue)
        await transport.disconnect()
        return depth.total


def main() -> None:
    kind = sys.argv[4] if len(sys.argv) > 4 else "plain"
    harness.run_async(Ours(sys.argv[2], kind), ["-m", "benchmarks.contestant"])


if __name__ == "__main__":
    main()
