"""An ordered group of transports: one of them sends, the others take over if it fails."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import TypeAlias

import msgspec

from matador.errors import (
    AllTransportsFailedError,
    ConfigurationError,
    ConnectionFailedError,
    MatadorError,
    NotConnectedError,
    UnsupportedError,
)
from matador.model.capabilities import Capabilities
from matador.model.message import (
    ConnectionState,
    Delivery,
    Message,
    Receipt,
    Release,
    Settlement,
    TopologyNote,
)
from matador.model.topology import Topology
from matador.transports.base import Leasing, Pausing, Subscription, Transport, TransportObserver
from matador.transports.kit.backoff import Backoff
from matador.transports.kit.errors import lease_lost
from matador.transports.kit.notes import ignored_exchanges
from matador.transports.kit.transport import BaseSubscription, BaseTransport
from matador.transports.kit.wakeup import Wakeup

log = logging.getLogger("matador.transport")

Choose: TypeAlias = Callable[[], str | Awaitable[str | None] | None]
"""Returns the name of the transport that sends now; None for the first."""


class MultiTransport(BaseTransport):
    """Several transports as one. Consumes from all, sends with one, and falls back in order.

    A message goes to the transport that ``choose`` names (the first, if it returns None or an
    unknown name, or raises). If that fails and ``fallback`` is on, the next connected transport
    gets the message, and the hooks are told. A transport that is down is skipped without waiting,
    and is connected again in the background.

    The group can send what its first transport can send. To browse, measure, pause or purge
    queues, use the transports themselves.

    Example:
        >>> MultiTransport([SqliteTransport("shop.db"), MemoryTransport()])
        MultiTransport(multi(sqlite,memory))
    """

    def __init__(
        self,
        transports: Sequence[Transport],
        *,
        fallback: bool = True,
        choose: Choose | None = None,
        reconnect_every: float = 1.0,
    ) -> None:
        if not transports:
            raise ConfigurationError("MultiTransport needs at least one transport")
        names = [transport.name for transport in transports]
        if len(set(names)) < len(names):
            raise ConfigurationError(
                f"MultiTransport: every transport needs a unique name, got {', '.join(names)}"
            )
        super().__init__(f"multi({','.join(names)})")
        self._transports = tuple(transports)
        self._fallback = fallback
        self._choose = choose
        self._every = reconnect_every
        self._topology: Topology | None = None
        self._subscriptions: set[_MultiSubscription] = set()
        self._reconnecting: set[asyncio.Task[None]] = set()

    def __repr__(self) -> str:
        return f"MultiTransport({self.name})"

    @property
    def transports(self) -> tuple[Transport, ...]:
        """The group, in order."""
        return self._transports

    @property
    def capabilities(self) -> Capabilities:
        """Those of the first transport, but the shortest lease and only what all of them carry."""
        every = [transport.capabilities for transport in self._transports]
        leases = [one.lease for one in every if one.lease]
        return replace(
            every[0],
            lease=min(leases) if leases else None,
            in_process=all(one.in_process for one in every),
            durable=all(one.durable for one in every),
            properties=every[0].properties.intersection(*(one.properties for one in every)),
            **dict.fromkeys(
                ("browse", "purge", "depth", "pause", "replay", "once", "routing"), False
            ),
        )

    def observe(self, observer: TransportObserver) -> Callable[[], None]:
        """See ``Transport``. Reports the states of the transports, by their names."""
        ends = contextlib.ExitStack()
        for one in (super().observe, *(transport.observe for transport in self._transports)):
            ends.callback(one(observer))
        return ends.close

    # -- connection -------------------------------------------------------------------------------

    async def _open(self) -> None:
        """Connect all at once; those that fail are tried again in the background.

        Raises:
            ConnectionFailedError: none could connect.
        """
        outcomes = await asyncio.gather(
            *(transport.connect() for transport in self._transports), return_exceptions=True
        )
        failures = [
            (transport, outcome)
            for transport, outcome in zip(self._transports, outcomes, strict=True)
            if isinstance(outcome, BaseException)
        ]
        unexpected = [failure for _, failure in failures if not isinstance(failure, MatadorError)]
        if unexpected or len(failures) == len(self._transports):
            await self._close()
            if unexpected:
                raise unexpected[0]
            reasons = "; ".join(f"{transport.name}: {failure}" for transport, failure in failures)
            raise ConnectionFailedError(f"no transport could be connected: {reasons}")
        self._state = ConnectionState("connected")
        for transport, failure in failures:
            log.warning("%s could not connect, trying again: %s", transport.name, failure)
            task = asyncio.create_task(self._reconnect(transport))
            self._reconnecting.add(task)
            task.add_done_callback(self._reconnecting.discard)

    async def _close(self) -> None:
        tasks = list(self._reconnecting)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for subscription in list(self._subscriptions):
            await subscription.close()
        for transport in self._transports:
            await transport.disconnect()
        self._state = ConnectionState("disconnected")

    async def _reconnect(self, transport: Transport) -> None:
        while True:
            await asyncio.sleep(self._every)
            try:
                await transport.connect()
                if self._topology is not None:
                    await transport.apply_topology(self._topology)
                for subscription in list(self._subscriptions):
                    await subscription.add(transport)
            except Exception as error:  # noqa: BLE001 - tried again, whatever it is
                log.debug("%s is still down: %s", transport.name, error)
            else:
                log.info("%s is connected again", transport.name)
                return

    def _connected(self) -> list[Transport]:
        return [one for one in self._transports if one.state.status == "connected"]

    # -- topology ---------------------------------------------------------------------------------

    async def apply_topology(self, topology: Topology) -> Sequence[TopologyNote]:
        """See ``Transport``. Applies to transports that are down as soon as they are connected."""
        self._require_connected()
        self._topology = topology
        notes = ignored_exchanges(topology) + [
            TopologyNote(topology.full_name(queue.name), "a group cannot read finished messages")
            for queue in topology.queues
            if queue.retention is not None
        ]
        for transport in self._connected():
            notes += [
                replace(note, text=f"{transport.name}: {note.text}")
                for note in await transport.apply_topology(topology)
            ]
        return notes

    # -- sending ----------------------------------------------------------------------------------

    async def send(self, messages: Sequence[Message]) -> Sequence[MatadorError | None]:
        """See ``Transport``."""
        self._require_connected()
        order = await self._order()
        if not self._fallback:
            return await _send(order[0], messages)
        outcomes: list[MatadorError | None] = [None] * len(messages)
        failed: list[list[tuple[str, BaseException]]] = [[] for _ in messages]
        left = list(range(len(messages)))
        for transport, next_ in zip_longest(order, order[1:]):
            errors = await _send(transport, [messages[i] for i in left])
            failing = [
                (i, error) for i, error in zip(left, errors, strict=True) if error is not None
            ]
            for i, error in failing:
                failed[i].append((transport.name, error))
                if next_ is not None:
                    self._report_fallback(messages[i], transport.name, next_.name, error)
            left = [i for i, _ in failing]
            if not left:
                break
        for i in left:
            outcomes[i] = AllTransportsFailedError(failed[i])
        return outcomes

    async def _order(self) -> list[Transport]:
        """The group with the chosen one first."""
        name: str | None = None
        if self._choose is not None:
            try:
                answer = self._choose()
                name = await answer if inspect.isawaitable(answer) else answer
            except Exception:
                log.exception("choose() raised an exception; using the first transport")
        known = {transport.name: transport for transport in self._transports}
        if name is not None and name not in known:
            log.warning("choose() returned %r, which is not in %s", name, self.name)
        chosen = known.get(name or "", self._transports[0])
        return [chosen, *(one for one in self._transports if one is not chosen)]

    # -- receiving --------------------------------------------------------------------------------

    async def subscribe(self, queue: str, *, prefetch: int) -> Subscription:
        """See ``Transport``. Receives from every transport of the group."""
        self._require_connected()
        subscription = _MultiSubscription(queue, prefetch, self._subscriptions.discard)
        try:
            for transport in self._connected():
                await subscription.add(transport)
        except BaseException:
            await subscription.close()
            raise
        self._subscriptions.add(subscription)
        return subscription

    async def settle(self, settlements: Sequence[Settlement]) -> Sequence[MatadorError | None]:
        """See ``Transport``. Each is settled by the transport that delivered it."""
        self._require_connected()
        outcomes: list[MatadorError | None] = [
            None
            if isinstance(one.receipt.handle, _From)
            else lease_lost(one.receipt.queue, "another transport has it")
            for one in settlements
        ]
        for transport, chosen in _by_transport([one.receipt for one in settlements]):
            inner = [
                msgspec.structs.replace(settlements[i], receipt=receipt) for i, receipt in chosen
            ]
            try:
                errors = await transport.settle(inner)
            except MatadorError as error:
                errors = [error] * len(chosen)
            for (i, _), error in zip(chosen, errors, strict=True):
                outcomes[i] = error
        return outcomes

    async def renew(self, receipts: Sequence[Receipt]) -> Sequence[bool]:
        """See ``Leasing``. Deliveries of transports without leases are always kept.

        If a transport cannot renew now, its deliveries count as kept, so that the others do not
        lose their leases.

        Raises:
            UnsupportedError: no transport of the group has leases.
        """
        if self.capabilities.lease is None:
            raise UnsupportedError(f"no transport in {self.name} has leases")
        self._require_connected()
        kept = [True] * len(receipts)
        for transport, chosen in _by_transport(receipts):
            if not isinstance(transport, Leasing) or transport.capabilities.lease is None:
                continue
            try:
                renewed = await transport.renew([receipt for _, receipt in chosen])
            except MatadorError as error:
                log.warning("%s could not renew leases: %s", transport.name, error)
                continue
            for (i, _), still in zip(chosen, renewed, strict=True):
                kept[i] = still
        return kept


class _From(msgspec.Struct, frozen=True):
    """The handle of a receipt: who delivered it, and the transport's own receipt."""

    transport: Transport
    receipt: Receipt


