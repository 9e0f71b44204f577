"""Memory over a long run: does the worker's, or the server's, grow with the messages handled?

    script/benchmark memory [--url sqlite:///…] [--messages 1000000]

One process sends, never more than some thousands ahead of a worker process that handles. Each line
is what both hold after a tenth of the messages. Without ``--url``: on a Redis that this starts,
with its append-only file. The exit code is 1 if the second half holds a tenth more than the first.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chaos.servers import Server

from benchmarks import shop
from matador import Matador
from matador.testing import wait_for
from matador.transports.base import Measuring

_AHEAD = 5_000
_CHUNK = 1_000
_SAMPLES = 10
_MIB = 1024 * 1024


@dataclass(frozen=True)
class Sample:
    """What was held after so many messages; None: not known."""

    handled: int
    worker: float
    server: float | None


def run(url: str, messages: int) -> list[Sample]:
    """Send, have a process handle, and look at both now and then."""
    worker = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.memory", "--worker", "--url", url],
        stdout=subprocess.DEVNULL,
    )
    try:
        return asyncio.run(_run(url, messages, worker.pid))
    finally:
        worker.terminate()
        worker.wait(30)


async def _run(url: str, messages: int, worker: int) -> list[Sample]:
    samples: list[Sample] = []
    async with shop.make_app(url, consume=False) as app:
        begun = time.perf_counter()
        for tenth in range(1, _SAMPLES + 1):
            await _send(app, messages // _SAMPLES)
            await _until_left(app, 0)
            handled = tenth * (messages // _SAMPLES)
            sample = Sample(handled, _resident(worker), _server_memory(url))
            samples.append(sample)
            rate = sample.handled / (time.perf_counter() - begun)
            server = "–" if sample.server is None else f"{sample.server:.1f} MiB"
            print(
                f"{sample.handled:>9,} handled: worker {sample.worker:.1f} MiB, "
                f"server {server}, {rate:,.0f}/s",
                flush=True,
            )
    return samples


async def _send(app: Matador, number: int) -> None:
    for start in range(0, number, _CHUNK):
        await app.send_many(shop.payloads(min(_CHUNK, number - start)))
        await _until_left(app, _AHEAD)


async def _until_left(app: Matador, most: int) -> None:
    """Wait until the worker has left no more than so many."""
    transport = app.transport
    assert isinstance(transport, Measuring)

    async def few() -> bool:
        return (await transport.depth("bench.events")).total <= most

    await wait_for(few, timeout=600, message="the worker")


def _resident(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise SystemExit("the worker has no memory: it ended")


def _server_memory(url: str) -> float | None:
    if not url.startswith(("redis://", "bullmq://")):
        return None
    import redis

    client_class: Any = redis.Redis
    with client_class.from_url(f"redis://{url.split('://', 1)[1].split('?', 1)[0]}") as client:
        return client.info("memory")["used_memory"] / _MIB


@contextlib.contextmanager
def _own_redis() -> Generator[str]:
    if shutil.which("redis-server") is None:
        raise SystemExit("there is no redis-server; script/brokers up redis installs it")
    server = Server("redis")
    server.start()
    try:
        yield f"redis://127.0.0.1:{server.port}/0"
    finally:
        server.discard()


def _is_flat(values: list[float]) -> bool:
    half = len(values) // 2
    return statistics.mean(values[half:]) <= 1.1 * statistics.mean(values[:half])


async def _work(url: str) -> None:
    async with shop.make_app(url, consume=True):
        await asyncio.Event().wait()


def main() -> int:
    """Run, and say whether memory stayed as it was."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url")
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        with contextlib.suppress(KeyboardInterrupt):
            asyncio.run(_work(given.url))
        return 0
    with _own_redis() if given.url is None else contextlib.nullcontext(given.url) as url:
        samples = run(url, given.messages)
    # The first tenth is the warm-up.
    held = {
        "worker": [one.worker for one in samples[1:]],
        "server": [one.server for one in samples[1:] if one.server is not None],
    }
    grew = [name for name, values in held.items() if values and not _is_flat(values)]
    print(f"grew: {', '.join(grew)}" if grew else "flat")
    return 1 if grew else 0


if __name__ == "__main__":
    sys.exit(main())
