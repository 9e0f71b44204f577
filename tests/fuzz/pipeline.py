"""Spoiled messages through a whole worker: a real queue in SQLite, every codec, good neighbours.

    .venv/bin/python -m tests.fuzz.pipeline --count 100000 --seed 1

Every message must end handled or among the right dead letters with its bytes kept, every good one
between them must be handled, and the worker must still be there afterwards.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from time import perf_counter
from typing import Any

import msgspec
from tests.fuzz.corpus import CORPUS, Sample
from tests.fuzz.mutations import mutate
from tests.support.envelopes import CODECS, STAMP
from tests.support.payloads import KINDS

from matador import Hooks, Matador, Schema, Topology
from matador.model.message import Message
from matador.model.subscriber import Subscriber
from matador.model.topology import dead_letter_name
from matador.policy.retry import SendToDeadLetters
from matador.runtime.facts import Attempt
from matador.testing import wait_for
from matador.transports.sqlite import SqliteTransport

NEIGHBOUR_EVERY = 10
BATCH = 500
TOPOLOGY = Topology("fuzz", queues=["events"])
QUEUE = "fuzz.events"
NAMES = ("email-receipt", "send-email", "handle")


class Watch(Hooks):
    """Counts how messages end, and keeps what is needed to find them again."""

    def __init__(self) -> None:
        self.handled: Counter[str] = Counter()
        self.malformed: Counter[bytes] = Counter()
        self.refused: dict[str, Counter[bytes]] = {
            "unhandled": Counter(),
            "undeliverable": Counter(),
        }
        self.unexpected: list[str] = []

    @property
    def total(self) -> int:
        refused = sum(counter.total() for counter in self.refused.values())
        return self.handled.total() + self.malformed.total() + refused

    def on_worker_success(self, event: Attempt) -> None:
        self.handled[event.envelope.id] += 1

    def on_worker_error(self, event: Attempt) -> None:
        if event.ran or not isinstance(event.decision, SendToDeadLetters):
            self.unexpected.append(f"{type(event.error).__name__}: {event.error}")
            return
        self.refused[event.decision.kind][bytes(event.envelope.data)] += 1

    def on_decode_error(self, event: Attempt) -> None:
        if "could not be processed" in str(event.error):
            self.unexpected.append(str(event.error))
        self.malformed[event.delivery.body] += 1


@dataclass
class Outcome:
    """What a run has seen; ``problems`` must be empty."""

    outcomes: Counter[str] = field(default_factory=Counter[str])
    problems: list[str] = field(default_factory=list[str])


async def run(file: Path, *, count: int, seed: int) -> Outcome:
    """Send ``count`` spoiled messages, a good one after every tenth, by one worker a codec."""
    found = Outcome()
    groups: dict[str, list[Sample]] = {name: [] for name in CODECS}
    for number in range(count):
        random = Random(f"{seed}/{number}")
        sample, _ = mutate(random.choice(CORPUS), random)
        groups[sample.codec].append(sample)
    for codec, samples in groups.items():
        await _run_codec(file.with_suffix(f".{codec}.db"), codec, samples, found)
    return found


async def _run_codec(file: Path, codec: str, samples: list[Sample], found: Outcome) -> None:
    watch = Watch()
    transport = SqliteTransport(file, synchronous="NORMAL")
    app = Matador(
        transport,
        schema=Schema(
            {kind.order: [_subscriber(name) for name in NAMES] for kind in KINDS.values()}
        ),
        topology=TOPOLOGY,
        consume_from=["events"],
        codec=CODECS[codec],
        hooks=watch,
    )
    good = next(sample for sample in CORPUS if sample.codec == codec)
    sent, refused = 0, 0
    neighbours: set[str] = set()
    async with app:
        for start in range(0, len(samples), BATCH):
            batch: list[Message] = []
            for sample in samples[start : start + BATCH]:
                batch.append(_message(sample, f"{codec}-{sent}"))
                sent += 1
                if sent % NEIGHBOUR_EVERY == 0:
                    neighbour = f"good-{sent}"
                    neighbours.add(neighbour)
                    batch.append(_message(_renamed(good, codec, neighbour), neighbour))
            refused += await _store(transport, batch, found)

        async def finished() -> bool:
            depth = await transport.depth(QUEUE)
            return depth.total == 0 and app.state.is_idle

        try:
            await wait_for(finished, timeout=30 + sent / 100)
        except TimeoutError as error:
            found.problems.append(f"{codec}: {error}")
        if watch.total != sent + len(neighbours) - refused:
            found.problems.append(f"{codec}: {watch.total} of {sent + len(neighbours)} have ended")
        depth = await transport.depth(QUEUE)
        found.problems += [f"{codec}: {text}" for text in watch.unexpected]
        if depth.total:
            found.problems.append(f"{codec}: {depth.total} messages are left in the queue")
        if missing := neighbours - set(watch.handled):
            found.problems.append(f"{codec}: {len(missing)} good messages were not handled")
        for kind in ("unhandled", "undeliverable"):
            letters = [one async for one in transport.browse(dead_letter_name(QUEUE, kind))]
            malformed = [one.body for one in letters if str(one.reason).startswith("malformed: ")]
            refused = [
                bytes(CODECS[codec].decode(one.body, one.headers, STAMP).data)
                for one in letters
                if not str(one.reason).startswith("malformed: ")
            ]
            _compare(found, f"{codec} {kind}: payloads", refused, watch.refused[kind])
            if kind == "undeliverable":
                _compare(found, f"{codec}: malformed bytes", malformed, watch.malformed)
    originals = {sample.body for sample in samples}
    if strangers := set(watch.malformed) - originals:
        found.problems.append(f"{codec}: {len(strangers)} malformed bodies were never sent")
    found.outcomes["handled"] += watch.handled.total()
    found.outcomes["malformed"] += watch.malformed.total()
    for kind, counter in watch.refused.items():
        found.outcomes[kind] += counter.total()


async def _store(transport: SqliteTransport, batch: list[Message], found: Outcome) -> int:
    """Store a batch. Headers that no file could hold are refused by a clear error: how many."""
    errors = [error for error in await transport.send(batch) if error is not None]
    strange = [error for error in errors if "UnicodeEncodeError" not in str(error)]
    found.problems += [f"could not be stored: {error}" for error in strange]
    found.outcomes["refused at send"] += len(errors)
    return len(errors)


def _compare(found: Outcome, what: str, kept: Iterable[bytes], told: Counter[bytes]) -> None:
    difference = Counter(kept)
    difference.subtract(told)
    wrong = {body: times for body, times in difference.items() if times}
    if wrong:
        body, times = next(iter(wrong.items()))
        found.problems.append(f"{what}: {len(wrong)} differ, {times:+} times {body[:200]!r}")


def _subscriber(name: str) -> Subscriber[Any]:
    async def handle(envelope: object) -> None:
        """Does nothing: that it is called is enough."""

    return Subscriber(name=name, description="Handle it.", callback=handle, idempotent="yes")


def _message(sample: Sample, id_: str) -> Message:
    return Message(id_, QUEUE, sample.body, sample.headers)


def _renamed(sample: Sample, codec: str, id_: str) -> Sample:
    envelope = CODECS[codec].decode(sample.body, sample.headers, STAMP)
    encoded = CODECS[codec].encode(msgspec.structs.replace(envelope, id=id_))
    return sample._replace(body=encoded.body, headers=dict(encoded.headers))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)  # a line for every message is of no use here
    started = perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        found = asyncio.run(run(Path(folder) / "fuzz.db", count=options.count, seed=options.seed))
    for name, times in found.outcomes.most_common():
        print(f"  {times:>9,}  {name}")
    for problem in found.problems[:20]:
        print(f"PROBLEM {problem}")
    print(f"{options.count:,} messages in {perf_counter() - started:.1f} s", end=", ")
    print(f"{len(found.problems)} problems")
    return 1 if found.problems else 0


if __name__ == "__main__":
    sys.exit(main())
