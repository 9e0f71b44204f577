"""What every contestant on a broker does in the same way: send, consume, measure how long it takes.

A script defines a contestant and calls ``run_async`` or ``run_sync`` with it. It is started as

    SCRIPT send-many|consume URL NUMBER               prints messages per second, and the CPU time
                                                      of the process for each, in microseconds
    SCRIPT send-one URL NUMBER                        prints messages per second
    SCRIPT latency URL NUMBER                         prints p50 and p99 in milliseconds

Each ends with a check: all that was sent is stored, or all that was stored was handled and
acknowledged. If not, the script fails, and prints no figure.

Sending by many callers is measured once the first ``warm_up`` messages are confirmed: what happens
only once, when a client connects or sends for the first time, does not count. An idempotent
producer of librdkafka waits half a second for its number, and aiokafka has it when it is connected.
On Kafka the first message in a new partition takes about 10 ms. A client that fills one partition
after the other meets that later than one that sends to all of them.
Sending one by one is the inverse of the median time that a send takes: who waits for each send is
slowed down by whatever else the machine does, and a median leaves that out. Consuming is measured
from the first message handled to the last, so that it does not matter how long a worker takes to
start. Latency is measured between two processes, from before the send to the
handler, at a low rate; the first fifth of the messages warms up and is not counted.
"""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypeAlias

CALLERS = 64
CONCURRENCY = 64
WARM_UP = 64
WARM_UP_OF_PARTITIONS = 4000
RATE = 200  # messages a second while latency is measured
PATIENCE = 120.0

Payload: TypeAlias = dict[str, Any]
Handle: TypeAlias = Callable[[Payload], None]


class AsyncPeer(Protocol):
    """A contestant that runs on asyncio. ``fresh`` and ``left`` may take their time."""

    async def fresh(self, url: str) -> None:
        """Remove whatever is there from before."""
        ...

    async def connect(self) -> None:
        """Get ready to send."""
        ...

    async def send(self, payload: Payload) -> object:
        """Send one, and wait until it is confirmed."""
        ...

    async def send_many(self, payloads: list[Payload]) -> object:
        """Send all, each confirmed, in the quickest way there is."""
        ...

    async def work(self, handle: Handle) -> None:
        """Start handling messages, ``CONCURRENCY`` at once; return when ready."""
        ...

    async def close(self) -> None:
        """Stop working and disconnect."""
        ...

    async def left(self) -> int:
        """How many messages the queue holds that are not acknowledged. Called when closed."""
        ...


class SyncPeer(Protocol):
    """The same for a contestant that knows threads only."""

    def fresh(self, url: str) -> None: ...
    def connect(self) -> None: ...
    def send(self, payload: Payload) -> object: ...
    def fill(self, payloads: list[Payload]) -> object: ...
    def work(self, handle: Handle) -> None: ...
    def close(self) -> None: ...
    def left(self) -> int: ...


def payloads(number: int) -> list[Payload]:
    """Different payloads, each of about 200 bytes of JSON."""
    return [
        {
            "order_id": f"order-{n:08d}",
            "amount": n,
            "customer": f"customer-{n % 1000:04d}@example.com",
            "note": "x" * 90,
        }
        for n in range(number)
    ]


class Counter:
    """Counts what is handled, from any thread that holds the interpreter, and when."""

    def __init__(self, expected: int) -> None:
        self.expected = expected
        self.count = 0
        self.first = 0.0
        self.last = 0.0
        self.used = 0.0
        self.finished = threading.Event()

    def handle(self, payload: Payload) -> None:
        """One more."""
        if self.count == 0:
            self.first = time.perf_counter()
            self.used = -time.process_time()
        self.count += 1
        if self.count == self.expected:
            self.last = time.perf_counter()
            self.used += time.process_time()
            self.finished.set()

    @property
    def rate(self) -> float:
        """Messages per second between the first and the last."""
        return (self.expected - 1) / (self.last - self.first)

    @property
    def cpu(self) -> float:
        """Microseconds of CPU time of this process a message."""
        return self.used / (self.expected - 1) * 1e6


class Effort:
    """What sending takes, from now on."""

    def __init__(self) -> None:
        self._began = time.perf_counter()
        self._used = time.process_time()

    def figures(self, messages: int) -> list[float]:
        """Messages per second, and microseconds of CPU time of this process a message."""
        used = time.process_time() - self._used
        return [messages / (time.perf_counter() - self._began), used / messages * 1e6]


