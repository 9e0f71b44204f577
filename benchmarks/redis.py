"""Redis: Matador against the raw client and the libraries that teams use instead.

    script/benchmark redis [--rounds 3] [--messages 15000] [--only CONTEST] [--without PEER]

On a server that this starts, on a port of its own, **without persistence**: what is measured is the
libraries, not the disk. One producer process, one worker process, JSON payloads of about 200 bytes,
each send confirmed, each message acknowledged after a handler that counts. Ours, the raw client,
FastStream and Taskiq use streams; the others what they have.

- **send, concurrent**: 64 callers that each await their own confirmation. The raw client sends
  pipelines of 64, bullmq and BullMQ add 500 jobs at a time, libraries without asyncio send by 8
  threads.
- **send, one by one**: the next one is sent when the one before is confirmed; the median send.
- **consume**: a full queue, 64 at once (libraries with threads: 8). The raw client reads,
  acknowledges and deletes 64 at a time.
- **latency**: from before the send in one process to the handler in another, 200 messages a second.

BullMQ runs on Node and takes part in all but latency. arq polls every half second by default, and
is measured so. The table is Markdown; the exit code is 1 if a bar is not met.
"""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator

from benchmarks.brokers import Contestant, compete, parse

CONTESTANTS = (
    Contestant("matador", "ours"),
    Contestant("raw redis-py", "raw", "redis_raw.py"),
    Contestant(
        "BullMQ (Node)",
        "node",
        "bullmq.mjs",
        share={"send-many": 0.5, "consume": 0.3},
        contests=("send-many", "send-one", "consume"),
    ),
    Contestant(
        "FastStream", "peer", "faststream_redis.py", share={"send-many": 0.25, "consume": 0.1}
    ),
    Contestant(
        "Taskiq", "peer", "taskiq_redis_streams.py", share={"send-many": 0.1, "consume": 0.08}
    ),
    Contestant("SAQ", "peer", "saq_redis.py", "saq.txt", {"send-many": 0.15, "consume": 0.05}),
    Contestant("arq", "peer", "arq_redis.py", "arq.txt", {"send-many": 0.08, "consume": 0.04}),
    Contestant("Dramatiq", "peer", "dramatiq_redis.py", share={"send-many": 0.1, "consume": 0.08}),
    Contestant("Celery", "peer", "celery_app.py", share={"send-many": 0.05, "consume": 0.04}),
    Contestant(
        "bullmq (Python)", "peer", "bullmq_redis.py", share={"send-many": 0.3, "consume": 0.06}
    ),
)


@contextlib.contextmanager
def server() -> Generator[str]:
    """A Redis that stores nothing on disk, for as long as the benchmark runs; its URL."""
    program = shutil.which("redis-server")
    if program is None:
        raise SystemExit("there is no redis-server; script/brokers up redis installs it")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        options = f"--bind 127.0.0.1 --port {port} --dir {folder} --appendonly no"
        process = subprocess.Popen(
            [program, *options.split(), "--save", ""], stdout=subprocess.DEVNULL
        )
        try:
            _wait_until_it_answers(port)
            yield f"redis://127.0.0.1:{port}/0"
        finally:
            process.terminate()
            process.wait(10)


def _wait_until_it_answers(port: int) -> None:
    for _ in range(100):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.05)
    raise SystemExit("the Redis of the benchmark does not start")


def main() -> int:
    chosen = parse(__doc__, [one.name for one in CONTESTANTS if one.role != "ours"], 15_000)
    if chosen.url:
        return compete(CONTESTANTS, chosen.url, chosen)
    with server() as url:
        return compete(CONTESTANTS, url, chosen)


if __name__ == "__main__":
    sys.exit(main())
