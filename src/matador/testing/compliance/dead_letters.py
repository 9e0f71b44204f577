"""Dead letters: where they go, what they carry, how many are kept and for how long."""

from __future__ import annotations

import time

import pytest

from matador.errors import QueueNotFoundError
from matador.model.message import REASON_HEADER, DeadLetter, Delivery, Retry
from matador.model.topology import DeadLetterKind, DeadLetterQueue, DeadLetters, WorkQueue
from matador.testing.compliance.base import ComplianceBase
from matador.testing.compliance.bench import Bench, bodies
from matador.testing.wait import wait_for

_TTL = 0.2


class DeadLetterCompliance(ComplianceBase):
    """Dead letters of every kind."""

    @pytest.mark.parametrize("kind", ["unhandled", "undeliverable", "dlq"])
    async def test_a_dead_letter_is_kept_with_its_reason(self, kind: DeadLetterKind) -> None:
        bench = await self.open(dead_letters=DeadLetters(dlq=True))
        delivery = await self._deliver(bench, "first")
        successor = bench.message("last words", headers={"mine": "kept"})
        await bench.settle(DeadLetter(delivery.receipt, kind, "it is – wrong", successor))
        (letter,) = await bench.drain(bench.dead_letters(kind), 1)
        assert bodies([letter]) == ["last words"]
        assert letter.headers[REASON_HEADER] == "it is – wrong"
        assert letter.headers["mine"] == "kept"
        assert letter.receipt.queue == bench.dead_letters(kind)
        assert letter.receipt.delivery_count == 1
        await self.nothing_is_left(bench)

    async def test_raw_bytes_are_kept(self) -> None:
        bench = await self.open()
        raw = b"\x00\xff not { an envelope"
        await bench.send(bench.message(raw, headers={"content": "odd"}))
        delivery = await bench.receive_one(await bench.subscribe())
        await bench.settle(DeadLetter(delivery.receipt, "undeliverable", "unreadable"))
        (letter,) = await bench.drain(bench.dead_letters(), 1)
        assert letter.body == raw
        assert letter.headers["content"] == "odd"
        assert letter.headers[REASON_HEADER] == "unreadable"

    async def test_kinds_and_queues_are_apart(self) -> None:
        bench = await self.open("events", "billing")
        await bench.send(bench.message("a"), bench.message("b", queue="billing"))
        ours = await bench.receive_one(await bench.subscribe("events"))
        theirs = await bench.receive_one(await bench.subscribe("billing"))
        await bench.settle(
            DeadLetter(ours.receipt, "unhandled", "r"),
            DeadLetter(theirs.receipt, "undeliverable", "r"),
        )
        assert bodies(await bench.drain(bench.dead_letters("unhandled", "events"), 1)) == ["a"]
        assert bodies(await bench.drain(bench.dead_letters("undeliverable", "billing"), 1)) == ["b"]

    async def test_a_dead_letter_can_be_redriven(self) -> None:
        bench = await self.open()
        delivery = await self._deliver(bench, "a")
        await bench.settle(DeadLetter(delivery.receipt, "undeliverable", "r"))
        letters = await bench.transport.subscribe(bench.dead_letters(), prefetch=1)
        letter = await bench.receive_one(letters)
        await bench.settle(Retry(letter.receipt, bench.message("a")))
        assert bodies(await bench.drain(bench.name(), 1)) == ["a"]
        await bench.nothing_comes(letters)

    async def test_an_exact_queue_is_used_by_its_own_name(self) -> None:
        # A name as its owner chose it, and yet of this test alone.
        name = f"Owner.{self.topology().namespace}:orders"
        await self.make_exact_queue(name)
        bench = await self.open("events", WorkQueue(name, exact=True))
        await bench.send(bench.message("a", queue=name))
        assert bench.name(name) == name
        delivery = await bench.receive_one(await bench.subscribe(name))
        assert delivery.receipt.queue == name
        await bench.settle(DeadLetter(delivery.receipt, "undeliverable", "r"))
        assert bodies(await bench.drain(f"{name}.undeliverable", 1)) == ["a"]

    async def test_the_oldest_go_when_there_are_too_many(self) -> None:
        limit = DeadLetters(undeliverable=DeadLetterQueue(max_length=2))
        bench = await self.open(dead_letters=limit)
        for body in ("oldest", "older", "newest"):
            delivery = await self._deliver(bench, body)
            await bench.settle(DeadLetter(delivery.receipt, "undeliverable", "r"))
        kept = 3 if bench.noted(bench.dead_letters()) else 2
        letters = bodies(await bench.drain(bench.dead_letters(), kept))
        expected = ["oldest", "older", "newest"][-kept:]
        ordered = self.orders_without_keys
        assert (letters if ordered else sorted(letters)) == (
            expected if ordered else sorted(expected)
        )

    async def test_they_go_when_their_time_is_over(self) -> None:
        limit = DeadLetters(undeliverable=DeadLetterQueue(ttl=_TTL))
        bench = await self.open(dead_letters=limit)
        name = bench.dead_letters()
        delivery = await self._deliver(bench, "a")
        await bench.settle(DeadLetter(delivery.receipt, "undeliverable", "r"))
        over = time.monotonic() + 1.5 * _TTL
        if bench.noted(name):
            assert bodies(await bench.drain(name, 1)) == ["a"]
            return

        async def gone() -> bool:
            left = await bench.count(name)
            return time.monotonic() > over if left is None else left == 0

        await wait_for(gone, timeout=self.patience, message="the dead letter to expire")
        await bench.drain(name, 0)

    async def test_a_dead_letter_with_nowhere_to_go_stays_in_hand(self) -> None:
        # The caller knows the topology, and completes messages that must not be kept.
        bench = await self.open(dead_letters=DeadLetters(unhandled=False))
        delivery = await self._deliver(bench, "a")
        lost = DeadLetter(delivery.receipt, "unhandled", "r")
        (outcome,) = await bench.transport.settle([lost])
        assert isinstance(outcome, QueueNotFoundError)
        await bench.settle(DeadLetter(delivery.receipt, "undeliverable", "r"))
        assert bodies(await bench.drain(bench.dead_letters(), 1)) == ["a"]

    async def _deliver(self, bench: Bench, body: str) -> Delivery:
        await bench.send(body)
        subscription = await bench.subscribe(prefetch=1)
        delivery = await bench.receive_one(subscription)
        await subscription.close()
        return delivery
