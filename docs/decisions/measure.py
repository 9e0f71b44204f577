"""Measures the figures in the decision records: `python docs/decisions/measure.py`.

Use a quiet machine, and compare ratios: the figures support a choice, and say little about speed.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import cast

import msgspec
import pydantic

from matador.model.message import Complete, Message
from matador.model.topology import Topology
from matador.transports.sqlite import SqliteTransport
from matador.transports.sqlite.database import Synchronous

QUEUE = "measure.events"
TOPOLOGY = Topology("measure", queues=["events"])


def message(number: int) -> Message:
    return Message(str(number), QUEUE, b"x" * 300)


async def opened(folder: Path, synchronous: Synchronous = "FULL") -> SqliteTransport:
    transport = SqliteTransport(folder / f"{synchronous}.db", synchronous=synchronous)
    await transport.connect()
    await transport.apply_topology(TOPOLOGY)
    return transport


async def rate(count: int, work: Callable[[], Awaitable[None]]) -> float:
    start = time.perf_counter()
    await work()
    return count / (time.perf_counter() - start)


# -- 0002: batches ------------------------------------------------------------------------------


async def one_by_one(transport: SqliteTransport, count: int) -> None:
    for number in range(count):
        await transport.send([message(number)])


async def concurrently(transport: SqliteTransport, count: int, callers: int) -> None:
    async def caller() -> None:
        await one_by_one(transport, count // callers)

    await asyncio.gather(*(caller() for _ in range(callers)))


async def in_batches(transport: SqliteTransport, count: int, size: int) -> None:
    for start in range(0, count, size):
        await transport.send([message(number) for number in range(start, start + size)])


async def drain(transport: SqliteTransport, size: int, most: int) -> float:
    subscription = await transport.subscribe(QUEUE, prefetch=size)
    done, start = 0, time.perf_counter()
    while done < most:
        deliveries = await subscription.receive(size)
        await transport.settle([Complete(delivery.receipt) for delivery in deliveries])
        done += len(deliveries)
    elapsed = time.perf_counter() - start
    await subscription.close()
    return done / elapsed


async def batches(folder: Path) -> None:
    print("0002 and 0003: messages/s on SQLite")
    modes: tuple[Synchronous, ...] = ("FULL", "NORMAL")
    for mode in modes:
        transport = await opened(folder, mode)
        alone = await rate(1000, lambda t=transport: one_by_one(t, 1000))
        together = await rate(20_000, lambda t=transport: concurrently(t, 20_000, 64))
        batch = await rate(50_000, lambda t=transport: in_batches(t, 50_000, 1000))
        print(
            f"  {mode:6}  send: one caller {alone:>7,.0f}   64 callers {together:>7,.0f}"
            f"   batches of 1,000 {batch:>7,.0f}"
        )
        single = await drain(transport, 1, 1000)
        many = await drain(transport, 100, 60_000)
        print(f"  {'':6}  consume: one at a time {single:>7,.0f}   batches of 100 {many:>7,.0f}")
        await transport.disconnect()


# -- 0003: wake-up ------------------------------------------------------------------------------


def send_times(path: str, count: int) -> None:
    async def send() -> None:
        transport = SqliteTransport(path)
        await transport.connect()
        for number in range(count):
            await asyncio.sleep(0.03)
            body = str(time.monotonic()).encode()
            await transport.send([Message(str(number), QUEUE, body)])
        await transport.disconnect()

    asyncio.run(send())


async def wake_up(folder: Path) -> None:
    transport = await opened(folder / "wake")
    subscription = await transport.subscribe(QUEUE, prefetch=1)
    context = multiprocessing.get_context("spawn")
    sender = context.Process(target=send_times, args=(str(transport.path), 100))
    sender.start()
    waits: list[float] = []
    while len(waits) < 100:
        for delivery in await subscription.receive(1):
            waits.append(time.monotonic() - float(delivery.body))
            await transport.settle([Complete(delivery.receipt)])
    sender.join()
    ordered = sorted(waits)
    print(
        f"0003: from the start of a send to its delivery in another process: "
        f"median {1000 * statistics.median(waits):.1f} ms, 95 % {1000 * ordered[94]:.1f} ms"
    )
    before = time.process_time()
    idle = asyncio.create_task(subscription.receive(1))
    await asyncio.sleep(5)
    used = time.process_time() - before
    await subscription.close()
    await idle
    print(f"0003: processor time of a worker that waits: {100 * used / 5:.2f} % of one core")
    await transport.disconnect()


# -- 0004: payloads -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Line:
    article: str
    amount: int
    price: float


@dataclass(frozen=True)
class Order:
    order_id: str
    customer: str
    lines: list[Line]


class PydanticLine(pydantic.BaseModel):
    article: str
    amount: int
    price: float


class PydanticOrder(pydantic.BaseModel):
    order_id: str
    customer: str
    lines: list[PydanticLine]


def by_hand(text: str) -> Order:
    """json and isinstance: what would be written without a library."""
    found = json.loads(text)
    if not isinstance(found, dict):
        raise TypeError("not an object")
    fields = cast("dict[str, object]", found)
    for name in ("order_id", "customer"):
        if not isinstance(fields.get(name), str):
            raise TypeError(name)
    lines: list[Line] = []
    for line in cast("list[dict[str, object]]", fields["lines"]):
        article, amount, price = line.get("article"), line.get("amount"), line.get("price")
        if not (isinstance(article, str) and isinstance(amount, int) and isinstance(price, float)):
            raise TypeError("lines")
        lines.append(Line(article, amount, price))
    return Order(str(fields["order_id"]), str(fields["customer"]), lines)


def timed(work: Callable[[], object], count: int = 20_000) -> float:
    best = float("inf")
    for _ in range(5):
        start = time.perf_counter()
        for _ in range(count // 5):
            work()
        best = min(best, (time.perf_counter() - start) / (count // 5))
    return best * 1e6


def payloads() -> None:
    lines = [Line(f"article {n}", n, n * 1.5) for n in range(5)]
    order = Order("o-1", "ada@example.com", lines)
    plain = asdict(order)
    model = PydanticOrder.model_validate(plain)
    encoded = msgspec.json.encode(order)
    decoder = msgspec.json.Decoder(Order)
    text = encoded.decode()
    rows = [
        ("msgspec, dataclass", lambda: msgspec.json.encode(order), lambda: decoder.decode(encoded)),
        (
            "pydantic, model",
            lambda: model.model_dump_json(),
            lambda: PydanticOrder.model_validate_json(encoded),
        ),
        ("json and checks by hand", lambda: json.dumps(asdict(order)), lambda: by_hand(text)),
    ]
    print("0004: an order of five lines, microseconds")
    for name, encode, decode in rows:
        print(f"  {name:24} encode {timed(encode):6.1f}   decode and check {timed(decode):6.1f}")


def main() -> None:
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as name:
        folder = Path(name)
        (folder / "wake").mkdir()
        asyncio.run(batches(folder))
        asyncio.run(wake_up(folder))
    payloads()


if __name__ == "__main__":
    main()
