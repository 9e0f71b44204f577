"""Order: of sending, of priority, and within a key over all consumers."""

from __future__ import annotations

import asyncio
from collections import defaultdict

from matador.model.message import Complete, Delivery, Release, Retry, Settlement
from matador.model.topology import WorkQueue
from matador.testing.compliance.base import ComplianceBase, growing
from matador.testing.compliance.bench import Bench, bodies
from matador.transports.base import Subscription

_KEYS = 4
_PER_KEY = 12
_RETRIED = "05"


class OrderingCompliance(ComplianceBase):
    """First in, first out; priorities; ordering keys."""

    async def test_one_consumer_sees_the_order_of_sending(self) -> None:
        bench = await self.open()
        sent = [f"{number:03}" for number in range(200)]
        await bench.send(*sent[:80])
        for body in sent[80:90]:
            await bench.send(body)
        await bench.send(*sent[90:])
        received = bodies(await bench.drain(bench.name(), 200))
        # Without a declared order everything still comes, each once.
        ordered = bench.can.ordering != "none" and self.orders_without_keys
        assert (received if ordered else sorted(received)) == sent

    async def test_what_is_released_comes_back_in_its_place(self) -> None:
        bench = await self.open()
        await bench.send("a", "b", "c")
        subscription = await bench.subscribe(prefetch=1)
        await bench.settle(Release((await bench.receive_one(subscription)).receipt))
        received: list[Delivery] = []
        for _ in range(3):
            received.append(await bench.receive_one(subscription))
            await bench.complete(received[-1:])
        ordered = bench.can.ordering != "none" and self.orders_without_keys
        keeps = ordered and self.releases_keep_their_place
        assert (bodies(received) if keeps else sorted(bodies(received))) == ["a", "b", "c"]

    async def test_higher_priorities_come_first(self) -> None:
        bench = await self.open(WorkQueue("events", priorities=True))
        sent = [("none", None), ("low", 1), ("high", 9), ("mid", 5), ("high2", 9)]
        await bench.send(*[bench.message(body, priority=number) for body, number in sent])
        received = bodies(await bench.drain(bench.name(), len(sent)))
        if bench.can.priorities:
            assert received == ["high", "high2", "mid", "low", "none"]
        else:
            assert sorted(received) == sorted(body for body, _ in sent)
            assert bench.noted(bench.name()), "apply_topology must say that it ignores priorities"

    async def test_types_and_arguments_of_queues_are_honored_or_noted(self) -> None:
        bench = await self.open(WorkQueue("events", type="classic", arguments={"x-max-length": 9}))
        await bench.send(bench.message("a"))
        assert bodies(await bench.drain(bench.name(), 1)) == ["a"]
        assert bench.noted(bench.name()) != self.honors_arguments

    async def test_one_key_is_handled_in_order_and_one_at_a_time(self) -> None:
        bench = await self.open()
        run = _KeyedRun(bench)
        await bench.send(
            *[
                bench.message(f"{key}:{number:02}", key=f"key-{key}")
                for number in range(_PER_KEY)
                for key in range(_KEYS)
            ]
        )
        subscriptions = [await bench.subscribe(prefetch=4) for _ in range(4)]
        async with asyncio.timeout(bench.patience):
            await asyncio.gather(*[run.consume(subscription) for subscription in subscriptions])
        expected = [f"{number:02}" for number in range(_PER_KEY)]
        if bench.can.ordering == "partition":
            assert run.overlaps == []
            if not self.retries_keep_their_place:
                for numbers in run.finished.values():
                    numbers.sort(key=_RETRIED.__eq__)
                expected.sort(key=_RETRIED.__eq__)
            assert run.finished == {str(key): expected for key in range(_KEYS)}
        else:
            finished = {key: sorted(numbers) for key, numbers in run.finished.items()}
            assert finished == {str(key): expected for key in range(_KEYS)}

    async def test_a_delayed_message_holds_back_those_of_its_key(self) -> None:
        bench = await self.open()
        if not (bench.can.delays and bench.can.ordering == "partition"):
            # Nothing is promised: both come, in whatever order.
            await bench.send(bench.message("a", key="k"), bench.message("b", key="k"))
            assert sorted(bodies(await bench.drain(bench.name(), 2))) == ["a", "b"]
            return
        subscription = await bench.subscribe()
        received: list[str] = []
        for delay in growing(0.15):
            await bench.send(
                bench.message("first", key="k", delay=delay),
                bench.message("second", key="k"),
                bench.message("other", key="o"),
            )
            received = []
            for _ in range(3):
                delivery = await bench.receive_one(subscription)
                received.extend(bodies([delivery]))
                await bench.complete([delivery])
            assert received.index("first") < received.index("second")
            if received[0] == "other":
                return
            # On a busy machine the delay may be over before the first receive.
        assert received == ["other", "first", "second"]

    async def test_what_has_no_key_is_not_held_back(self) -> None:
        bench = await self.open()
        await bench.send(bench.message("keyed", key="k"), "plain")
        subscription = await bench.subscribe()
        assert sorted(bodies(await bench.receive(subscription, 2))) == ["keyed", "plain"]


class _KeyedRun:
    """Consumers that retry one message of every key, and record which messages overtake others."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.running: set[str] = set()
        self.overlaps: list[str] = []
        self.finished: defaultdict[str, list[str]] = defaultdict(list)
        self.retried: set[str] = set()
        self.left = _KEYS * _PER_KEY
        self.subscriptions: list[Subscription] = []

    async def consume(self, subscription: Subscription) -> None:
        self.subscriptions.append(subscription)
        while deliveries := await subscription.receive(2):
            for delivery in deliveries:
                await self.bench.settle(await self.handle(delivery))
        assert self.left == 0

    async def handle(self, delivery: Delivery) -> Settlement:
        body = delivery.body.decode()
        key, _, number = body.partition(":")
        if key in self.running:
            self.overlaps.append(body)
        self.running.add(key)
        for _ in range(3):  # room for others to overtake
            await asyncio.sleep(0)
        self.running.discard(key)
        if number == _RETRIED and key not in self.retried:
            self.retried.add(key)
            delay = 0.05 if self.bench.can.delays else 0.0
            return Retry(delivery.receipt, self.bench.message(body, key=f"key-{key}", delay=delay))
        self.finished[key].append(number)
        self.left -= 1
        if self.left == 0:
            for subscription in self.subscriptions:
                await subscription.close()
        return Complete(delivery.receipt)
