"""Keeps what is being worked on: renews leases in one batch, and notices those that were lost."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager

from matador.model.message import Receipt
from matador.transports.base import Leasing

log = logging.getLogger("matador.worker")


class LeaseKeeper:
    """Renews every held delivery three times a lease, until it is let go.

    A renewal that fails is tried again at the next turn: one may fail before a lease is lost.
    """

    def __init__(self, transport: Leasing, lease: float) -> None:
        self._transport = transport
        self._every = lease / 3
        self._held: dict[int, Receipt] = {}
        self._when_lost: dict[int, Callable[[], None]] = {}
        self._settling: set[int] = set()
        self._task: asyncio.Task[None] | None = None

    @property
    def held(self) -> int:
        """How many deliveries are being kept."""
        return len(self._held)

    def start(self) -> None:
        """Begin to renew."""
        self._task = asyncio.create_task(self._run(), name="matador-leases")

    async def stop(self) -> None:
        """Stop renewing."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    def hold(self, receipt: Receipt) -> None:
        """Keep a delivery from now on."""
        self._held[id(receipt)] = receipt

    @property
    def certain(self) -> float:
        """Seconds for which a delivery is surely ours after it was received or renewed."""
        return self._every

    async def confirm(self, receipt: Receipt) -> bool:
        """Ask the broker whether a delivery is still ours. In doubt it is."""
        if id(receipt) in self._held:
            try:
                (kept,) = await self._transport.renew([receipt])
            except Exception as error:  # noqa: BLE001 - a settlement is refused if it is not
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
        """Settle these meanwhile. A renewal that is refused does not count as a lost lease then:
        the broker may have settled the delivery, and its answer is still on its way."""
        ids = {id(receipt) for receipt in receipts}
        self._settling |= ids
        try:
            yield
        finally:
            self._settling -= ids

    def let_go(self, receipt: Receipt) -> None:
        """The delivery is settled, or given up."""
        self._held.pop(id(receipt), None)
        self._when_lost.pop(id(receipt), None)

    def let_go_all(self, receipts: Sequence[Receipt]) -> None:
        """``let_go`` for many deliveries."""
        for told in (self._held, self._when_lost):
            if told:
                for receipt in receipts:
                    told.pop(id(receipt), None)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._every)
            held = list(self._held.values())
            if not held:
                continue
            try:
                renewed = await self._transport.renew(held)
                for receipt, kept in zip(held, renewed, strict=True):
                    if kept or id(receipt) in self._settling:
                        continue
                    if id(receipt) in self._held:
                        self._lost(receipt)
            except Exception as error:  # noqa: BLE001 - renewing must go on
                log.warning(
                    "could not renew the leases of %d messages, trying again in %.1f s: %s",
                    len(held),
                    self._every,
                    error,
                )

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
