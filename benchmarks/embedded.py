"""The embedded transports: SQLite against huey and a bare loop, journal, in-process, codec, import.

    script/benchmark embedded [--rounds 5] [--messages 20000]

Prints a Markdown table of ratios, and exits with 1 if a bar is not met.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from benchmarks import bare_sqlite, shop
from benchmarks.peers import environment
from benchmarks.rounds import Bar, Contest, hold, table
from matador import Docket, Envelope, Hooks, JsonCodec
from matador.model.event import event_type_of
from matador.observe import Journal
from matador.transports.clock import SystemClock

CALLERS = 64


def in_a_fresh_folder(work: Callable[[Path], float]) -> Callable[[], float]:
    """Each turn has files of its own, on the disk (not in memory), removed afterwards."""

    def turn() -> float:
        with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".benchmark-") as folder:
            return work(Path(folder))

    return turn


def sqlite_send(messages: int) -> Contest:
    """64 concurrent callers, each awaiting its own durable send."""

    async def ours(folder: Path) -> float:
        async with shop.make_app(f"sqlite:///{folder}/ours.db", consume=False) as app:
            return await shop.send_concurrently(app, messages, CALLERS)

    few = max(messages // 10, CALLERS)  # huey takes long

    return Contest(
        f"SQLite send, {CALLERS} callers",
        "matador",
        {
            "matador": in_a_fresh_folder(lambda folder: asyncio.run(ours(folder))),
            "bare sqlite3, groups of 64": in_a_fresh_folder(
                lambda folder: bare_sqlite.send(
                    bare_sqlite.open_database(folder / "bare.db"), messages, CALLERS
                )
            ),
            "huey, durable, one caller": in_a_fresh_folder(
                lambda folder: environment.run(
                    "huey_sqlite.py", "send", folder / "huey.db", few, 1, "yes"
                )
            ),
            "huey, not durable, one caller": in_a_fresh_folder(
                lambda folder: environment.run(
                    "huey_sqlite.py", "send", folder / "huey.db", few, 1, "no"
                )
            ),
        },
        (Bar("bare sqlite3, groups of 64", 0.5), Bar("huey, durable, one caller", 5)),
    )


def sqlite_consume(messages: int) -> Contest:
    """A full queue, handled through the whole pipeline and settled durably."""

    async def ours(folder: Path) -> float:
        url = f"sqlite:///{folder}/ours.db"
        await shop.fill(url, messages)
        return await shop.consume(url, messages)

    def bare(folder: Path) -> float:
        connection = bare_sqlite.open_database(folder / "bare.db")
        bare_sqlite.send(connection, messages, 5000)
        return bare_sqlite.consume(connection, messages, shop.CONCURRENCY)

    few = max(messages // 10, CALLERS)

    def huey(fsync: str, workers: int) -> Callable[[], float]:
        return in_a_fresh_folder(
            lambda folder: environment.run(
                "huey_sqlite.py", "consume", folder / "huey.db", few, workers, fsync
            )
        )

    return Contest(
        "SQLite consume",
        "matador",
        {
            "matador": in_a_fresh_folder(lambda folder: asyncio.run(ours(folder))),
            "bare sqlite3, groups of 64": in_a_fresh_folder(bare),
            "huey, durable, 1 worker": huey("yes", 1),
            "huey, not durable, 1 worker": huey("no", 1),
        },
        (Bar("bare sqlite3, groups of 64", 0.5), Bar("huey, durable, 1 worker", 5)),
    )


def journal(messages: int) -> Contest:
    """What recording everything costs: sent by 64 callers, then handled, with and without."""

    async def both(folder: Path, *, recorded: bool) -> float:
        def hooks() -> list[Hooks]:
            return [Journal(folder / "journal")] if recorded else []

        url = f"sqlite:///{folder}/ours.db"
        number = messages // CALLERS * CALLERS
        async with shop.make_app(url, consume=False, hooks=hooks()) as app:
            sending = await shop.send_concurrently(app, number, CALLERS)
        handling = await shop.consume(url, number, hooks=hooks())
        return 1 / (1 / sending + 1 / handling)

    return Contest(
        "SQLite with a journal, send and consume",
        "recorded",
        {
            "recorded": in_a_fresh_folder(lambda folder: asyncio.run(both(folder, recorded=True))),
            "not recorded": in_a_fresh_folder(
                lambda folder: asyncio.run(both(folder, recorded=False))
            ),
        },
        (Bar("not recorded", 0.95),),
    )


def in_process(messages: int) -> Contest:
    """Sent and handled in one process: fan-out, codec, pipeline, settlement."""

    async def ours() -> float:
        shop.counter.expect(messages)
        batches = [shop.payloads(500) for _ in range(messages // 500)]
        shop.counter.expect(len(batches) * 500)
        async with shop.make_app("memory://", consume=True) as app:
            start = time.perf_counter()
            for batch in batches:
                await app.send_many(batch)
            await shop.counter.wait()
            return len(batches) * 500 / (time.perf_counter() - start)

    return Contest(
        "in-process, send to settled",
        "matador",
        {"matador": lambda: asyncio.run(ours()), "the bar of 50,000/s": lambda: 50_000.0},
        (Bar("the bar of 50,000/s", 1),),
    )


class TypedEnvelope(msgspec.Struct, frozen=True):
    """An envelope as bare msgspec would have it."""

    id: str
    data: shop.OrderPlaced
    docket: Docket


def codec(rounds: int = 100_000) -> Contest:
    """An envelope to bytes and back, its payload from and to the user's type.

    As a plain send does it: with all of the docket but its time prepared once. By default a payload
    is checked against its type before it is sent, by reading it again: that is more than bare
    msgspec does, so it is shown apart; and so is a docket that is encoded anew each time, as it is
    for a send with options.
    """
    clock = SystemClock()
    payload = shop.payloads(1)[0]
    event = event_type_of(shop.OrderPlaced)
    docket = Docket(
        event_key="order.placed",
        target_subscriber="count",
        created_at=datetime.now(UTC),
        attempts=1,
        importance="should-investigate",
        event_description="A customer placed an order.",
        correlation_id="3f1c",
    )
    bare = TypedEnvelope(clock.new_id(), payload, docket)
    write, read = msgspec.json.Encoder().encode, msgspec.json.Decoder(TypedEnvelope).decode

    def ours(codec: JsonCodec) -> Callable[[], None]:
        stencil = codec.prepare(msgspec.structs.replace(docket, correlation_id=None))

        def round_trip() -> None:
            raw = codec.encode_payload(event, payload)
            encoded = stencil(bare.id, raw, docket.created_at, None, docket.correlation_id, {})
            decoded = codec.decode(encoded.body, encoded.headers, clock)
            codec.decode_payload(event, decoded.data)

        return round_trip

    def unprepared(codec: JsonCodec) -> Callable[[], None]:
        def round_trip() -> None:
            raw = codec.encode_payload(event, payload)
            encoded = codec.encode(Envelope(bare.id, raw, docket))
            decoded = codec.decode(encoded.body, encoded.headers, clock)
            codec.decode_payload(event, decoded.data)

        return round_trip

    def rate(call: Callable[[], object]) -> Callable[[], float]:
        def turn() -> float:
            best = float("inf")
            for _ in range(10):  # the quickest tenth: what the code costs, not the neighbours
                start = time.perf_counter()
                for _ in range(rounds // 10):
                    call()
                best = min(best, time.perf_counter() - start)
            return rounds / 10 / best

        return turn

    return Contest(
        "envelope encode + decode",
        "matador, not checked at send",
        {
            "matador, not checked at send": rate(ours(JsonCodec(check_sends=False))),
            "matador, the default": rate(ours(JsonCodec())),
            "matador, the default, with options": rate(unprepared(JsonCodec())),
            "bare msgspec": rate(lambda: read(write(bare))),
        },
        (Bar("bare msgspec", 0.6),),
    )


def importing() -> Contest:
    """A fresh interpreter that imports matador, against one that imports asyncio alone."""

    # As it is installed: with compiled files, which the first start writes and the others use.
    environ = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}

    def start(code: str) -> Callable[[], float]:
        def turn() -> float:
            times: list[float] = []
            for _ in range(5):
                begin = time.perf_counter()
                subprocess.run([sys.executable, "-c", code], check=True, env=environ)
                times.append(time.perf_counter() - begin)
            return 1 / min(times)

        return turn

    return Contest(
        "start of an interpreter",
        "import matador",
        {"import matador": start("import matador"), "import asyncio": start("import asyncio")},
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--messages", type=int, default=20_000)
    chosen = parser.parse_args()
    environment.python()
    contests = [
        sqlite_send(chosen.messages),
        sqlite_consume(chosen.messages),
        journal(chosen.messages),
        in_process(chosen.messages * 2),
        codec(),
        importing(),
    ]
    outcomes = [hold(contest, chosen.rounds) for contest in contests]
    print(table(outcomes))
    starts = outcomes[-1]
    cost = 1 / starts.rate("import matador") - 1 / starts.rate("import asyncio")
    print(f"\nimporting matador costs {cost * 1000:.0f} ms more than importing asyncio")
    return 0 if all(outcome.met for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
