"""F27 for a lake that is filled from Kafka: killed again and again, it has every event once.

    script/brokers up kafka
    python -m chaos.lake --kafka [--envelopes 20000] [--kills 5] [--seed 1]

``envelopes`` are sent to a queue at first, and a few a second from then on, while a worker handles
them: one in ten fails at first and is retried, so that it is in the topic several times. Records of
another program are among them. Processes ingest the topic with Spark. Each kills itself and its
children with SIGKILL at a random moment within the time that a commit of ``events`` or
``quarantine`` takes, in one that was chosen by dice; every fifth at any moment. It says when a
commit begins and ends, so it is known where it died. Two processes at once finish the ingest; then
what Polars and pyarrow find is compared with what was sent.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars
from confluent_kafka import Producer

from chaos.processes import ROOT
from matador import (
    DoRetry,
    Envelope,
    Matador,
    Schema,
    StandardRetryPolicy,
    Topology,
    WorkQueue,
    event,
    subscriber,
)
from matador.spark import Lake, spark_session
from matador.spark.runtime.executors import run_tasks
from matador.spark.tables.delta import DeltaTable

_READY = "ready"
_BEGUN, _ENDED = "begun", "ended"
_BATCH = 200
_FOREIGN = b"not an envelope"


@event("parcel.sent", description="A parcel left.")
@dataclass(frozen=True)
class ParcelSent:
    """What is sent."""

    number: int


@subscriber(description="Fails one time in ten, and then succeeds.", idempotent="yes")
async def tell(envelope: Envelope[ParcelSent]) -> None:
    """Handle a parcel."""
    if envelope.data.number % 10 == 0 and envelope.docket.attempts < 3:
        raise DoRetry("nobody is there")


def application(url: str, namespace: str) -> Matador:
    """The application whose topic is ingested."""
    return Matador(
        url,
        schema=Schema({ParcelSent: [tell]}),
        topology=Topology(namespace, queues=[WorkQueue("events", concurrency=4)]),
        consume_from=["events"],
        retry=StandardRetryPolicy(base_delay=0.1, max_delay=0.2),
    )


@dataclass(frozen=True, slots=True)
class Played:
    """How a run went: ids that were sent, rows that are there, kills and how many were inside."""

    sent: int
    foreign: int
    by_polars: tuple[int, int]
    by_pyarrow: tuple[int, int]
    same_ids: bool
    quarantined: int
    records: int
    kills: int
    inside: int

    @property
    def exact(self) -> bool:
        """Is everything there, once?"""
        found = self.by_polars == self.by_pyarrow == (self.sent, self.sent)
        return self.same_ids and found and self.quarantined == self.foreign


def play(folder: Path, url: str, *, envelopes: int, kills: int, seed: int = 1) -> Played:
    """Send, handle, ingest and kill; then compare."""
    chance = random.Random(seed)
    logging.getLogger("matador").setLevel(logging.ERROR)  # retries are what this is about
    namespace = f"chaos-{uuid.uuid4().hex[:8]}"
    address = f"{url}?partitions=3"
    lake = folder / "lake"
    inside = 0
    with _sending(address, namespace, envelopes) as traffic:
        for number in range(kills):
            fell = _killed(address, namespace, lake, chance, in_commit=number % 5 != 4)
            inside += fell
            print(f"  kill {number + 1}: {'inside a commit' if fell else 'elsewhere'}", flush=True)
    last = [_started(address, namespace, lake, "once") for _ in range(2)]
    said = [one.communicate()[0] for one in last]
    if any(one.returncode for one in last):
        raise RuntimeError(f"an ingest failed: {said}")
    ids = traffic.ids
    events = polars.scan_delta(lake / "events").select("id").collect()
    layout = Lake(lake).layout
    found = layout.table("events").open().read(["id"]).column(0).to_pylist()
    quarantined = layout.table("quarantine").open().read(["source"]).num_rows
    records = _records_in(address, namespace)
    return Played(
        len(ids),
        traffic.foreign,
        (events.height, events.n_unique()),
        (len(found), len(set(found))),
        set(found) == set(ids),
        quarantined,
        records,
        kills,
        inside,
    )


def _records_in(url: str, namespace: str) -> int:
    log: Any = application(url, namespace).transport
    places = log.log().partitions([f"{namespace}.events"])
    return sum(one.end - one.start for one in places)


# -- traffic ---------------------------------------------------------------------------------------


class _Traffic:
    def __init__(self) -> None:
        self.ids: list[str] = []
        self.foreign = 0
        self.over = threading.Event()

    async def run(self, url: str, namespace: str, envelopes: int, begun: threading.Event) -> None:
        """Send and handle until it is over."""
        async with application(url, namespace) as app:
            servers = url.partition("://")[2].partition("?")[0]
            producer = Producer({"bootstrap.servers": servers})
            while not self.over.is_set():
                count = 20 if begun.is_set() else 500
                results = await app.send_many([ParcelSent(one) for one in range(count)])
                self.ids += [one.id for result in results for one in result.messages]
                producer.produce(f"{namespace}.events", _FOREIGN)
                self.foreign += 1
                if len(self.ids) >= envelopes:
                    begun.set()
                    await asyncio.sleep(0.5)  # a trickle, so that there is always something new
            if producer.flush(30):
                raise RuntimeError("records of another program were not stored")


@contextmanager
def _sending(url: str, namespace: str, envelopes: int) -> Generator[_Traffic]:
    traffic, begun = _Traffic(), threading.Event()
    errors: list[BaseException] = []

    def run() -> None:
        try:
            asyncio.run(traffic.run(url, namespace, envelopes, begun))
        except BaseException as error:
            errors.append(error)
            begun.set()
            raise

    thread = threading.Thread(target=run)
    thread.start()
    try:
        begun.wait()
        yield traffic
    finally:
        traffic.over.set()
        thread.join()
    if errors:
        raise RuntimeError("the traffic failed") from errors[0]


# -- ingests ---------------------------------------------------------------------------------------


def _started(url: str, namespace: str, lake: Path, how: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "chaos.lake_kafka", url, namespace, str(lake), how]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, start_new_session=True, cwd=ROOT
    )


def _killed(url: str, namespace: str, lake: Path, chance: random.Random, in_commit: bool) -> bool:
    """Have an ingest die; True if a commit had neither ended nor failed then."""
    how = f"{chance.randrange(3, 7)}:{chance.random()}"
    with _started(url, namespace, lake, how if in_commit else "0:0") as process:
        assert process.stdout is not None
        if process.stdout.readline().strip() != _READY:
            raise RuntimeError(f"the ingest did not start: exit code {process.wait()}")
        if not in_commit:
            time.sleep(chance.uniform(0.2, 2.0))
            os.killpg(process.pid, signal.SIGKILL)
        said = process.stdout.read().splitlines()
        if process.wait() != -signal.SIGKILL:
            raise RuntimeError(f"the ingest failed: exit code {process.returncode}")
    return bool(said) and said[-1].startswith(_BEGUN)


def main(url: str, namespace: str, lake: str, how: str) -> None:
    """Ingest all that is there; or follow, and die a while after a commit has begun."""
    spark = spark_session("local[2]")
    run_tasks(spark, _warm_up, 2)
    print(_READY, flush=True)
    app, target = application(url, namespace), Lake(lake, spark=spark)
    if how == "once":
        target.ingest(app, batch_size=20 * _BATCH)
    else:
        number, part = how.split(":")
        _die_in_a_commit(int(number), float(part))
        target.ingest(app, batch_size=_BATCH, follow=True, interval=0.1)


def _die_in_a_commit(number: int, part: float) -> None:
    """Die after a part of the time that the shortest commit so far has taken."""
    commit, begun, shortest = DeltaTable.commit, 0, 1.0

    def telling(self: DeltaTable, *given: Any, **options: Any) -> int:
        nonlocal begun, shortest
        if self.name not in ("events", "quarantine"):
            return commit(self, *given, **options)
        begun += 1
        print(_BEGUN, self.name, flush=True)
        if begun == number:  # with Java and its workers
            threading.Timer(part * shortest, os.killpg, (os.getpid(), signal.SIGKILL)).start()
        started = time.monotonic()
        version = commit(self, *given, **options)
        shortest = min(shortest, time.monotonic() - started)
        print(_ENDED, self.name, flush=True)
        return version

    DeltaTable.commit = telling


def _warm_up(number: int) -> bytes:
    return str(number).encode()


if __name__ == "__main__":
    main(*sys.argv[1:])
