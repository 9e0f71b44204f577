"""Recurring jobs."""

import asyncio

from matador.jobs import Queue, Worker

queue = Queue("reports")


# --8<-- [start:jobs]
@queue.job
async def send_report(region: str) -> None:
    print(f"report for {region}")


@queue.job
async def clean_up() -> None:
    print("cleaned up")


# --8<-- [end:jobs]


async def main() -> None:
    # --8<-- [start:schedule]
    await queue.schedule(
        "daily-report",  # the key: a second schedule with it replaces this one
        send_report.name,
        {"region": "north"},
        cron="0 7 * * mon-fri",
        timezone="Europe/Berlin",
    )
    await queue.schedule("clean-up", clean_up.name, {}, every=600, missed="skip")
    # --8<-- [end:schedule]
    # --8<-- [start:look]
    for schedule in await queue.schedules():
        print(schedule.key, schedule.cron or schedule.every, schedule.timezone)
    # --8<-- [end:look]
    cleaned = asyncio.Event()
    worker = Worker(queue)
    worker.once("completed", lambda event: cleaned.set())
    async with worker:
        await cleaned.wait()
    # --8<-- [start:end]
    print(await queue.unschedule("clean-up"))  # True: there was one
    # --8<-- [end:end]


if __name__ == "__main__":
    asyncio.run(main())
