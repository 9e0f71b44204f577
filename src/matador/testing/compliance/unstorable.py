"""Settlements that cannot be stored are refused as such, alone, and there is a form that fits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from matador.errors import UnstorableError
from matador.model.message import (
    REASON_HEADER,
    Complete,
    DeadLetter,
    Delivery,
    Message,
    Retry,
    Settlement,
)
from matador.testing.compliance.base import ComplianceBase
from matador.testing.compliance.bench import Bench, bodies

_SURROGATE = "caf\udcff"
_LONG = "x" * 300_000


def _nested(levels: int) -> list[Any]:
    nested: list[Any] = []
    for _ in range(levels):
        nested = [nested]
    return nested


_ODD: dict[str, Mapping[str, Any]] = {
    "surrogate in the id": {"id": _SURROGATE},
    "long id": {"id": _LONG},
    "surrogate in a header": {"headers": {"text": _SURROGATE}},
    "surrogate in a header's name": {"headers": {_SURROGATE: "text"}},
    "long header": {"headers": {"text": _LONG}},
    "long header's name": {"headers": {_LONG: "text"}},
    "many headers": {"headers": {f"header-{number}": "x" * 1000 for number in range(1000)}},
    "number of more than 64 bits": {"headers": {"number": 2**70}},
    "header of another type": {"headers": {"object": object()}},
    "nested header": {"headers": {"deep": _nested(3_000)}},
    "surrogate in the ordering key": {"ordering_key": _SURROGATE},
    "long ordering key": {"ordering_key": _LONG},
    "absurd priority": {"priority": 2**70},
    "negative priority": {"priority": -(2**70)},
}
_REASONS = {"surrogate": _SURROGATE, "long": _LONG, "NUL": "a\0b", "empty": ""}


class UnstorableCompliance(ComplianceBase):
    """Every settlement ends: it succeeds, or is refused permanently and a simpler one succeeds."""

    @pytest.mark.parametrize("odd", _ODD)
    async def test_an_odd_successor_is_stored_or_refused_for_good(self, odd: str) -> None:
        bench = await self.open()
        for settle in (_retry, _dead_letter):
            delivery, neighbor = await self._two(bench)
            message = _message(bench, **_ODD[odd])
            await self._one_is_odd(bench, settle(delivery, message), neighbor)

    @pytest.mark.parametrize("reason", _REASONS)
    async def test_an_odd_reason_is_stored_or_refused_for_good(self, reason: str) -> None:
        bench = await self.open()
        for message in (None, _message(bench)):
            delivery, neighbor = await self._two(bench)
            letter = DeadLetter(delivery.receipt, "undeliverable", _REASONS[reason], message)
            await self._one_is_odd(bench, letter, neighbor)

    @pytest.mark.parametrize("odd", _ODD)
    async def test_an_odd_message_is_sent_or_refused_for_good(self, odd: str) -> None:
        bench = await self.open()
        messages = [bench.message("a"), _message(bench, **_ODD[odd]), bench.message("b")]
        first, outcome, last = await bench.transport.send(messages)
        assert (first, last) == (None, None), "its neighbors are stored"
        assert outcome is None or isinstance(outcome, UnstorableError)
        await bench.drain(bench.name(), 3 if outcome is None else 2)

    async def test_a_bare_dead_letter_has_the_body_the_reason_and_nothing_else(self) -> None:
        bench = await self.open()
        raw = b"\x00\xff not { an envelope"
        await bench.send(bench.message(raw, headers={"theirs": "odd"}, id="i" * 200, key="k" * 200))
        delivery = await bench.receive_one(await bench.subscribe())
        await bench.settle(DeadLetter(delivery.receipt, "undeliverable", "fixed", bare=True))
        again = await self.reopen(bench, restart=True) if bench.can.durable else bench
        (letter,) = await again.drain(again.dead_letters(), 1)
        assert letter.body == raw
        assert letter.headers[REASON_HEADER] == "fixed"
        assert "theirs" not in letter.headers
        assert letter.problem is None
        await again.nothing_comes(await again.subscribe())

    async def test_deleted_dead_letters_are_made_again(self) -> None:
        bench = await self.open()
        delivery, neighbor = await self._two(bench)
        for name in (bench.dead_letters("undeliverable"), bench.dead_letters("unhandled")):
            if not await self.delete_queue(name):
                assert bench.can.in_process or self.listens_first, "give delete_queue()"
        await bench.settle(
            DeadLetter(delivery.receipt, "undeliverable", "r", _message(bench, body=b"odd")),
            DeadLetter(neighbor.receipt, "unhandled", "r"),
        )
        assert bodies(await bench.drain(bench.dead_letters("undeliverable"), 1)) == ["odd"]
        assert bodies(await bench.drain(bench.dead_letters("unhandled"), 1)) == ["neighbor"]

    async def _two(self, bench: Bench) -> tuple[Delivery, Delivery]:
        """A delivery to be settled oddly, and its neighbor in the batch."""
        subscription = await bench.subscribe(prefetch=2)
        await bench.send("odd", "neighbor")
        received = await bench.receive(subscription, 2)
        await subscription.close()
        odd, neighbor = sorted(received, key=lambda delivery: delivery.body != b"odd")
        return odd, neighbor

    async def _one_is_odd(self, bench: Bench, odd: Settlement, neighbor: Delivery) -> None:
        settlements = [Complete(neighbor.receipt), odd]
        done, outcome = await bench.transport.settle(settlements)
        assert done is None, "its neighbor is settled"
        if outcome is None:
            where = bench.name() if isinstance(odd, Retry) else bench.dead_letters()
            assert bodies(await bench.drain(where, 1)) == ["odd"]
            return
        assert isinstance(outcome, UnstorableError), f"{outcome!r} would be tried for ever"
        # It is still ours, and the last form always fits.
        await bench.settle(DeadLetter(odd.receipt, "undeliverable", "fixed", bare=True))
        assert bodies(await bench.drain(bench.dead_letters(), 1)) == ["odd"]


def _message(bench: Bench, body: bytes = b"odd", **odd: Any) -> Message:
    given: dict[str, Any] = {"id": "m-1", "queue": bench.name(), "body": body, **odd}
    return Message(**given)


def _retry(delivery: Delivery, message: Message) -> Settlement:
    return Retry(delivery.receipt, message)


def _dead_letter(delivery: Delivery, message: Message) -> Settlement:
    return DeadLetter(delivery.receipt, "undeliverable", "r", message)
