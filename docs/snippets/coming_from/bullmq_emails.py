# pyright: basic, reportArgumentType=false
# --8<-- [start:program]
import asyncio
import os

from bullmq import Queue, Worker

options = {"connection": os.environ.get("REDIS_URL", "redis://localhost:6379")}


async def process(job, token):
    if job.name == "welcome":
        await job.updateProgress(50)
        return f"sent to {job.data['to']}"
    return f"newsletter for {job.data['region']}"


async def main():
    queue = Queue("emails", options)
    await queue.upsertJobScheduler(
        "newsletter",
        {"pattern": "0 7 * * *", "tz": "Europe/Berlin"},
        "newsletter",
        {"region": "north"},
    )
    worker = Worker("emails", process, {**options, "concurrency": 10})
    done = asyncio.get_running_loop().create_future()
    worker.on("completed", lambda job, result: done.set_result(result))
    await queue.add(
        "welcome",
        {"to": "ada@example.com"},
        {"attempts": 5, "backoff": {"type": "exponential", "delay": 1000}, "delay": 1000},
    )
    print(await asyncio.wait_for(done, 30))
    await worker.close()
    await queue.close()


asyncio.run(main())
# --8<-- [end:program]
