"""The figures that the documentation promises, measured with every feature switched on.

    script/benchmark promises [--broker redis --broker rabbitmq …] [--messages 5000] [--rounds 3]

One process sends and handles, on memory, on SQLite and on each broker named, which runs in a folder
of its own. Prints a Markdown table for `docs/performance.md`:

- **throughput**: 64 callers send, and all messages are handled. The median of the rounds. Events,
  pub/sub and RPC (calls with replies) have detection of duplicates, validation, timeouts, retries,
  dead letters, a journal and metrics. Channels have these and otherwise the default settings: one
  message of a consumer at a time.
- **acknowledgement**: the time a message takes to be acknowledged when 64 are settled together, as
  a worker does under load, and when one is settled alone.
- **recovery**: the server is killed and started again. The time from the moment when it
  answers until a message that waited in the buffer of the publisher was handled.
- **duplicates**: a look among 10,000 keys.
- **memory**: by how much the resident memory grows over 10,000 messages, after the first 10,000.

The exit code is 1 if a promise is not kept.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import os
import signal
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from chaos.processes import ROOT
from chaos.servers import Server, end_all, own_server

from benchmarks import shop
from benchmarks.pubsub import duplicates
from matador import Deduplication, Topology
from matador.channels import QueueService, QueueSettings, Settings, channel, consume
from matador.model.message import Complete
from matador.observe import Journal, Metrics
from matador.pubsub import AckStrategy, Publisher, Subscriber, Validation
from matador.rpc import RpcClient, RpcServer
from matador.testing import make_message
from matador.transports.urls import transport_from_url

CALLERS = 64
KEY = "order.placed"
_MIB = 1024 * 1024
_WARM = _GROWN = 10_000
_NAMES = {
    "memory": "memory",
    "sqlite": "SQLite",
    "redis": "Redis",
    "rabbitmq": "RabbitMQ",
    "kafka": "Kafka",
    "sqs": "SQS",
}
_URLS = {
    "redis": "redis://127.0.0.1:{port}/0",
    "rabbitmq": "amqp://guest:guest@127.0.0.1:{port}/",
    "kafka": "kafka://127.0.0.1:{port}",
    "sqs": "sqs://eu-west-1?endpoint=http://127.0.0.1:{port}",
}
_WITH_EXCHANGES = ("memory", "sqlite", "redis", "rabbitmq", "kafka")

Send: TypeAlias = Callable[[shop.OrderPlaced], Awaitable[object]]
Turn: TypeAlias = Callable[[str, str, int, dict[str, Any]], Coroutine[Any, Any, float]]


def everything(folder: Path) -> dict[str, Any]:
    """Every feature that receivers share; retries and dead letters are on by default."""
    return {
        "deduplication": Deduplication(),
        "timeout": 60,
        "hooks": [Journal(folder / uuid.uuid4().hex), Metrics()],
    }


def server_of(kind: str) -> Server:
    """The server of this run; it runs. Downloads of ``script/brokers up`` are used."""
    variable = f"MATADOR_{kind.upper()}_LIB"
    library = os.environ.get(variable, str(ROOT / ".brokers" / kind / "lib"))
    return own_server(kind, ((variable, library),))


def fresh() -> str:
    """A name that nobody has used."""
    return f"bench-{uuid.uuid4().hex[:12]}"


async def rate(send: Send, messages: int) -> float:
    """Messages per second, from the first send until the last one is handled."""
    each = shop.payloads(messages // CALLERS)
    shop.counter.expect(len(each) * CALLERS)

    async def caller() -> None:
        for payload in each:
            await send(payload)

    begun = time.perf_counter()
    await asyncio.gather(*(caller() for _ in range(CALLERS)))
    await shop.counter.wait()
    return len(each) * CALLERS / (time.perf_counter() - begun)


# -- throughput -----------------------------------------------------------------------------------


async def events(kind: str, url: str, messages: int, options: dict[str, Any]) -> float:
    app = shop.make_app(url, consume=True, namespace=fresh())
    async with app.with_(**options) as app:
        return await rate(app.send, messages)


async def pubsub(kind: str, url: str, messages: int, options: dict[str, Any]) -> float:
    transport, exchange = transport_from_url(url), fresh()
    sub = Subscriber(
        transport,
        exchange=exchange,
        queue=f"{exchange}.q",
        ack=AckStrategy(max_retries=3, retry_delay=1),
        validation=Validation(),
        **options,
    )

    @sub.on("order.*")
    async def count(message: shop.OrderPlaced) -> None:
        shop.counter.add()

    async with sub, Publisher(transport, exchange=exchange) as publisher:
        return await rate(lambda payload: publisher.publish(KEY, payload), messages)


async def calls(kind: str, url: str, messages: int, options: dict[str, Any]) -> float:
    queue = fresh()
    server = RpcServer(url, queue=queue, validation=Validation(), **options)

    @server.handler("COUNT")
    async def count(message: shop.OrderPlaced) -> int:
        shop.counter.add()
        return message.amount

    async with server, RpcClient(url, queue=queue) as client:
        return await rate(lambda payload: client.call("COUNT", payload, timeout=60), messages)


async def channels(kind: str, url: str, messages: int, options: dict[str, Any]) -> float:
    name = fresh()

    @channel(name)
    class Orders:
        @consume("placed")
        async def placed(self, order: shop.OrderPlaced) -> None:
            shop.counter.add()

    if kind == "kafka":
        url = url.removeprefix("kafka://")
    settings = Settings(QueueSettings(type=kind, url=url))  # pyright: ignore[reportArgumentType]
    async with QueueService(settings, channels=[Orders], **options) as service:
        return await rate(lambda payload: service.send(name, "placed", payload), messages)


TURNS: dict[str, Turn] = {
    "events": events,
    "pub/sub": pubsub,
    "RPC": calls,
    "channels": channels,
}


def throughput(name: str, kind: str, url: str, messages: int, rounds: int) -> float | None:
    """The median of the rounds; None: this broker does not serve that way in."""
    if kind not in _WITH_EXCHANGES and name in ("RPC", "pub/sub"):
        return None
    found: list[float] = []
    for number in range(rounds):
        print(f"  {name}, {kind}: round {number + 1}/{rounds} …", file=sys.stderr)
        with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".benchmark-") as folder:
            place = f"sqlite:///{folder}/b.db" if kind == "sqlite" else url
            options = everything(Path(folder))
            found.append(asyncio.run(TURNS[name](kind, place, messages, options)))
    return statistics.median(found)


# -- acknowledgement -------------------------------------------------------------------------------


async def acknowledgement(url: str, together: int, messages: int) -> float:
    """The median seconds per message to settle so many together."""
    transport, topology = transport_from_url(url), Topology(fresh(), queues=["events"])
    queue = topology.full_name("events")
    await transport.connect()
    await transport.apply_topology(topology)
    for _ in range(0, messages, 100):
        await transport.send([make_message(b'{"n":1}', queue=queue) for _ in range(100)])
    subscription = await transport.subscribe(queue, prefetch=together)
    took: list[float] = []
    left = messages
    while left:
        deliveries = await subscription.receive(min(together, left))
        begun = time.perf_counter()
        failed = await transport.settle([Complete(one.receipt) for one in deliveries])
        took.append((time.perf_counter() - begun) / len(deliveries))
        assert not any(failed), failed
        left -= len(deliveries)
    await transport.disconnect()
    return statistics.median(took)


# -- recovery -------------------------------------------------------------------------------------


async def recovery(kind: str, url: str) -> float:
    """Seconds from the moment when a server that was killed answers again."""
    server, exchange = server_of(kind), fresh()
    sub = Subscriber(url, exchange=exchange, queue=f"{exchange}.q")

    @sub.on("order.*")
    async def count(message: dict[str, int]) -> None:
        shop.counter.add()

    async with sub, Publisher(url, exchange=exchange) as publisher:
        shop.counter.expect(1)
        await publisher.publish(KEY, {"n": 1})
        await shop.counter.wait()
        await asyncio.to_thread(server.stop, kill=True)
        shop.counter.expect(1)
        buffered = asyncio.ensure_future(publisher.publish(KEY, {"n": 2}))
        await asyncio.to_thread(server.start)
        begun = time.perf_counter()
        await shop.counter.wait()
        took = time.perf_counter() - begun
        await buffered
        return took


# -- memory ---------------------------------------------------------------------------------------


async def memory_growth(folder: Path) -> float:
    """MiB by which the process grows over so many messages with every feature on."""
    sub = Subscriber(
        f"sqlite:///{folder}/b.db",
        exchange="shop",
        queue="books",
        validation=Validation(),
        **everything(folder),
    )

    @sub.on("order.*")
    async def count(message: shop.OrderPlaced) -> None:
        shop.counter.add()

    async with sub, Publisher(sub.transport, exchange="shop") as publisher:

        def send(payload: shop.OrderPlaced) -> Awaitable[object]:
            return publisher.publish(KEY, payload)

        await rate(send, _WARM)  # the keys of duplicates fill up, too
        before = _resident()
        await rate(send, _GROWN)
        return _resident() - before


def _resident() -> float:
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / _MIB


# -- the table ------------------------------------------------------------------------------------


def row(what: str, promise: str, figures: Sequence[float | None], form: str, kept: bool) -> str:
    """A line of the table: a figure for each place."""
    shown = ["–" if figure is None else form.format(figure) for figure in figures]
    return f"| {what} | {promise} | {' | '.join(shown)} | {'yes' if kept else '**no**'} |"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--broker", action="append", default=[], choices=list(_URLS))
    parser.add_argument("--messages", type=int, default=5000)
    parser.add_argument("--rounds", type=int, default=3)
    chosen = parser.parse_args()
    logging.disable(logging.ERROR)  # a server is killed
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that the servers are ended
    os.environ.setdefault("AWS_ACCESS_KEY_ID", "x")
    os.environ.setdefault("AWS_SECRET_ACCESS_KEY", "x")
    places = {"memory": "memory://", "sqlite": ""}
    for one in chosen.broker:
        places[one] = _URLS[one].format(port=server_of(one).port)
    names = " | ".join(_NAMES[kind] for kind in places)
    print(f"| | promise | {names} | kept |\n|---|---|{'---:|' * len(places)}---|", flush=True)
    fine: list[bool] = []

    def add(
        what: str, promise: str, figures: Sequence[float | None], form: str, kept: bool
    ) -> None:
        fine.append(kept)
        print(row(what, promise, figures, form, kept), flush=True)

    def all_kept(figures: Sequence[float | None], keeps: Callable[[float], bool]) -> bool:
        return all(keeps(figure) for figure in figures if figure is not None)

    for name in TURNS:
        figures: list[float | None] = [
            throughput(name, kind, url, chosen.messages, chosen.rounds)
            for kind, url in places.items()
        ]
        kept = all_kept(figures, lambda found: found > 1000)
        add(f"throughput, {name}", "> 1,000/s", figures, "{:,.0f}/s", kept)

    for together, title in ((CALLERS, "64 together"), (1, "alone")):
        with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".benchmark-") as folder:
            figures = [
                asyncio.run(
                    acknowledgement(url or f"sqlite:///{folder}/b.db", together, 10 * CALLERS)
                )
                * 1000
                for url in places.values()
            ]
        kept = together == 1 or all_kept(figures, lambda found: found < 0.5)
        promise = "< 0.5 ms" if together > 1 else ""
        add(f"acknowledgement, {title}", promise, figures, "{:.3f} ms", kept)

    figures = [
        asyncio.run(recovery(kind, url)) if kind in _URLS and kind in _WITH_EXCHANGES else None
        for kind, url in places.items()
    ]
    kept = all_kept(figures, lambda found: found < 5)
    add("recovery of the connection", "< 5 s", figures, "{:.1f} s", kept)
    end_all()

    new, known = asyncio.run(duplicates())
    nothing: list[float | None] = [None] * (len(places) - 1)
    found = max(new, known) * 1000
    add("duplicates, 10,000 keys", "< 1 ms", [found, *nothing], "{:.3f} ms", found < 1)
    with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".benchmark-") as folder:
        grown = asyncio.run(memory_growth(Path(folder)))
    figures = [None, grown, *nothing[1:]]
    add("memory, over 10,000 messages", "< 10 MB", figures, "{:.1f} MB", grown * 1.049 < 10)
    return 0 if all(fine) else 1


if __name__ == "__main__":
    sys.exit(main())
