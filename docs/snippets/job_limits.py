"""Limits that all workers of a queue share."""

import asyncio

from matador.jobs import ActiveJob, Queue, RateLimit, Worker

queue = Queue("sync", provider="sqlite:///jobs.db")


async def synchronize(job: ActiveJob[str]) -> None:
    print(f"synchronized {job.data}")


# --8<-- [start:worker]
worker = Worker(
    queue,
    synchronize,
    concurrency=20,
    rate_limit=RateLimit(100, per=60),
    concurrency_per_key=1,
)
# --8<-- [end:worker]


async def main() -> None:
    async with queue:
        # --8<-- [start:add]
        await queue.add("invoices", "invoices of ada", concurrency_key="customer-ada")
        await queue.add("orders", "orders of ada", concurrency_key="customer-ada")
        await queue.add("orders", "orders of bob", concurrency_key="customer-bob")
        # --8<-- [end:add]
        drained = asyncio.Event()
        worker.once("drained", lambda _: drained.set())
        async with worker:
            await drained.wait()
            # --8<-- [start:change]
            worker.rate_limit = RateLimit(10, per=1)
            worker.concurrency_per_key = None
            # --8<-- [end:change]


if __name__ == "__main__":
    asyncio.run(main())
