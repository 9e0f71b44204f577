"""Carries out settlements: the successor is stored first, then the original is committed.

A retry with an ordering key takes the place of its original: those behind it in the line of the key
wait for it, and the progress that is committed says so, for whoever has the partition next.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import TypeAlias

import msgspec
from confluent_kafka import TopicPartition

from matador.errors import (
    LeaseLostError,
    MatadorError,
    SendUnconfirmedError,
)
from matador.model.message import Complete, DeadLetter, Release, Retry, Settlement
from matador.model.topology import dead_letter_name
from matador.transports.kafka.deliveries import Hold, Keeper, Partition
from matador.transports.kafka.errors import still_ours
from matador.transports.kafka.names import topic_name
from matador.transports.kafka.producer import Location, Report
from matador.transports.kafka.progress import Progress
from matador.transports.kafka.singles import travelled_together
from matador.transports.kafka.store import KafkaStore, Made
from matador.transports.kafka.transactions import KafkaTransactions
from matador.transports.kafka.wire import Record, bare, with_reason
from matador.transports.kit.dead_letters import dead_letter_of
from matador.transports.kit.errors import lease_lost

_Done: TypeAlias = dict[Partition, list[tuple[int, Hold]]]
"""What is complete, and its place among the settlements."""

_AGAIN = SendUnconfirmedError("the transaction was aborted for the sake of another message")


class _Work:
    """One settlement that is being carried out."""

    __slots__ = ("hold", "outcome", "settlement", "successor")

    def __init__(self, settlement: Settlement, hold: Hold) -> None:
        self.settlement = settlement
        self.hold = hold
        self.outcome: MatadorError | None = None
        self.successor: Hold | None = hold.successor


class KafkaSettler:
    """Settles; several calls may run at once."""

    def __init__(self, store: KafkaStore, transactions: KafkaTransactions | None) -> None:
        self._store = store
        self._transactions = transactions

    async def settle(self, settlements: Sequence[Settlement]) -> list[MatadorError | None]:
        """For each None, or why it failed."""
        outcomes: list[MatadorError | None] = [None] * len(settlements)
        done: _Done = {}
        works: list[tuple[int, _Work]] = []
        for at, one in enumerate(settlements):
            hold = one.receipt.handle
            if not isinstance(hold, Hold) or hold.settled or not hold.partition.owned:
                outcomes[at] = lease_lost(one.receipt.queue, "its partition is another worker's")
                continue
            hold.settled = True  # nobody else settles it meanwhile
            if type(one) is not Complete or hold.root != hold.offset:
                works.append((at, _Work(one, hold)))
            elif (part := done.get(hold.partition)) is not None:  # as most often
                part.append((at, hold))
            else:
                done[hold.partition] = [(at, hold)]
        try:
            if works:
                mine = [work for _, work in works]
                found, _ = await asyncio.gather(self._finish(done), self._carry_out(mine))
            else:
                found = await self._finish(done)
        except BaseException:  # cancelled
            for hold in (
                *[hold for part in done.values() for _, hold in part],
                *[work.hold for _, work in works],
            ):
                hold.settled = False
            raise
        for partition, part in done.items():
            if (outcome := found[partition]) is None:
                partition.keeper.all_done(partition, [hold for _, hold in part])
                continue
            for at, hold in part:
                outcomes[at] = outcome
                _settled(hold, outcome)
        for at, work in works:
            outcomes[at] = work.outcome
            _fit_next(work.settlement, work.hold, work.outcome)
            _settled(work.hold, work.outcome, work.successor)
        return outcomes

    @staticmethod
    async def _finish(done: _Done) -> dict[Partition, MatadorError | None]:
        """Complete messages that have no successors: one commit for all of a partition."""
        for partition, part in done.items():
            assert partition.progress is not None
            finish = partition.progress.finish
            for _, hold in part:
                finish(hold.offset)
        commits = [(one, one.keeper.commit(one)) for one in done]
        return {one: await commit for one, commit in commits}

    async def _carry_out(self, works: Sequence[_Work]) -> None:
        if self._transactions is None:
            await self._one_after_the_other(works)
            return
        keepers: dict[Keeper, list[_Work]] = {}
        rest: list[_Work] = []
        for work in works:
            if _has_successor(work):
                keepers.setdefault(work.hold.partition.keeper, []).append(work)
            else:
                rest.append(work)
        await asyncio.gather(
            self._one_after_the_other(rest),
            *[self._at_once(self._transactions, keeper, part) for keeper, part in keepers.items()],
        )

    async def _at_once(
        self, transactions: KafkaTransactions, keeper: Keeper, works: Sequence[_Work]
    ) -> None:
        """Successors and commits in one transaction. What cannot be stored is left out."""
        made = [self._successor(work) for work in works]
        missing = await self._store.missing(made)
        pending: list[tuple[_Work, Record]] = []
        for work, record in zip(works, made, strict=True):
            if isinstance(record, MatadorError):
                work.outcome = record
            elif record.topic in missing:
                work.outcome = missing[record.topic]
            else:
                pending.append((work, record))
        async with keeper.committing, transactions.lock:
            while pending:
                await self._try(transactions, keeper, pending)
                if travelled_together([work.outcome for work, _ in pending]):
                    for one in pending:
                        await self._try(transactions, keeper, [one])
                pending = [one for one in pending if one[0].outcome is _AGAIN]

    async def _try(
        self, transactions: KafkaTransactions, keeper: Keeper, pending: list[tuple[_Work, Record]]
    ) -> None:
        """One transaction. If a record is refused, the others are to be tried again."""
        reports = await transactions.send([record for _, record in pending])
        refused = any(isinstance(report, MatadorError) for report in reports)
        for (work, record), report in zip(pending, reports, strict=True):
            work.outcome = _AGAIN if refused else None
            if isinstance(report, MatadorError):
                work.outcome = report
            else:
                work.successor = _in_place(work, record, report)
        if refused:
            await transactions.abort()
            return
        copies: dict[Partition, Progress] = {}
        for work, _ in pending:
            partition = work.hold.partition
            if partition.progress is not None:
                _advance(work, copies.setdefault(partition, partition.progress.copy()))
        offsets = [
            TopicPartition(one.topic, one.number, offset, metadata=text)
            for one, copied in copies.items()
            for offset, text in (copied.commit(),)
        ]
        outcome = await transactions.commit(offsets, await keeper.membership())
        for work, _ in pending:
            owned = work.hold.partition.owned
            lost = isinstance(outcome, LeaseLostError)
            work.outcome = still_ours(outcome) if lost and owned else outcome
            if outcome is None and owned:
                _advance(work, work.hold.partition.progress)

    async def _one_after_the_other(self, works: Sequence[_Work]) -> None:
        await self._store_successors([one for one in works if _has_successor(one)])
        partitions: dict[Partition, list[_Work]] = {}
        for work in works:
            if work.outcome is None and not work.hold.partition.owned:
                work.outcome = lease_lost(work.hold.queue, "its partition is another worker's")
            if work.outcome is None:
                _advance(work, work.hold.partition.progress)
                partitions.setdefault(work.hold.partition, []).append(work)
        commits = [one.keeper.commit(one) for one in partitions]
        for part, commit in zip(partitions.values(), commits, strict=True):
            outcome = await commit
            for work in part:
                work.outcome = outcome

    async def _store_successors(self, works: Sequence[_Work]) -> None:
        """None is stored for a partition that was lost without our noticing."""
        partitions = list(dict.fromkeys(one.hold.partition for one in works))
        lost = dict(
            zip(
                partitions,
                await asyncio.gather(*[one.keeper.verify(one) for one in partitions]),
                strict=True,
            )
        )
        made: list[Made] = []
        for work in works:
            error = lost[work.hold.partition]
            made.append(self._successor(work) if error is None else error)
        for work, record, report in zip(works, made, await self._store.put(made), strict=True):
            if isinstance(report, MatadorError):
                work.outcome = report
            else:
                work.hold.stored = True
                work.successor = work.hold.successor = _in_place(work, record, report)

    def _successor(self, work: _Work) -> Made:
        hold = work.hold
        made = _successor_of(self._store, work.settlement, hold)
        if isinstance(made, Record) and _keeps_place(work, made):
            return msgspec.structs.replace(made, located=True)
        return made


def _successor_of(store: KafkaStore, settlement: Settlement, hold: Hold) -> Made:
    """What is stored in the place of a message that is retried, or becomes a dead letter."""
    try:
        if isinstance(settlement, DeadLetter):
            topic = topic_name(dead_letter_name(hold.queue, settlement.kind))
            if settlement.bare:
                return bare(hold.record, topic, settlement.reason, hold.fit, hold.place)
            if settlement.message is None:
                return with_reason(hold.record, topic, settlement.reason)
            return store.record(dead_letter_of(settlement, hold.message))
        assert isinstance(settlement, Retry)
        return store.record(settlement.message)
    except MatadorError as error:
        return error


def _fit_next(settlement: Settlement, hold: Hold, outcome: MatadorError | None) -> None:
    """If its topic does not take even the simplest dead letter, the next one is cut, or has a key.

    The topic of the queue may take larger records than that of its dead letters, and a record
    counts there as compressed by whoever wrote it. The topic of the dead letters may be compacted.
    """
    is_bare = isinstance(settlement, DeadLetter) and settlement.bare
    if is_bare and outcome is not None:
        hold.fit = hold.fit.after(outcome, hold.record) or hold.fit


def _settled(hold: Hold, outcome: MatadorError | None, successor: Hold | None = None) -> None:
    if outcome is None:
        hold.partition.keeper.done(hold, successor)
    else:
        hold.settled = isinstance(outcome, LeaseLostError)


def _has_successor(work: _Work) -> bool:
    return isinstance(work.settlement, Retry | DeadLetter) and not work.hold.stored


def _keeps_place(work: _Work, record: Record) -> bool:
    if not isinstance(work.settlement, Retry):
        return False
    hold = work.hold
    same = record.topic == hold.partition.topic and record.key == hold.key
    return same and record.key is not None


def _in_place(work: _Work, record: Made, report: Report) -> Hold | None:
    """The successor that is handled in the place of the original, if it is."""
    hold = work.hold
    if not isinstance(record, Record) or not isinstance(report, Location):
        return None
    if report.partition != hold.partition.number or not isinstance(work.settlement, Retry):
        return None
    stored_at = report.stored_at or time.time()
    successor = Hold(hold.queue, hold.partition, report.offset, record, stored_at)
    successor.root = hold.root
    return successor


def _advance(work: _Work, progress: Progress | None) -> None:
    """Write down what has happened; the commit stores it."""
    hold = work.hold
    assert progress is not None
    if isinstance(work.settlement, Release):
        progress.release(hold.offset)
        work.successor = Hold(hold.queue, hold.partition, hold.offset, hold.record, hold.stored_at)
        work.successor.root = hold.root
        return
    if work.successor is not None:
        if not progress.move(hold.root, work.successor.offset):
            work.successor.root = work.successor.offset
            progress.finish(hold.root)
        if hold.offset != hold.root:
            progress.finish(hold.offset)
        return
    progress.finish(hold.offset)
    if hold.root != hold.offset:
        progress.finish(hold.root)
