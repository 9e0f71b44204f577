"""The data of a job in all five kinds of classes."""

import asyncio
from dataclasses import dataclass
from typing import Any, TypedDict

import attrs
import msgspec
import pydantic

from matador.jobs import ActiveJob, Queue, Worker

queue = Queue("shop")


# --8<-- [start:kinds]
@dataclass(frozen=True)
class Address:
    city: str


class Item(msgspec.Struct, frozen=True):
    article: str
    count: int


class Customer(pydantic.BaseModel):
    email: str


@attrs.frozen
class Payment:
    amount: int


class Note(TypedDict):
    text: str


@queue.job
async def ship(
    address: Address, items: list[Item], customer: Customer, payment: Payment, note: Note
) -> Address:
    print("ship", items[0].article, customer.email, payment.amount, note["text"])
    return address


# --8<-- [end:kinds]


# --8<-- [start:context]
@queue.job
async def pack(job: ActiveJob[Any], items: list[Item]) -> int:
    for number, item in enumerate(items):
        await job.update_progress({"packed": number, "next": item.article})
    return job.attempt


# --8<-- [end:context]


async def main() -> None:
    async with queue, Worker(queue):
        handle = await ship.with_options(priority=1).add(
            Address("Paris"),
            [Item("pen", 2)],
            Customer(email="ada@example.com"),
            Payment(5),
            {"text": "ring twice"},
        )
        print(await handle.result(timeout=5))
        packed = await pack.add([Item("pen", 2)])  # without the job
        print(await packed.result(timeout=5))


if __name__ == "__main__":
    asyncio.run(main())
