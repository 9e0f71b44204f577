"""Messages arrive unchanged in their queues, and each has its own outcome."""

from __future__ import annotations

import pytest

from matador.errors import MessageTooLargeError, QueueNotFoundError
from matador.model.message import Message
from matador.testing.compliance.base import ComplianceBase
from matador.testing.compliance.bench import bodies

_BINARY = bytes(range(256))
_LARGE = 256 * 1024


class SendCompliance(ComplianceBase):
    """Payloads, headers, outcomes, isolation."""

    @pytest.mark.parametrize(
        "body",
        [b"", _BINARY, b"\x00", "ünïcödé 🐂".encode(), b"{}", _BINARY * (_LARGE // 256)],
        ids=["empty", "binary", "null", "unicode", "json", "large"],
    )
    async def test_bodies_are_kept(self, body: bytes) -> None:
        bench = await self.open()
        most = self.body_limit or bench.can.max_message_size
        body = body if most is None else body[:most]
        await bench.send(bench.message(body))
        (delivery,) = await bench.drain(bench.name(), 1)
        assert delivery.body == body

    async def test_headers_are_kept(self) -> None:
        bench = await self.open()
        headers = {"plain": "value", "unicode": "ünïcödé 🐂", "empty": "", "number": 42, "zero": 0}
        await bench.send(bench.message("a", headers=headers), bench.message("b"))
        deliveries = await bench.drain(bench.name(), 2)
        by_body = {delivery.body: dict(delivery.headers) for delivery in deliveries}
        assert headers.items() <= by_body[b"a"].items()
        assert not headers.keys() & by_body[b"b"].keys(), "headers must not leak"

    async def test_priority_and_ordering_key_come_back_in_the_receipt(self) -> None:
        bench = await self.open("events")
        await bench.send(bench.message("a", priority=3, key="k-1"))
        (delivery,) = await bench.drain(bench.name(), 1)
        assert delivery.receipt.priority == 3
        assert delivery.receipt.ordering_key == "k-1"

    async def test_a_message_over_the_limit_is_refused(self) -> None:
        bench = await self.open()
        most = bench.can.max_message_size
        if most is None:
            await bench.send(bench.message(b"x" * 4 * _LARGE))
            (delivery,) = await bench.drain(bench.name(), 1)
            assert len(delivery.body) == 4 * _LARGE
            return
        outcomes = await bench.transport.send([bench.message(b"x" * (most + 1))])
        assert isinstance(outcomes[0], MessageTooLargeError)
        assert outcomes[0].limit == most

    async def test_sending_nothing_is_fine(self) -> None:
        bench = await self.open()
        assert list(await bench.transport.send([])) == []
        assert list(await bench.transport.settle([])) == []

    async def test_each_message_has_its_outcome_and_the_others_are_stored(self) -> None:
        bench = await self.open()
        unknown = Message("x", f"{bench.name()}-unknown", b"lost?")
        outcomes = await bench.transport.send(
            [bench.message("a"), unknown, bench.message("b"), unknown]
        )
        assert [type(outcome) for outcome in outcomes] == [type(None), QueueNotFoundError] * 2
        assert sorted(bodies(await bench.drain(bench.name(), 2))) == ["a", "b"]

    async def test_one_batch_may_go_to_several_queues(self) -> None:
        bench = await self.open("first", "second")
        await bench.send(
            bench.message("1", queue="first"),
            bench.message("2", queue="second"),
            bench.message("3", queue="first"),
        )
        assert sorted(bodies(await bench.drain(bench.name("first"), 2))) == ["1", "3"]
        assert bodies(await bench.drain(bench.name("second"), 1)) == ["2"]

    async def test_namespaces_are_apart(self) -> None:
        ours = await self.open(topology=self.topology("events"))
        theirs = await self.open(topology=self.topology("events", namespace="x"))
        await ours.send("ours")
        await theirs.send("theirs")
        assert bodies(await ours.drain(ours.name(), 1)) == ["ours"]
        assert bodies(await theirs.drain(theirs.name(), 1)) == ["theirs"]

    async def test_an_unknown_queue_cannot_be_subscribed_to(self) -> None:
        bench = await self.open()
        with pytest.raises(QueueNotFoundError):
            await bench.transport.subscribe(f"{bench.name()}-unknown", prefetch=1)

    async def test_the_same_id_may_be_sent_twice(self) -> None:
        # A redrive and a retry keep the id; telling duplicates is not the transport's work.
        bench = await self.open()
        await bench.send(bench.message("a", id="same"), bench.message("b", id="same"))
        assert sorted(bodies(await bench.drain(bench.name(), 2))) == ["a", "b"]
