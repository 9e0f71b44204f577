"""A background job: added here, run by a worker, with a result."""

import asyncio

from matador.jobs import Queue, Worker

emails = Queue("emails", provider="sqlite:///shop.db")


@emails.job(attempts=5)
async def welcome(to: str, lang: str = "en") -> str:
    return f"sent to {to} in {lang}"


async def main() -> None:
    async with emails, Worker(emails):  # usually a process of its own
        job = await welcome.add(to="ada@example.com")  # options: welcome.with_options(delay=10)
        print(await job.result(timeout=5))


if __name__ == "__main__":
    asyncio.run(main())
