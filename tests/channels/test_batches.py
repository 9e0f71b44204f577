"""Consumers that take a list: several messages in one call, on every broker."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from tests.channels.conftest import Bench
from tests.channels.test_service import Order, dead_letters

from matador import WorkQueue
from matador.channels import (
    ConfigurationError,
    Deduplication,
    Envelope,
    MessageContext,
    QueueService,
    RetrySettings,
    consume,
)
from matador.errors import InvalidMessageError
from matador.policy.ack import AckStrategy
from matador.testing import wait_for


class Batched:
    """A consumer of lists that notes them, and may be held up or fail."""

    def __init__(
        self,
        bench: Bench,
        fail: Callable[[list[Order]], Any] | None = None,
        *,
        held: bool = False,
        **options: Any,
    ) -> None:
        self.batches: list[list[str]] = []
        self.go_on = asyncio.Event()
        self.running = self.most = 0
        if not held:
            self.go_on.set()

        @consume("created", channel=bench.name(), **options)
        async def created(orders: list[Order]) -> None:
            self.batches.append([one.id for one in orders])
            self.running += 1
            self.most = max(self.most, self.running)
            try:
                await self.go_on.wait()
                if fail is not None:
                    fail(orders)
            finally:
                self.running -= 1

        self.consumer = created

    @property
    def ids(self) -> list[str]:
        return [one for batch in self.batches for one in batch]


async def sent(service: QueueService, bench: Bench, count: int) -> list[str]:
    ids = [str(number) for number in range(count)]
    for id_ in ids:
        await service.send(bench.name(), "created", Order(id_))
    return ids


class TestTogether:
    async def test_what_has_arrived_is_handled_together(self, bench: Bench) -> None:
        log = Batched(bench, batch_size=8)
        async with bench.service() as sender:
            ids = await sent(sender, bench, 30)
        async with bench.service(log.consumer) as service:
            await wait_for(lambda: len(log.ids) == 30, timeout=60)
            await wait_for(lambda: service.metrics().messages_succeeded == 30)
        assert sorted(log.ids, key=int) == ids
        assert max(map(len, log.batches)) <= 8
        assert len(log.batches) < 30

    async def test_a_batch_is_settled_once_it_was_handled(self, bench: Bench) -> None:
        log = Batched(bench, held=True, batch_size=5)
        async with bench.service() as sender:
            await sent(sender, bench, 5)
        async with bench.service(log.consumer) as service:
            await wait_for(lambda: log.batches, timeout=60)
            assert service.metrics().messages_succeeded == 0
            log.go_on.set()
            await wait_for(lambda: service.metrics().messages_succeeded == 5)
        again = Batched(bench, batch_size=5)
        async with bench.service(again.consumer) as service:
            await service.send(bench.name(), "created", Order("last"))
            await wait_for(lambda: again.ids, timeout=60)
        assert again.ids == ["last"]

    async def test_batches_of_one_consumer_run_one_after_another(self, bench: Bench) -> None:
        log = Batched(bench, held=True, batch_size=4)
        async with bench.service() as sender:
            await sent(sender, bench, 12)
        async with bench.service(log.consumer):
            await wait_for(lambda: log.running == 1, timeout=60)
            log.go_on.set()
            await wait_for(lambda: len(log.ids) == 12, timeout=60)
        assert log.most == 1

    async def test_two_batches_at_once(self, bench: Bench) -> None:
        log = Batched(bench, held=True, batch_size=3, concurrency=2)
        async with bench.service() as sender:
            await sent(sender, bench, 6)
        async with bench.service(log.consumer):
            await wait_for(lambda: log.running == 2, timeout=60)
            log.go_on.set()
            await wait_for(lambda: len(log.ids) == 6, timeout=60)
        assert log.most == 2

    async def test_the_settings_say_how_many(self, bench: Bench) -> None:
        log = Batched(bench, held=True)
        async with bench.service() as sender:
            await sent(sender, bench, 20)
        async with bench.service(log.consumer, batch_size=2):
            await wait_for(lambda: log.batches, timeout=60)
            log.go_on.set()
            await wait_for(lambda: len(log.ids) == 20, timeout=60)
        assert max(map(len, log.batches)) == 2

    async def test_published_messages_make_batches(self, bench: Bench) -> None:
        log = Batched(bench, held=True, batch_size=10)
        async with bench.service(log.consumer) as service:
            await service.publish(bench.name(), "created", Order("0"))
            await wait_for(lambda: log.batches, timeout=60)
            for number in range(1, 10):
                await service.publish(bench.name(), "created", Order(str(number)))
            log.go_on.set()
            await wait_for(lambda: len(log.ids) == 10, timeout=60)
        assert sorted(log.ids, key=int) == [str(number) for number in range(10)]


class TestFailures:
    async def test_the_message_that_fails_costs_the_others_nothing(self, bench: Bench) -> None:
        """A batch that failed is retried message by message, each with its own attempts."""

        def refuse(orders: list[Order]) -> None:
            if any(one.id == "2" for one in orders):
                raise ValueError("not this one")

        log = Batched(bench, refuse, held=True, batch_size=5)
        async with bench.service() as sender:
            await sent(sender, bench, 5)
        service = bench.service(log.consumer, retry=RetrySettings(initial_delay=0.02))
        async with service:
            await wait_for(lambda: log.batches, timeout=60)
            log.go_on.set()
            (letter,) = await dead_letters(service, f"{bench.name()}.created", 1)
            await wait_for(lambda: service.metrics().messages_succeeded == 4, timeout=60)
        assert b'"2"' in letter.body
        assert letter.headers["x-retry-count"] == 3
        assert log.most == 1
        failed = [batch for batch in log.batches if "2" in batch]
        assert failed[1:] == [["2"], ["2"]]

    async def test_a_message_that_cannot_be_read_is_not_in_the_batch(self, bench: Bench) -> None:
        log = Batched(bench, batch_size=5)
        async with bench.service() as sender:
            await sent(sender, bench, 2)
            await sender.send(bench.name(), "created", {"id": 3})
        async with bench.service(log.consumer) as service:
            (letter,) = await dead_letters(service, f"{bench.name()}.created", 1)
            await wait_for(lambda: len(log.ids) == 2, timeout=60)
        assert letter.body == b'{"id":3}'
        assert sorted(log.ids) == ["0", "1"]

    async def test_a_timeout_is_that_of_the_batch(self, on: Callable[[str], Bench]) -> None:
        bench = on("memory")
        log = Batched(bench, held=True, batch_size=3, timeout=0.05)
        async with bench.service(log.consumer, retry=RetrySettings(enabled=False)) as service:
            await sent(service, bench, 3)
            found = await dead_letters(service, f"{bench.name()}.created", 3)
        assert len(found) == 3

    async def test_a_batch_is_given_back_at_a_forced_end(self, on: Callable[[str], Bench]) -> None:
        bench = on("sqlite")
        log = Batched(bench, held=True, batch_size=3)
        async with bench.service() as sender:
            ids = await sent(sender, bench, 5)
        service = bench.service(log.consumer)
        async with service:
            await wait_for(lambda: log.batches)
            await service.shutdown(timeout=0)
        assert log.running == 0
        again = Batched(bench, batch_size=3)
        async with bench.service(again.consumer):
            await wait_for(lambda: len(again.ids) == 5)
        assert sorted(again.ids) == ids

    async def test_a_thread_that_goes_on_keeps_its_batch(self, on: Callable[[str], Bench]) -> None:
        """It is not given back at once: another worker would run it beside the thread."""
        bench, begun, end = on("memory"), threading.Event(), threading.Event()

        @consume("created", channel=bench.name())
        def created(orders: list[Order]) -> None:
            begun.set()
            end.wait(30)

        service = bench.service(created)
        async with service:
            await service.send(bench.name(), "created", Order("1"))
            await wait_for(begun.is_set)
            await service.shutdown(timeout=0)
        end.set()
        async with bench.service() as looking:
            transport: Any = looking._broker.transport
            depth = await transport.depth(f"{bench.name()}.created")
        assert (depth.ready, depth.in_flight) == (0, 1)


class TestWhatItTakes:
    async def test_envelopes(self, bench: Bench) -> None:
        seen: list[Envelope[Order]] = []

        @consume("created", channel=bench.name())
        async def created(orders: list[Envelope[Order]], service: QueueService) -> None:
            assert service.is_running
            seen.extend(orders)

        async with bench.service(created) as service:
            id_ = await service.send(bench.name(), "created", Order("1"), headers={"tenant": "a"})
            await wait_for(lambda: seen, timeout=60)
        assert (seen[0].id, seen[0].data, seen[0].docket.metadata) == (
            id_,
            Order("1"),
            {"tenant": "a"},
        )

    async def test_in_a_thread(self, on: Callable[[str], Bench]) -> None:
        bench, seen = on("memory"), list[tuple[int, str]]()

        @consume("created", channel=bench.name())
        def created(orders: list[Order]) -> None:
            seen.append((len(orders), threading.current_thread().name))

        async with bench.service(created) as service:
            await sent(service, bench, 1)
            await wait_for(lambda: seen)
        assert seen[0][0] == 1
        assert seen[0][1] != threading.main_thread().name

    async def test_duplicates_in_one_batch_are_in_it_once(self, on: Callable[[str], Bench]) -> None:
        bench = on("memory")
        log = Batched(bench)
        async with bench.service() as sender:
            for _ in range(2):
                await sender.send(bench.name(), "created", Order("1"), message_id="same")
        service = QueueService(
            bench.settings(), channels=[log.consumer], deduplication=Deduplication()
        )
        async with service:
            await wait_for(lambda: service.metrics().messages_succeeded == 2)
        assert log.batches == [["1"]]

    async def test_the_data_is_checked_when_it_is_sent(self, on: Callable[[str], Bench]) -> None:
        bench = on("memory")
        log = Batched(bench)
        async with bench.service(log.consumer) as service:
            with pytest.raises(InvalidMessageError, match="id"):
                await service.send(bench.name(), "created", {"no": "order"})

    async def test_another_annotation_takes_data_that_is_a_list(
        self, on: Callable[[str], Bench]
    ) -> None:
        bench, seen = on("memory"), list[Any]()

        @consume("created", channel=bench.name())
        async def created(numbers: Sequence[int]) -> None:
            seen.append(numbers)

        async with bench.service(created) as service:
            await service.send(bench.name(), "created", [1, 2])
            await wait_for(lambda: seen)
        assert seen == [[1, 2]]


def one_by_one(order: Order) -> None: ...


def with_context(orders: list[Order], ctx: MessageContext) -> None: ...


def with_envelope(orders: list[Order], envelope: Envelope[Order]) -> None: ...


def batch(orders: list[Order]) -> None: ...


@pytest.mark.parametrize(
    ("function", "options", "text"),
    [
        (one_by_one, {"batch_size": 5}, "batch_size needs a parameter that takes a list"),
        (with_context, {}, "no context of one message"),
        (with_envelope, {}, "nothing fills|no context of one message"),
        (batch, {"idempotent": "resumable"}, "no steps of one message"),
        (batch, {"batch_size": 0}, "batch_size must be at least 1"),
        (batch, {"batch_size": 65_535, "concurrency": 2}, "at most 65535"),
        (batch, {"queue": WorkQueue("other")}, "got the name 'other'"),
    ],
)
def test_mistakes(
    on: Callable[[str], Bench],
    function: Callable[..., Any],
    options: dict[str, Any],
    text: str,
) -> None:
    bench = on("memory")
    with pytest.raises(ConfigurationError, match=text):
        bench.service(consume("created", channel="orders", **options)(_copy(function)))


def test_a_batch_acknowledges_as_a_whole(on: Callable[[str], Bench]) -> None:
    declared = consume("created", channel="orders")(_copy(batch))
    with pytest.raises(ConfigurationError, match="manual"):
        QueueService(on("memory").settings(), channels=[declared], ack=AckStrategy(mode="manual"))


def _copy(function: Callable[..., Any]) -> Callable[..., Any]:
    """One that no other test has declared anything about."""

    def copied(*arguments: Any) -> Any:
        return function(*arguments)

    copied.__wrapped__ = function  # type: ignore[attr-defined] - its signature
    copied.__annotations__ = function.__annotations__
    copied.__qualname__ = function.__qualname__
    return copied
