"""RPC on RabbitMQ: Matador against aio-pika's RPC and raw pika with direct reply-to.

    script/benchmark rpc [--rounds 3] [--calls 4000] [--url URL]

One client process, one server process, JSON of about 200 bytes, a durable queue, each request
acknowledged after its reply. Ours has requests and replies confirmed, checks deadlines and counts;
raw pika does none of that.

- **one by one**: the next call is made when the one before has returned; the median call.
- **64 callers**: each makes its next call when its last has returned.

The table is Markdown; below it is the CPU time of both processes. The exit code is 1 if a bar is
not met.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable

from benchmarks.peers import environment
from benchmarks.rabbitmq import server
from benchmarks.rounds import Bar, Contest, hold, table

OURS, RAW, PEER = "matador.rpc", "raw pika", "aio-pika RPC"
SCRIPTS = {RAW: "pika_rpc.py", PEER: "aio_pika_rpc.py"}
BARS = (Bar(RAW, 0.6), Bar(PEER, 2))
_TIMEOUT = 180.0


def turn(name: str, what: str, url: str, calls: int) -> list[float]:
    """Calls per second, and the CPU of client and server per call."""
    if name == OURS:
        command = [sys.executable, "-m", "benchmarks.rpc_contestant", what, url, str(calls)]
        return environment.figures(command, _TIMEOUT)
    return environment.run_for_all(
        SCRIPTS[name], what, url, calls, requirements="brokers.txt", timeout=_TIMEOUT
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--calls", type=int, default=4000)
    parser.add_argument("--url", help="of a server to use; default: that of script/brokers")
    chosen = parser.parse_args()
    url: str = chosen.url or server()
    environment.python("brokers.txt")
    cpu: dict[str, list[tuple[float, float]]] = {name: [] for name in (OURS, RAW, PEER)}

    def contestant(name: str, what: str, calls: int) -> Callable[[], float]:
        def run() -> float:
            rate, client, served = turn(name, what, url, calls)
            if what == "many":
                cpu[name].append((client, served))
            return rate

        return run

    contests = [
        Contest(
            title, OURS, {name: contestant(name, what, calls) for name in (OURS, RAW, PEER)}, BARS
        )
        for title, what, calls in (
            ("calls, one by one", "one", chosen.calls // 4),
            ("calls, 64 callers", "many", chosen.calls),
        )
    ]
    outcomes = [hold(contest, chosen.rounds) for contest in contests]
    print(table(outcomes))
    print("\n| CPU per call, 64 callers | client | server |\n|---|---:|---:|")
    for name, figures in cpu.items():
        client, served = (statistics.median(column) for column in zip(*figures, strict=True))
        print(f"| {name} | {client:.0f} µs | {served:.0f} µs |")
    return 0 if all(outcome.met for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
