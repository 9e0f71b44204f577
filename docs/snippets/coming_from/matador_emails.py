# --8<-- [start:program]
import asyncio

from matador.jobs import Exponential, Queue, Worker

queue = Queue("emails")  # in memory; several processes: Queue("emails", provider="redis://…")


@queue.job(attempts=5, backoff=Exponential(1))
def welcome(to: str, lang: str = "en") -> str:
    return f"sent to {to} in {lang}"


@queue.job
def newsletter(region: str) -> None:
    print(f"newsletter for {region}")


async def main() -> None:
    async with queue, Worker(queue):
        await newsletter.schedule("newsletter", cron="0 7 * * *", timezone="Europe/Berlin").add(
            region="north"
        )
        handle = await welcome.with_options(delay=1).add("ada@example.com")
        print(await handle.result(timeout=30))


if __name__ == "__main__":
    asyncio.run(main())
# --8<-- [end:program]
