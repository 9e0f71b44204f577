"""Recurring jobs."""

import asyncio

# --8<-- [start:queue]
from matador.jobs import Queue, Worker

queue = Queue("reports")  # in memory; several processes: Queue("reports", provider="redis://…")
# --8<-- [end:queue]


# --8<-- [start:declared]
@queue.job(cron="0 3 * * *", timezone="Europe/Berlin")
async def clean_up(days: int = 30) -> None:
    print(f"removed what is older than {days} days")


@queue.job(every=600)
async def look_around() -> None:
    print("looked around")


# --8<-- [end:declared]


# --8<-- [start:jobs]
@queue.job
async def send_report(region: str) -> None:
    print(f"report for {region}")


# --8<-- [end:jobs]


async def main() -> None:
    # --8<-- [start:schedule]
    # The key comes first: a second schedule with it replaces this one.
    weekdays = send_report.schedule("north", cron="0 7 * * mon-fri", timezone="Europe/Berlin")
    await weekdays.add(region="north")
    await send_report.schedule("south", cron="@weekly", missed="skip").add(region="south")
    # --8<-- [end:schedule]
    # --8<-- [start:by-name]
    await queue.schedule("east", "send-report", {"region": "east"}, cron="@monthly")
    # --8<-- [end:by-name]
    done = asyncio.Event()
    worker = Worker(queue)
    worker.once("drained", lambda event: done.set())
    async with worker:
        await done.wait()
        # --8<-- [start:look]
        for schedule in sorted(await queue.schedules(), key=lambda one: one.key):
            print(schedule.key, schedule.cron or schedule.every, schedule.timezone)
        # --8<-- [end:look]
    # --8<-- [start:end]
    print(await queue.unschedule("east"))  # True: there was one
    # --8<-- [end:end]


if __name__ == "__main__":
    asyncio.run(main())
