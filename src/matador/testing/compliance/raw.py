"""Entries as a foreign program writes them: odd in every part, bypassing the transport.

``feed`` runs an application on them, with valid messages between them, and reports problems.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Protocol

import msgspec

from matador import Envelope, Hooks, Matador, Schema, event
from matador.errors import LeaseLostError, MatadorError
from matador.model.message import Complete, ConnectionState, Message
from matador.model.subscriber import Subscriber
from matador.model.topology import Topology
from matador.runtime.facts import Attempt
from matador.testing.wait import wait_for
from matador.transports.base import Browsing, Measuring, Subscription, Transport

_NEIGHBORS = 5
_AT_ONCE = 20  # dead letters in hand: few, so that no lease passes meanwhile


class RawEntries(Protocol):
    """Writes entries directly into a broker's queue, bypassing the transport.

    Writes anything that the broker accepts: bodies, headers, properties, fields and columns that
    are missing, of another type, too long, badly encoded, nested, out of range. Every entry must be
    due at once and must not expire; otherwise it is never received.
    """

    async def write(self, queue: str, random: Random) -> str:
        """Store one entry in a queue, by its full name; return a description for failure messages.

        The same state of ``random`` gives the same entry.
        """
        ...

    async def close(self) -> None:
        """Disconnect."""
        ...


@event("compliance.neighbor", description="A good message between odd ones.")
class Neighbor(msgspec.Struct, frozen=True):
    """A good message between odd ones."""

    number: int


@dataclass
class RawReport:
    """The outcomes of the entries; ``problems`` must be empty."""

    written: int = 0
    neighbors: int = 0
    handled: int = 0
    dead_letters: int = 0
    problems: list[str] = field(default_factory=list[str])


async def feed(
    transport: Transport,
    entries: RawEntries,
    topology: Topology,
    *,
    count: int,
    seed: int = 1,
    batch: int = 20,
    patience: float = 10.0,
    quiet: float = 0.1,
) -> RawReport:
    """Write ``count`` odd entries, and five good messages after every ``batch`` of them.

    Every good message must be handled once before the next batch is written, every odd entry must
    be handled or be among the dead letters, the connection must never be lost, and nothing may be
    left in the queue. A batch that stops the worker ends the run, and is described.
    """
    run = _Run(transport, topology, patience=patience, quiet=quiet)
    async with run.app:
        await run.start()
        try:
            for start in range(0, count, batch):
                numbers = range(start, min(start + batch, count))
                await run.write(entries, [Random(f"{seed}/{number}") for number in numbers])
                if run.report.problems:
                    return run.report
            await run.finish()
        except MatadorError as error:
            run.report.problems.append(f"the transport failed: {error!r}")
        finally:
            run.stop()
    if not run.report.problems:
        await run.look_again()
    return run.report


class _Run(Hooks):
    """One application on one transport, with observations of both."""

    def __init__(
        self, transport: Transport, topology: Topology, *, patience: float, quiet: float
    ) -> None:
        self.report = RawReport()
        self._transport = transport
        self._topology = topology
        self._queue = topology.full_name(topology.default_queue.name)
        self._letters = [name for _, _, name in topology.dead_letter_names()]
        self._patience = patience
        self._quiet = quiet
        self._neighbors: Counter[int] = Counter()
        self._refused = 0
        self._drained = 0
        self._watching = False
        self._tasks: list[asyncio.Task[None]] = []
        can = transport.capabilities
        subscriber: Subscriber[Neighbor] = Subscriber(
            name="neighbors", description="Count.", callback=self._handle, idempotent="yes"
        )
        self.app = Matador(
            transport,
            schema=Schema({Neighbor: [subscriber]}),
            topology=topology,
            consume_from=[topology.default_queue.name],
            delivery="at-least-once" if "at-least-once" in can.delivery_modes else "at-most-once",
            hooks=self,
        )
        transport.observe(self)

    # -- what is seen -----------------------------------------------------------------------------

    async def _handle(self, envelope: Envelope[Neighbor]) -> None:
        number = envelope.data.number
        if 0 <= number < self.report.neighbors:
            self._neighbors[number] += 1
        else:
            self.report.handled += 1  # an odd entry that is none

    def on_attempted(self, batch: Sequence[Attempt]) -> None:
        self._refused += sum(one.error is not None for one in batch)

    def connection_changed(self, transport: str, state: ConnectionState) -> None:
        if self._watching and state.status != "connected":
            self._problem(f"{transport} is {state.status}: {state.error}")

    def fell_back(self, message: Message, failed: str, next_: str, error: BaseException) -> None:
        self._problem(f"{failed} could not store a message: {error}")

    def dropped(self, queue: str, number: int) -> None:
        raise AssertionError("nothing may be dropped here")

    @property
    def _progress(self) -> int:
        ended = self.report.handled + self._refused + self._drained
        return ended + self._neighbors.total()

    def _problem(self, text: str) -> None:
        self.report.problems.append(text)

    # -- what is done -----------------------------------------------------------------------------

    async def start(self) -> None:
        """Once the application runs: observe it, and subscribe where a dead letter would otherwise
        be lost."""
        self._watching = True
        if not self._transport.capabilities.browse:
            await self._drain()

    async def write(self, entries: RawEntries, randoms: list[Random]) -> None:
        """Write odd entries, then good messages, and wait until those are handled."""
        described: list[str] = []
        for random in randoms:
            described.append(await entries.write(self._queue, random))
            self.report.written += 1
        await self._send_neighbors()
        if self.report.problems:
            self._problem(f"it happened with: {described}")

    async def finish(self) -> None:
        """Check that every entry has an outcome."""
        report = self.report

        async def ended() -> bool:
            return report.handled + self._refused >= report.written and self.app.state.is_idle

        await self._wait(ended, lambda: f"{report.handled + self._refused} entries to end")
        await self._send_neighbors()  # the subscription is alive
        transport = self._transport
        if transport.capabilities.depth and isinstance(transport, Measuring):

            async def empty() -> bool:
                return (await transport.depth(self._queue)).total == 0

            await self._wait(empty, lambda: "the queue to be empty")
        if transport.capabilities.browse and isinstance(transport, Browsing):
            for name in self._letters:
                report.dead_letters += len([one async for one in transport.browse(name)])
            await self._drain()
        expected = report.written - report.handled

        async def drained() -> bool:
            return self._drained >= expected

        await self._wait(drained, lambda: f"{self._drained} of {expected} dead letters")
        if not transport.capabilities.browse:
            report.dead_letters = self._drained
        if not expected == report.dead_letters == self._drained:
            self._problem(
                f"of {report.written} entries {report.handled} were handled; there are "
                f"{report.dead_letters} dead letters, and {self._drained} of them can be received"
            )

    def stop(self) -> None:
        """The application stops after this."""
        self._watching = False
        for task in self._tasks:
            task.cancel()

    async def look_again(self) -> None:
        """After the application has stopped, check that no message comes back."""
        await self._transport.connect()
        try:
            await self._transport.apply_topology(self._topology)
            for name in (self._queue, *self._letters):
                subscription = await self._transport.subscribe(name, prefetch=1)
                try:
                    async with asyncio.timeout(self._quiet):
                        left = await subscription.receive(1)
                    self._problem(f"{name} was not empty: {left}")
                except TimeoutError:
                    pass
        finally:
            await self._transport.disconnect()

    async def _send_neighbors(self) -> None:
        report = self.report
        first = report.neighbors
        report.neighbors += _NEIGHBORS
        numbers = range(first, report.neighbors)
        for number in numbers:
            await self.app.send(Neighbor(number))

        async def handled() -> bool:
            return all(self._neighbors[number] for number in numbers)

        await self._wait(handled, lambda: "the good neighbors to be handled")
        often = [number for number in numbers if self._neighbors[number] > 1]
        if often:
            self._problem(f"handled more than once: good messages {often}")

    async def _wait(
        self, condition: Callable[[], Awaitable[bool]], what: Callable[[], str]
    ) -> None:
        """Wait while there is progress; ``patience`` limits the time without progress."""
        while True:
            before = self._progress
            try:
                await wait_for(condition, timeout=self._patience)
            except TimeoutError:
                if self._progress != before:
                    continue
                self._problem(f"nothing has moved for {self._patience:g} s; waited for {what()}")
            return

    async def _drain(self) -> None:
        for name in self._letters:
            subscription = await self._subscribe(name)
            self._tasks.append(asyncio.create_task(self._drain_one(subscription)))

    async def _subscribe(self, name: str) -> Subscription:
        until = time.monotonic() + self._patience
        while True:
            try:
                return await self._transport.subscribe(name, prefetch=_AT_ONCE)
            except MatadorError:
                # A broker that is busy with what was just browsed may answer late.
                if time.monotonic() > until:
                    raise

    async def _drain_one(self, subscription: Subscription) -> None:
        try:
            while deliveries := await subscription.receive(_AT_ONCE):
                outcomes = await self._transport.settle([Complete(d.receipt) for d in deliveries])
                for outcome in outcomes:
                    self._drained += outcome is None
                    # A letter whose lease expired is delivered again: a slow machine is not a
                    # finding.
                    if not isinstance(outcome, LeaseLostError | None):
                        self._problem(f"a dead letter could not be settled: {outcome!r}")
        except Exception as error:  # noqa: BLE001 - any error is a finding
            self._problem(f"dead letters could not be received: {error!r}")
