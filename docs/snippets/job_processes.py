"""One program adds jobs, another one runs them. They share a file."""

# --8<-- [start:shared]
import asyncio
import sys

from matador.jobs import Queue, Worker

queue = Queue("thumbnails", provider="sqlite:///jobs.db")


@queue.job(timeout=60)
def shrink(path: str, width: int = 200) -> None:
    print(f"{path} is {width} pixels wide now")


async def add(*paths: str) -> None:
    async with queue:
        for path in paths:
            await shrink.add(path)
        print((await queue.stats()).waiting, "jobs wait")


if __name__ == "__main__":
    if sys.argv[1:]:
        asyncio.run(add(*sys.argv[1:]))
    else:
        Worker(queue, executor="process", concurrency=2).run()  # until SIGTERM or Ctrl-C
# --8<-- [end:shared]
