"""Renews the leases of all deliveries in one batch, and detects lost ones."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager

from matador.model.message import Receipt
from matador.transports.base import Leasing, LeasingTransport, Twinning

log = logging.getLogger("matador.worker")


class LeaseKeeper:
    """Renews every held delivery three times per lease, until it is released.

    A renewal that fails is tried again soon, and several times, before a lease is lost.

    All methods belong to the event loop, except ``twin``, ``is_late`` and ``renew_with``: a thread
    uses them to renew leases while the loop is blocked.
    """

    def __init__(self, transport: Leasing, lease: float) -> None:
        self._transport = transport
        self._lease = lease
        self._every = lease / 3
        self._turned_at = self._beat_at = time.monotonic()
        self._stalls = 0
        self._held: dict[int, Receipt] = {}
        self._when_lost: dict[int, Callable[[], None]] = {}
        self._settling: set[int] = set()
        self._task: asyncio.Task[None] | None = None

    @property
    def held(self) -> int:
        """The number of held deliveries."""
        return len(self._held)

    def start(self) -> None:
        """Begin to renew."""
        self._turned_at = self._beat_at = time.monotonic()
        self._task = asyncio.create_task(self._run(), name="matador-leases")

    async def stop(self) -> None:
        """Stop renewing."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    def hold(self, receipt: Receipt) -> None:
        """Renew the lease of a delivery from now on."""
        self._held[id(receipt)] = receipt

    @property
    def lease(self) -> float:
        """Seconds until a delivery that is not renewed is lost."""
        return self._lease

    @property
    def certain(self) -> float:
        """Seconds for which a lease is certainly valid after a receive or a renewal."""
        return self._every

    def beat(self) -> int:
        """Record that the event loop runs. Returns how often it was blocked for so long that the
        leases of deliveries in transit may have expired. Called at least every ``certain`` seconds.
        """
        now = time.monotonic()
        if now - self._beat_at >= self._every:
            self._stalls += 1
        self._beat_at = now
        return self._stalls

    async def confirm(self, receipt: Receipt) -> bool:
        """Ask the broker whether the lease of a delivery is still valid. True if the broker cannot
        tell."""
        if id(receipt) in self._held:
            try:
                (kept,) = await self._transport.renew([receipt])
            except Exception as error:  # noqa: BLE001 - the settlement will be refused
                log.warning(
                    "could not renew the lease of a message of %s: %s", receipt.queue, error
                )
                return True
            if kept:
                return True
            self._lost(receipt)
        return False

    def when_lost(self, receipt: Receipt, tell: Callable[[], None]) -> None:
        """Call ``tell`` if the lease of the delivery is lost."""
        self._when_lost[id(receipt)] = tell

    @contextmanager
    def settling(self, receipts: Iterable[Receipt]) -> Generator[None]:
        """Mark deliveries as being settled. A refused renewal does not count as a lost lease then,
        because the broker may have settled the delivery while its reply is still in transit."""
        ids = {id(receipt) for receipt in receipts}
        self._settling |= ids
        try:
            yield
        finally:
            self._settling -= ids

    def let_go(self, receipt: Receipt) -> None:
        """Stop renewing a delivery that was settled or given up."""
        self._held.pop(id(receipt), None)
        self._when_lost.pop(id(receipt), None)

    def let_go_all(self, receipts: Sequence[Receipt]) -> None:
        """``let_go`` for many deliveries."""
        for told in (self._held, self._when_lost):
            if told:
                for receipt in receipts:
                    told.pop(id(receipt), None)

    async def _run(self) -> None:
        pause = self._every
        while True:
            await asyncio.sleep(pause)
            pause = self._every
            held = list(self._held.values())
            try:
                if held:
                    self._refused(await _renew(self._transport, held))
            except Exception as error:  # noqa: BLE001 - renewing must go on
                pause = self._every / 4
                log.warning(
                    "could not renew the leases of %d messages, trying again in %.1f s: %s",
                    len(held),
                    pause,
                    error,
                )
            self._turned_at = time.monotonic()

    def _refused(self, receipts: Sequence[Receipt]) -> None:
        for receipt in receipts:
            if id(receipt) in self._held and id(receipt) not in self._settling:
                self._lost(receipt)

    # -- for a thread -----------------------------------------------------------------------------

    def twin(self) -> LeasingTransport | None:
        """An unconnected transport for the thread; None if the transport has no twin."""
        return self._transport.twin() if isinstance(self._transport, Twinning) else None

    @property
    def is_late(self) -> bool:
        """Whether the event loop missed a renewal."""
        return bool(self._held) and time.monotonic() - self._turned_at >= 1.25 * self._every

    async def renew_with(self, twin: Leasing, loop: asyncio.AbstractEventLoop) -> None:
        """Renew once in place of the event loop ``loop``, and report lost leases to it."""
        held = self._snapshot()
        if held and (refused := await _renew(twin, held)):
            loop.call_soon_threadsafe(self._refused, refused)

    def _snapshot(self) -> list[Receipt]:
        while True:
            try:
                return list(self._held.values())
            except RuntimeError:  # the event loop changed it meanwhile
                continue

    def _lost(self, receipt: Receipt) -> None:
        tell = self._when_lost.get(id(receipt))
        if tell is not None:
            tell()
        self.let_go(receipt)
        log.warning(
            "lost the lease of a message of %s: another worker handles it; "
            "if it runs here, its outcome will be refused",
            receipt.queue,
        )


async def _renew(transport: Leasing, held: Sequence[Receipt]) -> list[Receipt]:
    """Renew leases; return the deliveries that were lost."""
    renewed = await transport.renew(held)
    return [receipt for receipt, kept in zip(held, renewed, strict=True) if not kept]
