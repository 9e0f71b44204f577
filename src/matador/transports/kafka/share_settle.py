"""Settles what share groups have delivered: the successor is stored, then the original accepted.

A message that is given back is replaced by a copy, because the broker counts every delivery.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from matador.errors import MatadorError, UnstorableError
from matador.model.message import Complete, Release, Settlement
from matador.transports.kafka.settle import fit_next, successor_of
from matador.transports.kafka.share_holds import Acknowledgement, Acknowledging, ShareHold
from matador.transports.kafka.store import KafkaStore, Made
from matador.transports.kafka.wire import put_back
from matador.transports.kit.errors import lease_lost


class _Work:
    """One settlement that is being carried out, and where its outcome belongs."""

    __slots__ = ("at", "hold", "how", "settlement")

    def __init__(self, at: int, settlement: Settlement, hold: ShareHold) -> None:
        self.at = at
        self.settlement = settlement
        self.hold = hold
        self.how = Acknowledgement.ACCEPT


class ShareSettler:
    """Settles; several calls may run at once."""

    def __init__(self, store: KafkaStore) -> None:
        self._store = store

    async def settle(self, settlements: Sequence[Settlement]) -> list[MatadorError | None]:
        """For each None, or why it failed."""
        outcomes: list[MatadorError | None] = [None] * len(settlements)
        works: list[_Work] = []
        for at, one in enumerate(settlements):
            hold: Any = one.receipt.handle
            if not hold.is_ours:
                outcomes[at] = lease_lost(one.receipt.queue, "its lock has ended")
                continue
            hold.settled = True  # nobody else settles it meanwhile
            works.append(_Work(at, one, hold))
        try:
            await self._store_successors(works, outcomes)
        except BaseException:  # cancelled, or not connected
            for work in works:
                work.hold.settled = False
            raise
        await self._acknowledge([one for one in works if outcomes[one.at] is None], outcomes)
        return outcomes

    async def _store_successors(
        self, works: Sequence[_Work], outcomes: list[MatadorError | None]
    ) -> None:
        replaced = [one for one in works if not isinstance(one.settlement, Complete)]
        reports = await self._store.put([self._successor(one) for one in replaced])
        for work, report in zip(replaced, reports, strict=True):
            if not isinstance(report, MatadorError):
                continue
            if isinstance(work.settlement, Release) and isinstance(report, UnstorableError):
                work.how = Acknowledgement.RELEASE  # no copy of it fits: it comes back counted
            else:
                outcomes[work.at] = report
                fit_next(work.settlement, work.hold, report)
                work.hold.settled = False

    @staticmethod
    async def _acknowledge(works: Sequence[_Work], outcomes: list[MatadorError | None]) -> None:
        parts: dict[tuple[Acknowledging, Acknowledgement], list[_Work]] = {}
        for work in works:
            parts.setdefault((work.hold.owner, work.how), []).append(work)
        answers = await asyncio.gather(
            *[
                owner.acknowledge([work.hold for work in part], how)
                for (owner, how), part in parts.items()
            ]
        )
        for part, answer in zip(parts.values(), answers, strict=True):
            for work, outcome in zip(part, answer, strict=True):
                outcomes[work.at] = outcome

    def _successor(self, work: _Work) -> Made:
        if isinstance(work.settlement, Release):
            return put_back(work.hold.record, work.hold.count - 1)
        return successor_of(self._store, work.settlement, work.hold)
