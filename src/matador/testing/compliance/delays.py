"""Delays: never early, in order of their time, and safe meanwhile."""

from __future__ import annotations

import time

from matador.errors import DelaysNotSupportedError
from matador.model.message import Delivery
from matador.testing.compliance.base import ComplianceBase, growing
from matador.testing.compliance.bench import Bench, bodies

_EARLY = 0.01  # how much sooner a delay may end: clocks are rounded


class DelayCompliance(ComplianceBase):
    """Messages for later."""

    async def test_a_delayed_message_is_not_early(self) -> None:
        bench = await self.open()
        if await self._refuses_delays(bench):
            return
        subscription = await bench.subscribe()
        sent_at = time.monotonic()
        await bench.send(bench.message("later", delay=0.2))
        await bench.send("now")
        waited: dict[str, float] = {}
        for _ in range(2):
            delivery = await bench.receive_one(subscription)
            assert delivery.receipt.delivery_count == 1
            waited[delivery.body.decode()] = time.monotonic() - sent_at
        assert set(waited) == {"now", "later"}
        assert waited["later"] >= 0.2 - _EARLY

    async def test_delayed_messages_come_in_order_of_their_time(self) -> None:
        bench = await self.open()
        if await self._refuses_delays(bench):
            return
        subscription = await bench.subscribe()
        received: list[Delivery] = []
        for step in growing(self.delay_step):
            await bench.send(
                bench.message("third", delay=3 * step),
                bench.message("first", delay=step),
                bench.message("second", delay=2 * step),
            )
            # One at a time, so that each is received at its own time.
            received = [await bench.receive_one(subscription) for _ in range(3)]
            await bench.complete(received)
            if bodies(received) == ["first", "second", "third"]:
                return
            # On a busy machine they may be due together, and then have any order.
        assert bodies(received) == ["first", "second", "third"]

    async def test_a_shorter_delay_overtakes_one_that_is_waited_for(self) -> None:
        bench = await self.open()
        if await self._refuses_delays(bench):
            return
        subscription = await bench.subscribe()
        await bench.send(bench.message("long", delay=3600))
        await bench.nothing_comes(subscription)
        await bench.send(bench.message("short", delay=0.05))
        assert bodies([await bench.receive_one(subscription)]) == ["short"]

    async def test_a_delayed_message_survives_a_reconnect(self) -> None:
        bench = await self.open()
        if await self._refuses_delays(bench):
            return
        sent_at = time.monotonic()
        await bench.send(bench.message("later", delay=0.2))
        if bench.can.durable:
            bench = await self.reopen(bench)
        assert bodies([await bench.receive_one(await bench.subscribe())]) == ["later"]
        assert time.monotonic() - sent_at >= 0.2 - _EARLY

    async def _refuses_delays(self, bench: Bench) -> bool:
        """The negative case: a named error for the delayed message, the others stored."""
        if bench.can.delays:
            return False
        outcomes = await bench.transport.send(
            [bench.message("later", delay=0.05), bench.message("now")]
        )
        assert isinstance(outcomes[0], DelaysNotSupportedError)
        assert outcomes[1] is None
        assert bodies(await bench.drain(bench.name(), 1)) == ["now"]
        return True
