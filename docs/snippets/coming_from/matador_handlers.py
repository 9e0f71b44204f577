# --8<-- [start:program]
import asyncio
from typing import Any

from matador.jobs import ActiveJob, Exponential, JobCompleted, Queue, Worker


async def welcome(job: ActiveJob[Any]) -> str:
    await job.update_progress(50)
    return f"sent to {job.data['to']}"


async def newsletter(job: ActiveJob[Any]) -> None:
    print(f"newsletter for {job.data['region']}")


async def main() -> None:
    queue = Queue("emails")  # in memory; with BullMQ: Queue("emails", provider="redis://…")
    worker = Worker(queue, {"welcome": welcome, "newsletter": newsletter})
    done = asyncio.get_running_loop().create_future()

    def on_completed(event: JobCompleted) -> None:
        done.set_result(event.result)

    worker.once("completed", on_completed)
    async with queue, worker:
        await queue.schedule(
            "newsletter",
            "newsletter",
            {"region": "north"},
            cron="0 7 * * *",
            timezone="Europe/Berlin",
        )
        await queue.add(
            "welcome",
            {"to": "ada@example.com"},
            attempts=5,
            backoff=Exponential(1),
            delay=1,
        )
        print(await asyncio.wait_for(done, 30))


asyncio.run(main())
# --8<-- [end:program]
