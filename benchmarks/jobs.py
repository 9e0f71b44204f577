"""Jobs: Matador against the job libraries of Python, and BullMQ on Node.

    script/benchmark jobs [--rounds 3] [--messages 10000] [--only CONTEST] [--without PEER]
    script/benchmark jobs --sqlite [--rounds 3] [--messages 10000]

On a Redis that this starts, without persistence, as ``benchmarks.redis`` does it. A job of ours is
a BullMQ job with its state; others keep less. Each add is confirmed, each job acknowledged after a
handler that counts. 64 callers add (libraries without asyncio: 8 threads), 100 jobs run at once
(threads: 8). Two rows show what adding in bulk does, ``add_many`` and BullMQ's ``addBulk``.

With ``--sqlite``: against huey on SQLite, both durable at every add.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from benchmarks.brokers import Contestant, compete, parse
from benchmarks.peers import environment
from benchmarks.redis import server
from benchmarks.rounds import Bar, Contest, hold, table

MODULE = "benchmarks.job_contestant"
CONTESTANTS = (
    Contestant("matador.jobs", "ours", module=MODULE, options=("100",)),
    Contestant(
        "matador.jobs, add_many",
        "variant",
        module=MODULE,
        contests=("send-many",),
        options=("100", "bulk"),
    ),
    Contestant(
        "BullMQ (Node)",
        "node",
        "bullmq.mjs",
        contests=("send-many", "send-one", "consume"),
        options=("100", "callers"),
    ),
    Contestant("huey", "peer", "huey_redis.py", "huey.txt", {"send-many": 0.5, "consume": 0.4}),
    Contestant("Dramatiq", "peer", "dramatiq_redis.py", share={"send-many": 0.3, "consume": 0.2}),
    Contestant(
        "bullmq (Python)",
        "peer",
        "bullmq_redis.py",
        share={"send-many": 0.4, "consume": 0.15},
        options=("callers",),
    ),
    Contestant("bullmq (Python), addBulk", "variant", "bullmq_redis.py", contests=("send-many",)),
    Contestant(
        "Taskiq", "peer", "taskiq_redis_streams.py", share={"send-many": 0.2, "consume": 0.15}
    ),
    Contestant("arq", "peer", "arq_redis.py", "arq.txt", {"send-many": 0.15, "consume": 0.06}),
    Contestant("Celery", "peer", "celery_app.py", share={"send-many": 0.1, "consume": 0.06}),
)


def sqlite(what: str, messages: int) -> Contest:
    """Ours against huey, both durable."""
    few = max(messages // 20, 64)

    def fresh(run: Callable[[Path], float]) -> Callable[[], float]:
        def turn() -> float:
            with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".benchmark-") as folder:
                return run(Path(folder))

        return turn

    def ours(folder: Path) -> float:
        url = f"sqlite:///{folder}/jobs.db"
        command = [sys.executable, "-m", MODULE, what, url, str(messages)]
        return environment.figures(command, 180)[0]

    def huey(folder: Path) -> float:
        contest = "send" if what == "send-many" else "consume"
        return environment.run("huey_sqlite.py", contest, folder / "huey.db", few, 1, "yes")

    name = "huey, durable"
    contestants = {"matador.jobs": fresh(ours), name: fresh(huey)}
    title = "add, SQLite" if what == "send-many" else "process, SQLite"
    return Contest(title, "matador.jobs", contestants, (Bar(name, 5),))


def main() -> int:
    if "--sqlite" in sys.argv:
        parser = argparse.ArgumentParser(description=__doc__)
        parser.add_argument("--sqlite", action="store_true")
        parser.add_argument("--rounds", type=int, default=3)
        parser.add_argument("--messages", type=int, default=10_000)
        given = parser.parse_args()
        contests = [sqlite(what, given.messages) for what in ("send-many", "consume")]
        outcomes = [hold(one, given.rounds) for one in contests]
        print(table(outcomes))
        return 0 if all(outcome.met for outcome in outcomes) else 1
    chosen = parse(__doc__, [one.name for one in CONTESTANTS if one.role != "ours"], 10_000)
    if chosen.url:
        return compete(CONTESTANTS, chosen.url, chosen)
    with server() as url:
        return compete(CONTESTANTS, url, chosen)


if __name__ == "__main__":
    sys.exit(main())
