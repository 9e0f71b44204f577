"""An ordered group of transports. One of them sends; the others take over if it fails."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from typing import TypeAlias, TypeVar, cast

import msgspec

from matador.errors import (
    AllTransportsFailedError,
    ConfigurationError,
    ConnectionFailedError,
    InProcessCannotRunStubError,
    MatadorError,
    NotConnectedError,
    NotConsumedHereError,
    QueueNotFoundError,
    UnsupportedError,
)
from matador.model.capabilities import Capabilities
from matador.model.message import (
    ConnectionState,
    Delivery,
    Finding,
    Message,
    QueueDepth,
    Receipt,
    Release,
    Settlement,
    StoredMessage,
    TopologyNote,
    UnknownDepth,
)
from matador.model.topology import Topology
from matador.transports.base import (
    Browsing,
    Checking,
    Ending,
    Examining,
    Leasing,
    LocalStorage,
    Measuring,
    Pausing,
    Purging,
    QueuePausing,
    Subscription,
    Transport,
    TransportObserver,
    Twinning,
    browses_by_taking,
    browses_dead_letters,
)
from matador.transports.kit.backoff import Backoff
from matador.transports.kit.errors import lease_lost, queue_not_found
from matador.transports.kit.notes import ignored_exchanges
from matador.transports.kit.transport import BaseSubscription, BaseTransport
from matador.transports.kit.wakeup import Wakeup

log = logging.getLogger("matador.transport")

Answer = TypeVar("Answer")

Choose: TypeAlias = Callable[[], str | Awaitable[str | None] | None]
"""Returns the name of the transport that sends now; None for the first."""


class MultiTransport(BaseTransport):
    """Several transports as one. Consumes from all, sends with one, and falls back in order.

    A message goes to the transport that ``choose`` names (the first, if it returns None or an
    unknown name, or raises). If that fails and ``fallback`` is on, the next connected transport
    gets the message, and the hooks are notified. A disconnected transport is skipped without
    waiting, and is reconnected in the background.

    A transport that delivers only within this process (``MemoryTransport``) takes over only for the
    queues that this process consumes through the group, and not for stubs. Other messages would
    stay in memory until the process ends: their send fails with the cause. So an application that
    only sends falls back to transports that other processes can reach, and to no others.

    The group can send what its first transport can send. It can browse, count, pause and purge
    queues if all of its transports can. Counting and browsing include all connected transports, in
    the order of the group. A queue is paused or purged on all transports, or not at all.

    Example:
        >>> group = MultiTransport([SqliteTransport("shop.db"), MemoryTransport()])
        >>> group.name
        'multi(sqlite,memory)'
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
        return f"MultiTransport([{', '.join(map(repr, self._transports))}])"

    @property
    def transports(self) -> tuple[Transport, ...]:
        """The group, in order."""
        return self._transports

    @property
    def capabilities(self) -> Capabilities:
        """The capabilities of the first transport, with the shortest lease and the properties that
        all transports carry.

        Abilities for tools, such as browsing, require all transports.
        """
        every = [transport.capabilities for transport in self._transports]
        leases = [one.lease for one in every if one.lease]
        return replace(
            every[0],
            lease=min(leases) if leases else None,
            in_process=all(one.in_process for one in every),
            durable=all(one.durable for one in every),
            browse=all(one.browse for one in every),
            purge=all(one.purge for one in every),
            depth=all(one.depth for one in every),
            pause=all(one.pause for one in every),
            properties=every[0].properties.intersection(*(one.properties for one in every)),
            **dict.fromkeys(("replay", "once", "routing", "jobs"), False),
        )

    def observe(self, observer: TransportObserver) -> Callable[[], None]:
        """Reports the states of the transports, by their names."""
        ends = contextlib.ExitStack()
        for one in (super().observe, *(transport.observe for transport in self._transports)):
            ends.callback(one(observer))
        return ends.close

    # -- connection -------------------------------------------------------------------------------

    async def _open(self) -> None:
        """Connect all transports concurrently; retry failed ones in the background.

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
            log.info("%s could not connect, trying again: %s", transport.name, failure)
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
        self._state = ConnectionState("disconnected", closed=True)

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
        """Applies to transports that are down as soon as they are connected."""
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
        return [None if isinstance(one, str) else one for one in await self.send_to(messages)]

    async def send_to(self, messages: Sequence[Message]) -> Sequence[str | MatadorError]:
        self._require_connected()
        order = await self._order()
        if not self._fallback:
            del order[1:]
        refusals = [self._refusals(transport, messages) for transport in order]
        outcomes: list[str | MatadorError] = [NotConnectedError()] * len(messages)
        failed: list[list[tuple[str, MatadorError]]] = [[] for _ in messages]
        left = list(range(len(messages)))
        for at, transport in enumerate(order):
            errors: dict[int, MatadorError | None] = dict(refusals[at])
            taken = [i for i in left if i not in errors]
            if taken:
                stored = await _send(transport, [messages[i] for i in taken])
                errors.update(zip(taken, stored, strict=True))
            for i in left:
                if (error := errors[i]) is None:
                    outcomes[i] = transport.name
                    continue
                failed[i].append((transport.name, error))
                next_ = next((k for k in range(at + 1, len(order)) if i not in refusals[k]), None)
                if next_ is not None and i not in refusals[at]:
                    self._report_fallback(messages[i], transport.name, order[next_].name, error)
            left = [i for i in left if errors[i] is not None]
            if not left:
                break
        for i in left:
            outcomes[i] = AllTransportsFailedError(failed[i]) if self._fallback else failed[i][0][1]
        return outcomes

    def _refusals(
        self, transport: Transport, messages: Sequence[Message]
    ) -> dict[int, MatadorError]:
        """The reasons why messages must not go to a transport.

        A transport that delivers only within this process takes only messages that this process
        consumes and can run. It would keep others until the process ends.
        """
        if not transport.capabilities.in_process or self.capabilities.in_process:
            return {}
        consumed = {one.queue for one in self._subscriptions if one.receives_from(transport)}
        refusals: dict[int, MatadorError] = {}
        for i, message in enumerate(messages):
            if message.elsewhere:
                refusals[i] = InProcessCannotRunStubError(
                    f"the message is for a stub, and {transport.name} delivers only within this "
                    f"process"
                )
            elif message.queue not in consumed:
                refusals[i] = NotConsumedHereError(
                    f"nothing in this process consumes {message.queue}, and {transport.name} "
                    f"delivers only within this process"
                )
        return refusals

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
        """Receives from every transport of the group."""
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

    def is_due(self, queue: str) -> bool:
        return any(isinstance(one, Ending) and one.is_due(queue) for one in self._transports)

    def left(self, queue: str) -> int:
        return sum(one.left(queue) for one in self._transports if isinstance(one, Ending))

    async def settle(self, settlements: Sequence[Settlement]) -> Sequence[MatadorError | None]:
        """Each delivery is settled by the transport that delivered it."""
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
        """Deliveries of transports without leases are always kept.

        If a transport cannot renew now, its deliveries count as kept, so that the others do not
        lose their leases.

        Raises:
            UnsupportedError: no transport of the group has leases.
        """
        if self.capabilities.lease is None:
            raise UnsupportedError(f"no transport in {self.name} has leases")
        self._require_connected()
        kept = [True] * len(receipts)
        ours = {transport.name: transport for transport in self._transports}
        for source, chosen in _by_transport(receipts):
            transport = ours.get(source.name)  # in a twin, another transport with the same name
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

    # -- what tools ask for -----------------------------------------------------------------------

    @property
    def browses_dead_letters(self) -> bool:
        return all(map(browses_dead_letters, self._transports))

    @property
    def browses_by_taking(self) -> bool:
        return any(map(browses_by_taking, self._transports))

    async def browse(
        self, queue: str, *, after: str | None = None, limit: int | None = None
    ) -> AsyncIterator[StoredMessage]:
        """Yields the messages of one transport after those of another."""
        self._require(self.browses_dead_letters, "browsing")
        start, position = (0, None) if after is None else self._place(after)
        known = False
        for at, transport in enumerate(self._transports):
            if at < start or transport.state.status != "connected":
                continue
            try:
                found = cast("Browsing", transport).browse(
                    queue, after=position if at == start else None, limit=limit
                )
                async for stored in found:
                    yield msgspec.structs.replace(stored, position=f"{at}:{stored.position}")
                    limit = None if limit is None else limit - 1
                known = True
            except QueueNotFoundError:
                continue
            if limit is not None and limit <= 0:
                return
        if not known and not start:
            raise queue_not_found(queue, self.name)

    async def take(self, queue: str, positions: Sequence[str]) -> Sequence[Delivery | None]:
        self._require(self.browses_dead_letters, "taking messages")
        taken: list[Delivery | None] = [None] * len(positions)
        chosen: dict[int, list[tuple[int, str]]] = {}
        for i, given in enumerate(positions):
            at, position = self._place(given)
            chosen.setdefault(at, []).append((i, position))
        try:
            for at, places in chosen.items():
                transport = self._transports[at]
                found = await cast("Browsing", transport).take(queue, [one for _, one in places])
                for (i, _), delivery in zip(places, found, strict=True):
                    taken[i] = None if delivery is None else _from(transport, delivery)
        except BaseException:
            await _give_back([one for one in taken if one is not None])
            raise
        return taken

    def _place(self, position: str) -> tuple[int, str]:
        """The index of a transport in the group, and a position there."""
        number, _, rest = position.partition(":")
        if not number.isdecimal() or int(number) >= len(self._transports):
            raise ConfigurationError(f"{position!r} is not a position; use StoredMessage.position")
        return int(number), rest

    async def depth(self, queue: str) -> QueueDepth:
        self._require(self.capabilities.depth, "counting messages")
        found: list[QueueDepth] = []
        for transport in self._connected():
            with contextlib.suppress(QueueNotFoundError):
                found.append(await cast("Measuring", transport).depth(queue))
        if not found:
            raise queue_not_found(queue, self.name)
        return QueueDepth(
            sum(one.ready for one in found),
            sum(one.delayed for one in found),
            sum(one.in_flight for one in found),
            frozenset[UnknownDepth]().union(*(one.unknown for one in found)),
        )

    async def purge(self, queue: str) -> int:
        self._require(self.capabilities.purge, "purging")
        return sum(await self._on_all(queue, lambda one: cast("Purging", one).purge(queue)))

    async def pause_queue(self, queue: str) -> None:
        self._require(self.capabilities.pause, "pausing queues")
        await self._on_all(queue, lambda one: cast("QueuePausing", one).pause_queue(queue))

    async def resume_queue(self, queue: str) -> None:
        self._require(self.capabilities.pause, "pausing queues")
        await self._on_all(queue, lambda one: cast("QueuePausing", one).resume_queue(queue))

    async def is_paused(self, queue: str) -> bool:
        """Whether the queue is paused on one of the transports."""
        self._require(self.capabilities.pause, "pausing queues")
        return any(
            await self._on_all(queue, lambda one: cast("QueuePausing", one).is_paused(queue))
        )

    async def _on_all(
        self, queue: str, call: Callable[[Transport], Awaitable[Answer]]
    ) -> Sequence[Answer]:
        """Call every transport that has the queue.

        Raises:
            NotConnectedError: one of them is not connected; none was called.
            QueueNotFoundError: no transport has the queue.
        """
        for transport in self._transports:
            if transport.state.status != "connected":
                raise _not_connected(transport)
        answers: list[Answer] = []
        for transport in self._transports:
            with contextlib.suppress(QueueNotFoundError):
                answers.append(await call(transport))
        if not answers:
            raise queue_not_found(queue, self.name)
        return answers

    async def check_topology(self, topology: Topology) -> Sequence[TopologyNote]:
        self._require_connected()
        return [
            replace(note, text=f"{transport.name}: {note.text}")
            for transport in self._connected()
            if isinstance(transport, Checking)
            for note in await transport.check_topology(topology)
        ]

    async def examine(self) -> Sequence[Finding]:
        """Reports which transports are not connected."""
        self._require_connected()
        findings: list[Finding] = []
        for transport in self._transports:
            if transport.state.status != "connected":
                down = str(_not_connected(transport))
                findings.append(Finding("connection", down, "start its server", serious=True))
            elif isinstance(transport, Examining):
                findings += _named(transport, await transport.examine())
        return findings

    @property
    def missing_storage(self) -> str | None:
        stored = (one.missing_storage for one in self._transports if isinstance(one, LocalStorage))
        return next((missing for missing in stored if missing is not None), None)

    def examine_storage(self) -> Sequence[Finding]:
        return [
            finding
            for transport in self._transports
            if isinstance(transport, LocalStorage)
            for finding in _named(transport, transport.examine_storage())
        ]

    def twin(self) -> MultiTransport | None:
        """Leaves out transports that have no twin."""
        twins = [one.twin() for one in self._transports if isinstance(one, Twinning)]
        found = [one for one in twins if one is not None]
        return MultiTransport(found, reconnect_every=self._every) if found else None


class _From(msgspec.Struct, frozen=True):
    """The handle of a receipt: the delivering transport, and its own receipt."""

    transport: Transport
    receipt: Receipt


def _by_transport(
    receipts: Sequence[Receipt],
) -> Iterable[tuple[Transport, list[tuple[int, Receipt]]]]:
    """The transports of these receipts, each with the indexes and its own receipts."""
    groups: dict[str, tuple[Transport, list[tuple[int, Receipt]]]] = {}
    for i, receipt in enumerate(receipts):
        source = receipt.handle
        if isinstance(source, _From):
            group = groups.setdefault(source.transport.name, (source.transport, []))
            group[1].append((i, source.receipt))
    return groups.values()


async def _send(transport: Transport, messages: Sequence[Message]) -> Sequence[MatadorError | None]:
    if transport.state.status != "connected":  # skipped without waiting
        return [_not_connected(transport)] * len(messages)
    try:
        return await transport.send(messages)
    except MatadorError as error:
        return [error] * len(messages)


def _not_connected(transport: Transport) -> NotConnectedError:
    return transport.state.refusal(f"{transport.name} is {transport.state}")


def _named(transport: Transport, findings: Iterable[Finding]) -> list[Finding]:
    return [replace(one, text=f"{transport.name}: {one.text}") for one in findings]


def _from(transport: Transport, delivery: Delivery) -> Delivery:
    """The delivery with a receipt that names its transport."""
    handle = _From(transport, delivery.receipt)
    receipt = msgspec.structs.replace(delivery.receipt, handle=handle)
    return msgspec.structs.replace(delivery, receipt=receipt)


async def _give_back(deliveries: Sequence[Delivery]) -> None:
    for transport, chosen in _by_transport([delivery.receipt for delivery in deliveries]):
        try:
            await transport.settle([Release(receipt) for _, receipt in chosen])
        except MatadorError as error:
            log.warning("%s could not take messages back: %s", transport.name, error)


class _MultiSubscription(BaseSubscription):
    """Receives from several subscriptions. A call returns the messages that arrive first."""

    def __init__(
        self, queue: str, prefetch: int, forget: Callable[[_MultiSubscription], None]
    ) -> None:
        super().__init__(queue)
        self._prefetch = prefetch
        self._forget = forget
        self._inner: list[tuple[Transport, Subscription]] = []
        self._ready: list[Delivery] = []
        self._failing: dict[str, tuple[Backoff, float]] = {}  # when to retry
        self._changed = Wakeup()

    async def add(self, transport: Transport) -> None:
        """Also receive from this transport."""
        self._inner = [pair for pair in self._inner if pair[0] is not transport]
        inner = await transport.subscribe(self.queue, prefetch=self._prefetch)
        self._inner.append((transport, inner))
        self._changed.wake()

    def receives_from(self, transport: Transport) -> bool:
        """Whether it receives from this transport now."""
        return any(one is transport and inner.active for one, inner in self._inner)

    async def receive(self, limit: int) -> Sequence[Delivery]:
        while self._active:
            if self._ready:
                taken, self._ready = self._ready[:limit], self._ready[limit:]
                return taken
            await self._gather(limit)
        await self._give_back()
        return ()

    async def _gather(self, limit: int) -> None:
        """Wait for the first subscription that has messages. Canceling the others loses nothing."""
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
        # Without awaiting, so that messages that were taken are returned or given back even if the
        # caller is canceled.
        self._ready += [_from(transport, delivery) for delivery in deliveries]
        self._failing.pop(transport.name, None)

    async def _give_back(self) -> None:
        left, self._ready = self._ready, []
        await _give_back(left)

    async def pause(self) -> None:
        for _, inner in self._inner:
            if isinstance(inner, Pausing):
                await inner.pause()
        await self._give_back()

    async def close(self) -> None:
        if not self._active:
            return
        self._active = False
        self._forget(self)
        self._changed.wake()
        for _, inner in self._inner:
            await inner.close()
        await self._give_back()
