"""Makes journals of any size, quickly: what a shop would have recorded.

    python -m benchmarks.journal_generator FOLDER [--envelopes 1000000] [--seed 1]

Every envelope is sent once and handled until it succeeds or is dead-lettered; some fail first.
The same arguments make the same journal.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from pathlib import Path

import msgspec

from matador import Envelope, Schema, event, subscriber
from matador.observe.journal.records import DeliveryRecord, Record, SentRecord, encode_record

SEGMENT = 32 * 1024 * 1024
_START = 1_762_300_800_000_000  # a moment of November 2025, in microseconds
_STEP = 2_000  # microseconds between two envelopes
_WORKERS = tuple(f"worker-{number}" for number in range(4))
_ERRORS = (
    ("TimeoutError", "no answer from https://pay.example.com/charge/{n} after 5.0 s"),
    ("ConnectionError", "connection to 10.0.0.{k}:5432 refused"),
    ("ValueError", "unknown currency 'X{k}' in order 'order-{n:08d}'"),
)


class Line(msgspec.Struct, frozen=True):
    """A line of an order."""

    sku: str
    quantity: int


@event("order.placed", description="A customer placed an order.")
@dataclass(frozen=True)
class OrderPlaced:
    """The event with the largest payload."""

    order_id: str
    amount: Decimal
    customer: str
    lines: list[Line]
    note: str | None = None


@event("payment.settled", description="A payment arrived.")
@dataclass(frozen=True)
class PaymentSettled:
    """A small event."""

    payment_id: str
    order_id: str
    cents: int


@event("parcel.moved", description="A parcel is somewhere else.")
class ParcelMoved(msgspec.Struct, frozen=True):
    """An event with a time in it."""

    parcel: str
    place: str
    at: datetime


@subscriber(description="Sends the receipt.", idempotent="yes")
async def email_receipt(envelope: Envelope[OrderPlaced]) -> None:
    """Never called."""


@subscriber(description="Keeps the books.", idempotent="yes")
async def keep_books(envelope: Envelope[PaymentSettled]) -> None:
    """Never called."""


@subscriber(description="Tells the customer.", idempotent="yes")
async def tell_customer(envelope: Envelope[ParcelMoved]) -> None:
    """Never called."""


SCHEMA = Schema(
    {
        OrderPlaced: [email_receipt],
        PaymentSettled: [keep_books],
        ParcelMoved: [tell_customer],
    }
)


def generate(
    folder: Path, envelopes: int, *, seed: int = 1, segment: int = SEGMENT
) -> tuple[int, int]:
    """Fill a folder with segments; how many records of envelopes and of deliveries there are."""
    folder.mkdir(parents=True, exist_ok=True)
    sent = deliveries = number = size = 0
    lines: list[bytes] = []
    for record in records(envelopes, seed):
        line = encode_record(record)
        lines.append(line)
        size += len(line) + 1
        if type(record) is SentRecord:
            sent += 1
        else:
            deliveries += 1
        if size >= segment:
            _write(folder, number, lines)
            number, size, lines = number + 1, 0, []
    if lines:
        _write(folder, number, lines)
    return sent, deliveries


def records(envelopes: int, seed: int = 1) -> Iterator[Record]:
    """The records of so many envelopes, in the order a journal would have them."""
    chance = random.Random(seed)
    for number in range(envelopes):
        created = _START + number * _STEP
        sent = _sent(number, created, chance)
        yield sent
        started = created + chance.randrange(1_000, 400_000)
        attempt = 1
        while True:
            delivery = _delivery(sent, attempt, started, number, chance)
            yield delivery
            if delivery.outcome != "retry":
                break
            attempt += 1
            started += chance.randrange(1_000_000, 8_000_000)


def _sent(number: int, created: int, chance: random.Random) -> SentRecord:
    digits = f"{chance.getrandbits(128):032x}"
    kind = number % 4
    if kind < 2:
        key, name, data = "order.placed", "email-receipt", _order(number)
    elif kind == 2:
        key, name, data = "payment.settled", "keep-books", _payment(number)
    else:
        key, name, data = "parcel.moved", "tell-customer", _parcel(number)
    return SentRecord(
        f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-a{digits[17:20]}-{digits[20:]}",
        key,
        name,
        "shop.events",
        "sqlite",
        created,
        "should-investigate",
        msgspec.Raw(data.encode()),
        created + 150,
        correlation_id=f"request-{number // 3:08d}",
        metadata={"tenant": f"tenant-{number % 50}", "trace": number} if number % 5 == 0 else None,
    )


def _order(number: int) -> str:
    return (
        f'{{"order_id":"order-{number:08d}","amount":"{number % 900}.{number % 100:02d}",'
        f'"customer":"customer-{number % 9000:04d}@example.com",'
        f'"lines":[{{"sku":"sku-{number % 5000:04d}","quantity":{number % 7 + 1}}},'
        f'{{"sku":"sku-{number % 3000:04d}","quantity":1}}],'
        '"note":"leave it with the neighbours"}'
    )


def _payment(number: int) -> str:
    return (
        f'{{"payment_id":"pay-{number:08d}","order_id":"order-{number - 1:08d}",'
        f'"cents":{number % 90_000}}}'
    )


def _parcel(number: int) -> str:
    return (
        f'{{"parcel":"parcel-{number:08d}","place":"hub {number % 40}",'
        f'"at":"2025-11-05T{number % 24:02d}:{number % 60:02d}:00Z"}}'
    )


def _delivery(
    sent: SentRecord, attempt: int, started: int, number: int, chance: random.Random
) -> DeliveryRecord:
    luck = chance.random()
    failed = luck < 0.06
    dead = failed and (attempt == 3 or luck < 0.004)
    kind, text = _ERRORS[number % len(_ERRORS)]
    duration = round(chance.expovariate(1 / 12), 3)
    return DeliveryRecord(
        sent.id,
        sent.event_key,
        sent.subscriber,
        sent.queue,
        sent.transport,
        attempt,
        "dead-letter" if dead else "retry" if failed else "success",
        started,
        duration,
        (started - sent.created_at) / 1000,
        (started - sent.created_at) / 1000,
        sent.created_at,
        sent.importance,
        started + round(duration * 1000),
        _WORKERS[number % len(_WORKERS)],
        error_type=kind if failed else None,
        error=text.format(n=number, k=number % 7) if failed else None,
        reason="no attempts are left" if dead else "it may work later" if failed else None,
        dead_letter_kind="undeliverable" if dead else None,
        correlation_id=sent.correlation_id,
    )


def _write(folder: Path, number: int, lines: list[bytes]) -> None:
    """As the journal does: hidden first, then whole."""
    name = f"20251105T000000-generated-{number:06d}.jsonl"
    hidden = folder / f".open-{name}"
    hidden.write_bytes(b"\n".join(lines) + b"\n")
    hidden.rename(folder / name)


def main() -> None:
    """Make a journal and say what is in it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--envelopes", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    sent, deliveries = generate(given.folder, given.envelopes, seed=given.seed)
    print(f"{sent:,} envelopes and {deliveries:,} deliveries in {given.folder}")


if __name__ == "__main__":
    main()