def _by_transport(
    receipts: Sequence[Receipt],
) -> Iterable[tuple[Transport, list[tuple[int, Receipt]]]]:
    """The transports that delivered these, each with the places and its own receipts."""
    groups: dict[str, tuple[Transport, list[tuple[int, Receipt]]]] = {}
    for i, receipt in enumerate(receipts):
        source = receipt.handle
        if isinstance(source, _From):
            group = groups.setdefault(source.transport.name, (source.transport, []))
            group[1].append((i, source.receipt))
    return groups.values()


async def _send(transport: Transport, messages: Sequence[Message]) -> Sequence[MatadorError | None]:
    if transport.state.status != "connected":  # skipped without waiting
        error = NotConnectedError(f"{transport.name} is {transport.state.status}")
        return [error] * len(messages)
    try:
        return await transport.send(messages)
    except MatadorError as error:
        return [error] * len(messages)


class _MultiSubscription(BaseSubscription):
    """Receives from several subscriptions; a call returns what arrives first."""

    def __init__(
        self, queue: str, prefetch: int, forget: Callable[[_MultiSubscription], None]
    ) -> None:
        super().__init__(queue)
        self._prefetch = prefetch
        self._forget = forget
        self._inner: list[tuple[Transport, Subscription]] = []
        self._ready: list[Delivery] = []
        self._failing: dict[str, tuple[Backoff, float]] = {}  # until when not to try it again
        self._changed = Wakeup()

    async def add(self, transport: Transport) -> None:
        """Receive from another transport, too."""
        self._inner = [pair for pair in self._inner if pair[0] is not transport]
        inner = await transport.subscribe(self.queue, prefetch=self._prefetch)
        self._inner.append((transport, inner))
        self._changed.wake()

    async def receive(self, limit: int) -> Sequence[Delivery]:
        """See ``Subscription``."""
        while self._active:
            if self._ready:
                taken, self._ready = self._ready[:limit], self._ready[limit:]
                return taken
            await self._gather(limit)
        await self._give_back()
        return ()

    async def _gather(self, limit: int) -> None:
        """Wait for the first that has messages. Cancelling the others loses nothing."""
        self._changed.clear()
        calls = [
            asyncio.create_task(self._receive_from(transport, inner, limit))
            for transport, inner in self._inner
            if inner.active
        ]
        changed = asyncio.create_task(self._changed.wait())
        try:
            await asyncio.wait({*calls, changed}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for call in (changed, *calls):
                call.cancel()
            outcomes = await asyncio.gather(*calls, return_exceptions=True)
        failures = [error for error in outcomes if isinstance(error, Exception)]
        if failures and not self._ready and len(failures) == len(calls):
            raise failures[0]

    async def _receive_from(self, transport: Transport, inner: Subscription, limit: int) -> None:
        loop = asyncio.get_running_loop()
        backoff, until = self._failing.get(transport.name, (Backoff(), 0.0))
        if until > loop.time():  # it has just failed: let the others work
            await asyncio.sleep(until - loop.time())
        try:
            deliveries = await inner.receive(limit)
        except Exception:
            self._failing[transport.name] = (backoff, loop.time() + backoff.next())
            raise
        # At once, so that what was taken is returned or given back even if the caller is cancelled.
        for delivery in deliveries:
            handle = _From(transport, delivery.receipt)
            receipt = msgspec.structs.replace(delivery.receipt, handle=handle)
            self._ready.append(msgspec.structs.replace(delivery, receipt=receipt))
        self._failing.pop(transport.name, None)

    async def _give_back(self) -> None:
        left, self._ready = self._ready, []
        for transport, chosen in _by_transport([delivery.receipt for delivery in left]):
            try:
                await transport.settle([Release(receipt) for _, receipt in chosen])
            except MatadorError as error:
                log.warning("%s could not take messages back: %s", transport.name, error)

    async def pause(self) -> None:
        """See ``Pausing``."""
        for _, inner in self._inner:
            if isinstance(inner, Pausing):
                await inner.pause()
        await self._give_back()

    async def close(self) -> None:
        """See ``Subscription``."""
        if not self._active:
            return
        self._active = False
        self._forget(self)
        self._changed.wake()
        for _, inner in self._inner:
            await inner.close()
        await self._give_back()
