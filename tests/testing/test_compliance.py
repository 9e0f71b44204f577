"""The compliance suite finds what it looks for: each broken transport here fails a named test."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import ClassVar

import msgspec
import pytest
from tests.support.raw_memory import MemoryEntries

from matador.errors import MatadorError, TransportError, UnstorableError
from matador.model.capabilities import Capabilities
from matador.model.message import (
    REASON_HEADER,
    Complete,
    ConnectionState,
    DeadLetter,
    Delivery,
    Message,
    QueueDepth,
    Receipt,
    Release,
    Retry,
    Settlement,
    TopologyNote,
)
from matador.model.topology import Topology
from matador.testing import TransportCompliance
from matador.testing.compliance.raw import RawEntries
from matador.transports.base import Subscription, Transport
from matador.transports.memory import MemoryTransport


class Altered(MemoryTransport):
    """A transport that does something else with messages, settlements or deliveries."""

    declared: ClassVar[dict[str, object]] = {}

    @property
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities, **self.declared)

    def on_send(self, message: Message) -> Message:
        return message

    def on_settle(self, settlement: Settlement) -> Settlement:
        return settlement

    def on_receive(self, deliveries: Sequence[Delivery]) -> Sequence[Delivery]:
        return deliveries

    async def send(self, messages: Sequence[Message]) -> Sequence[MatadorError | None]:
        return await super().send([self.on_send(message) for message in messages])

    async def settle(self, settlements: Sequence[Settlement]) -> Sequence[MatadorError | None]:
        return await super().settle([self.on_settle(settlement) for settlement in settlements])

    async def subscribe(self, queue: str, *, prefetch: int) -> Subscription:
        inner = await super().subscribe(queue, prefetch=prefetch)
        return AlteredSubscription(inner, self.on_receive)


class AlteredSubscription:
    more = 0

    def __init__(
        self, inner: Subscription, alter: Callable[[Sequence[Delivery]], Sequence[Delivery]]
    ) -> None:
        self._inner = inner
        self._alter = alter

    @property
    def queue(self) -> str:
        return self._inner.queue

    @property
    def active(self) -> bool:
        return self._inner.active

    async def receive(self, limit: int) -> Sequence[Delivery]:
        return self._alter(await self._inner.receive(limit + self.more))

    async def close(self) -> None:
        await self._inner.close()


class LosesHeaders(Altered):
    def on_send(self, message: Message) -> Message:
        return msgspec.structs.replace(message, headers={})


class CutsBodies(Altered):
    def on_send(self, message: Message) -> Message:
        return msgspec.structs.replace(message, body=message.body[: 64 * 1024])


class DeliversDelayedNow(Altered):
    def on_send(self, message: Message) -> Message:
        return msgspec.structs.replace(message, delay=0.0)


class ForgetsKeys(Altered):
    def on_send(self, message: Message) -> Message:
        return msgspec.structs.replace(message, ordering_key=None)


class ForgetsPriorities(Altered):
    def on_send(self, message: Message) -> Message:
        return msgspec.structs.replace(message, priority=None)


class AcceptsAnyQueue(Altered):
    async def send(self, messages: Sequence[Message]) -> Sequence[MatadorError | None]:
        await super().send(messages)
        return [None] * len(messages)


class SendsWhileDisconnected(Altered):
    async def send(self, messages: Sequence[Message]) -> Sequence[MatadorError | None]:
        if self.state.status != "connected":
            return [None] * len(messages)
        return await super().send(messages)


class StoresTheOthersOnlyIfAllAreGood(Altered):
    async def send(self, messages: Sequence[Message]) -> Sequence[MatadorError | None]:
        outcomes = await super().send(messages)
        if any(outcomes):
            self.clear()
        return outcomes


class CompletesRetries(Altered):
    def on_settle(self, settlement: Settlement) -> Settlement:
        return Complete(settlement.receipt) if isinstance(settlement, Retry) else settlement


class ReleasesWhatIsCompleted(Altered):
    def on_settle(self, settlement: Settlement) -> Settlement:
        return Release(settlement.receipt) if isinstance(settlement, Complete) else settlement


class DropsDeadLetters(Altered):
    def on_settle(self, settlement: Settlement) -> Settlement:
        return Complete(settlement.receipt) if isinstance(settlement, DeadLetter) else settlement


class LosesReasons(Altered):
    def on_receive(self, deliveries: Sequence[Delivery]) -> Sequence[Delivery]:
        return [
            msgspec.structs.replace(
                delivery,
                headers={k: v for k, v in delivery.headers.items() if k != REASON_HEADER},
            )
            for delivery in deliveries
        ]


class NeverSaysRedelivered(Altered):
    def on_receive(self, deliveries: Sequence[Delivery]) -> Sequence[Delivery]:
        return [_with_receipt(delivery, redelivered=False) for delivery in deliveries]


class CountsFromZero(Altered):
    def on_receive(self, deliveries: Sequence[Delivery]) -> Sequence[Delivery]:
        return [
            _with_receipt(delivery, delivery_count=delivery.receipt.delivery_count - 1)
            for delivery in deliveries
        ]


class ReversesBatches(Altered):
    def on_receive(self, deliveries: Sequence[Delivery]) -> Sequence[Delivery]:
        return list(reversed(deliveries))


class DeliversTwice(Altered):
    def on_receive(self, deliveries: Sequence[Delivery]) -> Sequence[Delivery]:
        return [*deliveries[:-1], deliveries[0]] if len(deliveries) > 1 else deliveries


class SettlesTwice(Altered):
    async def settle(self, settlements: Sequence[Settlement]) -> Sequence[MatadorError | None]:
        await super().settle(settlements)
        return [None] * len(settlements)


class TakesMoreThanAsked(Altered):
    async def subscribe(self, queue: str, *, prefetch: int) -> Subscription:
        subscription = await super().subscribe(queue, prefetch=prefetch)
        assert isinstance(subscription, AlteredSubscription)
        subscription.more = 1
        return subscription


class LosesOnCancel(Altered):
    async def subscribe(self, queue: str, *, prefetch: int) -> Subscription:
        inner = await super().subscribe(queue, prefetch=prefetch)

        class Slow(AlteredSubscription):
            async def receive(self, limit: int) -> Sequence[Delivery]:
                taken = await super().receive(limit)
                for _ in range(3):
                    await asyncio.sleep(0)
                return taken

        return Slow(inner, self.on_receive)


class NeverClosesReceivers(Altered):
    async def subscribe(self, queue: str, *, prefetch: int) -> Subscription:
        inner = await super().subscribe(queue, prefetch=prefetch)

        class Endless(AlteredSubscription):
            async def close(self) -> None:
                return None

        return Endless(inner, self.on_receive)


class HidesDepthButHasIt(Altered):
    declared = {"depth": False}


class HidesBrowseButHasIt(Altered):
    declared = {"browse": False}


class HidesReplayButHasIt(Altered):
    declared = {"replay": False}


class HidesDelaysButHasThem(Altered):
    declared = {"delays": False}


class DeclaresLeasesItHasNot(Altered):
    declared = {"lease": 0.1}


class MiscountsDepth(Altered):
    async def depth(self, queue: str) -> QueueDepth:
        return replace(await super().depth(queue), in_flight=0)


class PurgesWhatIsHeld(Altered):
    async def purge(self, queue: str) -> int:
        count = await super().purge(queue)
        self.clear()
        return count


class RaisesOnOddHeaders(Altered):
    def on_receive(self, deliveries: Sequence[Delivery]) -> Sequence[Delivery]:
        for delivery in deliveries:
            for value in delivery.headers.values():
                str(value).encode()
        return deliveries


class DropsWhatIsOdd(Altered):
    async def subscribe(self, queue: str, *, prefetch: int) -> Subscription:
        inner = await super().subscribe(queue, prefetch=prefetch)
        settle = super().settle

        class Picky(AlteredSubscription):
            async def receive(self, limit: int) -> Sequence[Delivery]:
                while True:
                    taken = await inner.receive(limit)
                    odd = [one for one in taken if not one.body.startswith(b"{")]
                    await settle([Complete(one.receipt) for one in odd])
                    if good := [one for one in taken if one not in odd]:
                        return good

        return Picky(inner, self.on_receive)


class NeverSettlesRawLetters(Altered):
    async def settle(self, settlements: Sequence[Settlement]) -> Sequence[MatadorError | None]:
        return [
            None
            if isinstance(one, DeadLetter) and one.message is None
            else (await super(Altered, self).settle([one]))[0]
            for one in settlements
        ]


class LosesItsConnection(Altered):
    def on_receive(self, deliveries: Sequence[Delivery]) -> Sequence[Delivery]:
        if any(not delivery.body for delivery in deliveries):
            self._change_state(ConnectionState("reconnecting"))
            self._change_state(ConnectionState("connected"))
        return deliveries


class HandsOutTwice(Altered):
    def on_receive(self, deliveries: Sequence[Delivery]) -> Sequence[Delivery]:
        return [*deliveries, *deliveries]


class HidesPauseButHasIt(Altered):
    declared = {"pause": False}


class PausesInNameOnly(Altered):
    """It says that it is paused, and delivers all the same."""

    _paused: frozenset[str] = frozenset()

    async def pause_queue(self, queue: str) -> None:
        await self.depth(queue)
        self._paused |= {queue}

    async def resume_queue(self, queue: str) -> None:
        self._paused -= {queue}

    async def is_paused(self, queue: str) -> bool:
        return queue in self._paused


class WakesNobodyAfterAPause(Altered):
    async def resume_queue(self, queue: str) -> None:
        self._store.queue(queue).paused = False


class LosesWhatAPausedQueueGets(Altered):
    async def send(self, messages: Sequence[Message]) -> Sequence[MatadorError | None]:
        kept = [message for message in messages if not await self.is_paused(message.queue)]
        await super().send(kept)
        return [None] * len(messages)


class SettlesNothingWhilePaused(Altered):
    async def settle(self, settlements: Sequence[Settlement]) -> Sequence[MatadorError | None]:
        if any([await self.is_paused(one.receipt.queue) for one in settlements]):
            return [TransportError("it is paused") for _ in settlements]
        return await super().settle(settlements)


class EndsAPauseWithTheTopology(Altered):
    async def apply_topology(self, topology: Topology) -> Sequence[TopologyNote]:
        notes = await super().apply_topology(topology)
        for queue in topology.queues:
            await self.resume_queue(topology.full_name(queue.name))
        return notes


class RaisesWhatTheClientRaises(Altered):
    def on_settle(self, settlement: Settlement) -> Settlement:
        _texts(settlement).encode()
        return settlement


class CallsEverythingTransient(Altered):
    async def settle(self, settlements: Sequence[Settlement]) -> Sequence[MatadorError | None]:
        return [
            (await super(Altered, self).settle([one]))[0]
            if _texts(one).isascii()
            else TransportError("cannot be encoded")
            for one in settlements
        ]


class RefusesTheWholeBatch(Altered):
    async def settle(self, settlements: Sequence[Settlement]) -> Sequence[MatadorError | None]:
        if all(_texts(one).isascii() for one in settlements):
            return await super().settle(settlements)
        return [UnstorableError("cannot be encoded") for _ in settlements]


class KeepsHeadersOfBareLetters(Altered):
    def on_settle(self, settlement: Settlement) -> Settlement:
        if isinstance(settlement, DeadLetter):
            return msgspec.structs.replace(settlement, bare=False)
        return settlement


class SwallowsWhatItCannotStore(Altered):
    def on_settle(self, settlement: Settlement) -> Settlement:
        sound = _texts(settlement).isascii()
        return settlement if sound else Complete(settlement.receipt)


def _texts(settlement: Settlement) -> str:
    reason = settlement.reason if isinstance(settlement, DeadLetter) else ""
    message = settlement.message if isinstance(settlement, (DeadLetter, Retry)) else None
    return reason + ("" if message is None else message.id)


def _with_receipt(delivery: Delivery, **changes: object) -> Delivery:
    receipt: Receipt = msgspec.structs.replace(delivery.receipt, **changes)
    return msgspec.structs.replace(delivery, receipt=receipt)


ODD_ENTRIES = "test_odd_entries_are_kept_and_stop_nobody"

BROKEN: list[tuple[type[Altered], str]] = [
    (LosesHeaders, "test_headers_are_kept"),
    (DeliversDelayedNow, "test_a_delayed_message_is_not_early"),
    (ForgetsKeys, "test_one_key_is_handled_in_order_and_one_at_a_time"),
    (ForgetsPriorities, "test_higher_priorities_come_first"),
    (AcceptsAnyQueue, "test_each_message_has_its_outcome_and_the_others_are_stored"),
    (
        StoresTheOthersOnlyIfAllAreGood,
        "test_each_message_has_its_outcome_and_the_others_are_stored",
    ),
    (SendsWhileDisconnected, "test_nothing_works_while_disconnected"),
    (CompletesRetries, "test_retry_stores_the_successor_and_removes_the_original"),
    (ReleasesWhatIsCompleted, "test_complete_removes"),
    (DropsDeadLetters, "test_raw_bytes_are_kept"),
    (LosesReasons, "test_raw_bytes_are_kept"),
    (NeverSaysRedelivered, "test_what_a_vanished_consumer_held_is_redelivered"),
    (CountsFromZero, "test_a_first_delivery_says_so"),
    (ReversesBatches, "test_one_consumer_sees_the_order_of_sending"),
    (DeliversTwice, "test_many_consumers_handle_each_message_once"),
    (SettlesTwice, "test_settling_twice_changes_nothing"),
    (TakesMoreThanAsked, "test_receive_respects_its_limit"),
    (LosesOnCancel, "test_a_cancelled_receive_loses_nothing"),
    (NeverClosesReceivers, "test_close_ends_a_waiting_receive"),
    (HidesDepthButHasIt, "test_depth_counts_each_state"),
    (HidesBrowseButHasIt, "test_browsing_shows_all_and_consumes_nothing"),
    (HidesReplayButHasIt, "test_what_is_finished_can_be_read_again"),
    (HidesDelaysButHasThem, "test_a_delayed_message_is_not_early"),
    (DeclaresLeasesItHasNot, "test_an_expired_lease_is_redelivered_and_fenced"),
    (MiscountsDepth, "test_depth_counts_each_state"),
    (PurgesWhatIsHeld, "test_purge_deletes_all_that_nobody_holds"),
    (HidesPauseButHasIt, "test_a_paused_queue_takes_messages_and_delivers_none"),
    (PausesInNameOnly, "test_a_paused_queue_takes_messages_and_delivers_none"),
    (PausesInNameOnly, "test_a_pause_counts_for_all_processes"),
    (LosesWhatAPausedQueueGets, "test_a_paused_queue_takes_messages_and_delivers_none"),
    (WakesNobodyAfterAPause, "test_a_receive_that_waits_gets_nothing_until_the_end_of_the_pause"),
    (SettlesNothingWhilePaused, "test_what_is_held_when_a_queue_is_paused_can_be_settled"),
    (EndsAPauseWithTheTopology, "test_the_topology_applied_again_does_not_end_a_pause"),
    (RaisesOnOddHeaders, ODD_ENTRIES),
    (DropsWhatIsOdd, ODD_ENTRIES),
    (NeverSettlesRawLetters, ODD_ENTRIES),
    (LosesItsConnection, ODD_ENTRIES),
    (HandsOutTwice, ODD_ENTRIES),
    (KeepsHeadersOfBareLetters, "test_a_bare_dead_letter_has_the_body_the_reason_and_nothing_else"),
]
UNSTORABLE: list[type[Altered]] = [
    RaisesWhatTheClientRaises,
    CallsEverythingTransient,
    RefusesTheWholeBatch,
    SwallowsWhatItCannotStore,
]


class Suite(TransportCompliance):
    quiet = 0.03
    load = 1000

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def make_transport(self) -> Transport:
        return self._transport

    async def raw_entries(self) -> RawEntries | None:
        assert isinstance(self._transport, MemoryTransport)
        return MemoryEntries(self._transport)


async def run(transport: Transport, test: str, *arguments: str, patience: float = 30.0) -> None:
    suite = Suite(transport)
    suite.patience = patience
    suite.prepare()
    try:
        async with asyncio.timeout(20 + patience):
            await getattr(suite, test)(*arguments)
    finally:
        await suite.tidy_up()


@pytest.mark.parametrize(("broken", "test"), BROKEN, ids=[broken.__name__ for broken, _ in BROKEN])
async def test_a_broken_transport_is_found(broken: type[Altered], test: str) -> None:
    with pytest.raises((Exception, pytest.fail.Exception)) as caught:
        await run(broken(), test, patience=0.5)
    assert not isinstance(caught.value, AttributeError), caught.value


@pytest.mark.parametrize("test", sorted({test for _, test in BROKEN}))
async def test_an_unaltered_one_passes(test: str) -> None:
    await run(Altered(), test)


@pytest.mark.parametrize("broken", UNSTORABLE)
async def test_settlements_that_never_end_are_found(broken: type[Altered]) -> None:
    for test, odd in (
        ("test_an_odd_successor_is_stored_or_refused_for_good", "surrogate in the id"),
        ("test_an_odd_reason_is_stored_or_refused_for_good", "surrogate"),
    ):
        await run(Altered(), test, odd)
        with pytest.raises((AssertionError, UnicodeEncodeError)):
            await run(broken(), test, odd, patience=0.5)


async def test_a_transport_that_others_can_write_to_must_be_written_to() -> None:
    class Closed(Suite):
        async def raw_entries(self) -> None:
            return None

    class Outside(Altered):
        declared = {"in_process": False}

    for transport, fails in ((Altered(), False), (Outside(), True)):
        suite = Closed(transport)
        suite.prepare()
        with pytest.raises(AssertionError) if fails else nullcontext():
            await suite.test_odd_entries_are_kept_and_stop_nobody()
        await suite.tidy_up()


async def test_cut_bodies_are_found() -> None:
    suite = Suite(CutsBodies())
    suite.prepare()
    with pytest.raises(AssertionError):
        await suite.test_bodies_are_kept(b"x" * 256 * 1024)
    await suite.tidy_up()