class Stopwatch:
    """Notes how long each message took."""

    def __init__(self, expected: int) -> None:
        self.expected = expected
        self.times: list[float] = []
        self.finished = threading.Event()

    def handle(self, payload: Payload) -> None:
        """It was sent when it says it was."""
        self.times.append(time.monotonic() - float(payload["note"].partition(" ")[0]))
        if len(self.times) == self.expected:
            self.finished.set()

    @property
    def percentiles(self) -> tuple[float, float]:
        """p50 and p99 in milliseconds."""
        counted = sorted(self.times[self.expected // 5 :])
        return (
            counted[len(counted) // 2] * 1000,
            counted[min(len(counted) - 1, round(len(counted) * 0.99))] * 1000,
        )


def stamped(payload: Payload) -> Payload:
    """A payload that says when it is sent: on a clock that all processes share."""
    return {**payload, "note": f"{time.monotonic():.9f} ".ljust(90, "x")}


def _schedule(number: int) -> Iterator[tuple[Payload, float]]:
    """Each payload, and how long to wait before it is sent."""
    start = time.monotonic()
    for place, payload in enumerate(payloads(number)):
        yield payload, max(0.0, start + place / RATE - time.monotonic())


def _start_producer(arguments: list[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, *arguments], stdin=subprocess.DEVNULL)


def warm_up(url: str, number: int) -> int:
    """How many messages are sent before it is measured."""
    few = WARM_UP_OF_PARTITIONS if url.startswith("kafka") else WARM_UP
    return min(few, number // 2)


def check(what: str, expected: int, found: int) -> None:
    """Fail unless all is there."""
    if expected != found:
        raise SystemExit(f"{what}: {found}, but there should be {expected}")


def report(*figures: float) -> None:
    """Print the result."""
    print(*(f"{figure:.3f}" for figure in figures), flush=True)


async def by_callers(send: Callable[[Payload], Any], all_: list[Payload]) -> None:
    """Many callers at once, each awaiting its own confirmation."""
    waiting = iter(all_)

    async def caller() -> None:
        for payload in waiting:
            await send(payload)

    await asyncio.gather(*(caller() for _ in range(CALLERS)))


# -- asyncio --------------------------------------------------------------------------------------


def run_async(peer: AsyncPeer, command: list[str] | None = None) -> None:
    """Do what the command line asks for; ``command`` is how this script is started."""
    action, url, number = sys.argv[1], sys.argv[2], int(sys.argv[3])
    again = [*(command or [sys.argv[0]]), "produce", url, str(number), *sys.argv[4:]]
    asyncio.run(_perform(peer, action, url, number, again))


async def _perform(
    peer: AsyncPeer, action: str, url: str, number: int, producer: list[str]
) -> None:
    if action == "produce":
        await peer.connect()
        for payload, wait in _schedule(number):
            await asyncio.sleep(wait)
            await peer.send(stamped(payload))
        await peer.close()
        return
    await peer.fresh(url)
    if action == "latency":
        watch = Stopwatch(number)
        await peer.work(watch.handle)
        process = _start_producer(producer)
        await _until(watch.finished)
        check("the producer's exit code", 0, await asyncio.to_thread(process.wait, 20))
        await peer.close()
        check("messages left", 0, await _settled(peer, 0))
        report(*watch.percentiles)
        await peer.fresh(url)
        return
    all_ = payloads(number)
    await peer.connect()
    if action == "send-one":
        times: list[float] = []
        for payload in all_:
            start = time.perf_counter()
            await peer.send(payload)
            times.append(time.perf_counter() - start)
        found = [1 / statistics.median(times)]
    else:
        first = warm_up(url, number)
        await peer.send_many(all_[:first])
        effort = Effort()
        await peer.send_many(all_[first:])
        found = effort.figures(number - first)
    if action == "consume":
        counter = Counter(number)
        await peer.work(counter.handle)
        await _until(counter.finished)
        await peer.close()
        check("messages handled", number, counter.count)
        check("messages left", 0, await _settled(peer, 0))
        report(counter.rate, counter.cpu)
    else:
        await peer.close()
        check("messages stored", number, await _settled(peer, number))
        report(*found)
    await peer.fresh(url)


async def _until(event: threading.Event) -> None:
    end = time.monotonic() + PATIENCE
    while not event.is_set():
        if time.monotonic() > end:
            raise SystemExit("not finished in time")
        await asyncio.sleep(0.02)


async def _settled(peer: AsyncPeer, expected: int) -> int:
    """What is left once the broker's count has caught up."""
    left = -1
    for _ in range(100):
        left = await peer.left()
        if left == expected:
            break
        await asyncio.sleep(0.1)
    return left


# -- threads --------------------------------------------------------------------------------------


def run_sync(peer: SyncPeer) -> None:
    """Do what the command line asks for."""
    action, url, number = sys.argv[1], sys.argv[2], int(sys.argv[3])
    if action == "produce":
        peer.connect()
        for payload, wait in _schedule(number):
            time.sleep(wait)
            peer.send(stamped(payload))
        peer.close()
        return
    peer.fresh(url)
    if action == "latency":
        watch = Stopwatch(number)
        peer.work(watch.handle)
        process = _start_producer([sys.argv[0], "produce", *sys.argv[2:]])
        if not watch.finished.wait(PATIENCE):
            raise SystemExit("not finished in time")
        check("the producer's exit code", 0, process.wait(20))
        peer.close()
        check("messages left", 0, _settled_sync(peer, 0))
        report(*watch.percentiles)
        peer.fresh(url)
        return
    all_ = payloads(number)
    peer.connect()
    if action == "consume":
        peer.fill(all_)
        counter = Counter(number)
        peer.work(counter.handle)
        if not counter.finished.wait(PATIENCE):
            raise SystemExit("not finished in time")
        peer.close()
        check("messages handled", number, counter.count)
        check("messages left", 0, _settled_sync(peer, 0))
        report(counter.rate, counter.cpu)
    else:
        if action == "send-one":
            times: list[float] = []
            for payload in all_:
                start = time.perf_counter()
                peer.send(payload)
                times.append(time.perf_counter() - start)
            found = [1 / statistics.median(times)]
        else:
            first = warm_up(url, number)
            by_threads(peer.send, all_[:first])
            effort = Effort()
            by_threads(peer.send, all_[first:])
            found = effort.figures(number - first)
        peer.close()
        check("messages stored", number, _settled_sync(peer, number))
        report(*found)
    peer.fresh(url)


def by_threads(send: Callable[[Payload], Any], all_: list[Payload], threads: int = 8) -> None:
    """A few threads at once: more only fight for the interpreter."""

    def caller(own: list[Payload]) -> None:
        for payload in own:
            send(payload)

    workers = [threading.Thread(target=caller, args=(all_[n::threads],)) for n in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


def _settled_sync(peer: SyncPeer, expected: int) -> int:
    left = -1
    for _ in range(100):
        left = peer.left()
        if left == expected:
            break
        time.sleep(0.1)
    return left
