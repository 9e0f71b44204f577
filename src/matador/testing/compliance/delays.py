"""Delays: never early, in order of their time, and safe meanwhile."""

from __future__ import annotations

import time

from matador.errors import DelaysNotSupportedError
from matador.testing.compliance.base import ComplianceBase
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
        assert bodies([await bench.receive_one(subscription)]) == ["now"]
        delivery = await bench.receive_one(subscription)
        assert bodies([delivery]) == ["later"]
        assert time.monotonic() - sent_at >= 0.2 - _EARLY
        assert delivery.receipt.delivery_count == 1

    async def test_delayed_messages_come_in_order_of_their_time(self) -> None:
        bench = await self.open()
        if await self._refuses_delays(bench):
            return
        subscription = await bench.subscribe()
        await bench.send(
            bench.message("third", delay=3 * self.delay_step),
            bench.message("first", delay=self.delay_step),
            bench.message("second", delay=2 * self.delay_step),
        )
        # One at a time, so that each is received at its own time.
        received = [await bench.receive_one(subscription) for _ in range(3)]
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
