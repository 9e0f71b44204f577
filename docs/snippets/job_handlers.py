"""Handlers by name: typed data, options, progress, events, failed jobs."""

import asyncio
from dataclasses import dataclass

from matador.jobs import (
    ActiveJob,
    Exponential,
    Fixed,
    JobCompleted,
    JobFailed,
    Keep,
    PermanentJobError,
    Queue,
    Unique,
    Worker,
)


# --8<-- [start:handlers]
@dataclass(frozen=True)
class Invoice:
    number: int
    amount: int


async def send_invoice(job: ActiveJob[Invoice]) -> str:
    await job.update_progress(50)
    return f"invoice {job.data.number} sent"


def charge(job: ActiveJob[Invoice]) -> None:  # a sync handler runs in a thread
    if job.data.amount <= 0:
        raise PermanentJobError(f"invoice {job.data.number} has no amount")


worker = Worker("billing", {"send-invoice": send_invoice, "charge": charge}, concurrency=20)
# --8<-- [end:handlers]


# --8<-- [start:events]
def on_failed(event: JobFailed) -> None:
    then = f"again in {event.retry_delay:g} s" if event.will_retry else "for good"
    print(f"{event.name} failed {then}: {event.error}")


def on_completed(event: JobCompleted) -> None:
    print(f"{event.name} completed: {event.result}")


worker.on("failed", on_failed)
worker.on("completed", on_completed)
# --8<-- [end:events]


async def main() -> None:
    # --8<-- [start:add]
    queue = Queue("billing", default_options={"attempts": 5, "backoff": Fixed(10)})
    await queue.add(
        "send-invoice",
        Invoice(7, 120),
        job_id="invoice-7",
        backoff=Exponential(1.0, max_delay=60),  # 1, 2, 4 … 60 seconds
        priority=5,  # before jobs with a lower number
        unique=Unique("invoice-7", within=3600),
        remove_on_complete=Keep(age=3600, count=1000),
        metadata={"request": "42"},
    )
    await queue.add_many([("charge", Invoice(8, 0)), ("charge", Invoice(9, 40))])
    # --8<-- [end:add]
    drained = asyncio.Event()
    worker.once("drained", lambda event: drained.set())
    worker.concurrency = 1  # one after the other: the same output each time
    async with worker:
        await drained.wait()
    # --8<-- [start:look]
    job = await queue.get("invoice-7")
    assert job is not None
    print(job.status, job.result, job.progress, dict(job.metadata))
    for failed in await queue.list("failed"):
        print(failed.name, failed.data, failed.attempts, failed.error)
        await queue.retry(failed.id)  # with all its attempts
    stats = await queue.stats()
    print(stats.waiting, "waiting,", stats.completed, "completed,", stats.failed, "failed")
    # --8<-- [end:look]


if __name__ == "__main__":
    asyncio.run(main())
