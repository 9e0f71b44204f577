"""Record jobs in a journal, see them as tables, add them again, and redrive those that failed."""
# pyright: basic

import asyncio
from pathlib import Path

# --8<-- [start:queue]
from matador.jobs import Queue, Worker
from matador.observe import Journal

journal = Journal("journal/")
queue = Queue("emails", provider="sqlite:///jobs.db", hooks=[journal])
# --8<-- [end:queue]


@queue.job(attempts=1)
def welcome(to: str) -> None:
    if to == "user7" and not Path("bug-is-fixed").exists():
        raise ValueError(f"no mailbox for {to!r}")


async def main() -> None:
    async with queue:
        handles = [await welcome.add(to=f"user{number}") for number in range(10)]
        # --8<-- [start:worker]
        worker = Worker(queue)
        # --8<-- [end:worker]
        drained = asyncio.Event()
        worker.once("drained", lambda _: drained.set())
        async with worker:
            await drained.wait()
    print(len(handles), "added")


asyncio.run(main())
# --8<-- [start:tables]
from matador.spark import Lake

lake = Lake("lake/")
lake.ingest("journal/")
lake.sql("""
    SELECT way, event_key AS job, subscriber AS queue, outcome, count(*) AS attempts
    FROM deliveries
    GROUP BY ALL
    ORDER BY outcome
""").show()
# --8<-- [end:tables]

# --8<-- [start:replay]
done = lake.replay(queue, name="welcome", where="data.to != 'user7'", replay_id="again")
print(done.sent, "added again")
# --8<-- [end:replay]

# --8<-- [start:redrive]
Path("bug-is-fixed").touch()
for group in lake.triage().collect():
    print(group["count"], "×", group["text"])
    print(lake.redrive(queue, signature=group["signature"]).moved, "wait again")
# --8<-- [end:redrive]
