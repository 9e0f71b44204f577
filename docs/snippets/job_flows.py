"""Chains and groups."""

import asyncio

from matador.jobs import RESULT, Queue, Worker, chain, group

queue = Queue("pages")


# --8<-- [start:flows]
@queue.job
async def fetch(url: str) -> str:
    return f"text of {url}"


@queue.job
async def count_words(text: str) -> int:
    return len(text.split())


@queue.job
async def add_up(counts: list[int]) -> int:
    return sum(counts)


async def one(url: str) -> int:
    handle = await chain(fetch.using(url), count_words.using(text=RESULT)).add()
    return await handle.result(timeout=5)


async def many(*urls: str) -> int:
    counts = [chain(fetch.using(url), count_words.using(text=RESULT)) for url in urls]
    handle = await group(*counts, then=add_up.using(counts=RESULT)).add()
    return await handle.result(timeout=5)


# --8<-- [end:flows]


async def main() -> None:
    async with queue, Worker(queue):
        print(await one("a.example"))
        print(await many("a.example", "b.example"))


if __name__ == "__main__":
    asyncio.run(main())
