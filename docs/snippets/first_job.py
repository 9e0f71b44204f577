"""A job: declared, added, run, and its result."""

import asyncio

from matador.jobs import Exponential, Queue, Worker

queue = Queue("emails")  # in memory


@queue.job(attempts=5, backoff=Exponential(1.0))
async def send_welcome(to: str, lang: str = "en") -> str:
    return f"sent to {to} in {lang}"


async def main() -> None:
    async with queue, Worker(queue):  # the worker runs what the queue declares
        handle = await send_welcome.add(to="ada@example.com")
        print(await handle.result(timeout=5))


if __name__ == "__main__":
    asyncio.run(main())
