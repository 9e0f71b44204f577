"""Settlements: store the successor of a message first, then commit that the original is finished.

A retry with an ordering key takes the place of its original. The messages behind it in the line of
the key wait for it, and the commit says so, for the worker that gets the partition next.

With the option ``transactional``, the successor and the commit are one transaction.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias
from uuid import uuid4

import msgspec
from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka import Message as KafkaMessage

from matador.errors import (
    LeaseLostError,
    MatadorError,
    SendUnconfirmedError,
    UnstorableError,
)
from matador.model.message import Complete, DeadLetter, Release, Retry, Settlement
from matador.model.topology import dead_letter_name
from matador.transports.kafka.buffer import LeasedMessage
from matador.transports.kafka.client import KafkaClient
from matador.transports.kafka.errors import error_of, still_owned, translate
from matador.transports.kafka.producer import Location, Report, send_and_flush, was_batch_too_large
from matador.transports.kafka.progress import Commits, Partition, Progress
from matador.transports.kafka.store import KafkaStore, RecordOrError
from matador.transports.kafka.topics import topic_name
from matador.transports.kafka.wire import Record, bare, with_reason
from matador.transports.kit.dead_letters import dead_letter_of
from matador.transports.kit.errors import lease_lost

_Completed: TypeAlias = dict[Partition, list[tuple[int, LeasedMessage]]]
"""Completed messages, and the index of each among the settlements."""

_TRY_AGAIN = SendUnconfirmedError("the transaction was aborted because of another message")
_TRANSACTION_TIMEOUT = 30_000  # milliseconds after which the broker aborts an open transaction
_TRIES = 3


class _Work:
    """One settlement that is not a plain completion."""

    __slots__ = ("leased", "outcome", "settlement", "successor")

    def __init__(self, settlement: Settlement, leased: LeasedMessage) -> None:
        self.settlement = settlement
        self.leased = leased
        self.outcome: MatadorError | None = None
        self.successor: LeasedMessage | None = leased.successor


class KafkaSettler:
    """Carries out settlements; several calls may run at once."""

    def __init__(self, store: KafkaStore, transactions: KafkaTransactions | None) -> None:
        self._store = store
        self._transactions = transactions

    async def settle(self, settlements: Sequence[Settlement]) -> list[MatadorError | None]:
        """For each settlement None, or why it failed."""
        outcomes: list[MatadorError | None] = [None] * len(settlements)
        completed: _Completed = {}
        works: list[tuple[int, _Work]] = []
        for at, one in enumerate(settlements):
            leased = one.receipt.handle
            if not isinstance(leased, LeasedMessage) or not leased.is_held:
                outcomes[at] = _partition_lost(one.receipt.queue)
                continue
            leased.settled = True  # no other call settles it meanwhile
            if type(one) is not Complete or leased.root != leased.offset:
                works.append((at, _Work(one, leased)))
            elif (part := completed.get(leased.partition)) is not None:  # the common case
                part.append((at, leased))
            else:
                completed[leased.partition] = [(at, leased)]
        try:
            if works:
                found, _ = await asyncio.gather(
                    self._complete(completed), self._carry_out([work for _, work in works])
                )
            else:
                found = await self._complete(completed)
        except BaseException:  # cancelled
            for part in completed.values():
                for _, leased in part:
                    leased.settled = False
            for _, work in works:
                work.leased.settled = False
            raise
        for partition, part in completed.items():
            if (outcome := found[partition]) is None:
                part[0][1].buffer.settled([leased for _, leased in part])
                continue
            for at, leased in part:
                outcomes[at] = outcome
                leased.settled = isinstance(outcome, LeaseLostError)
        for at, work in works:
            outcomes[at] = work.outcome
            _finish(work)
        return outcomes

    @staticmethod
    async def _complete(completed: _Completed) -> dict[Partition, MatadorError | None]:
        """Complete messages that have no successors, with one commit for each partition."""
        requests: list[tuple[Partition, asyncio.Future[MatadorError | None]]] = []
        for partition, part in completed.items():
            assert partition.progress is not None
            finish = partition.progress.finish
            for _, leased in part:
                finish(leased.offset)
            requests.append((partition, part[0][1].buffer.commits.request(partition)))
        return {partition: await request for partition, request in requests}

    async def _carry_out(self, works: Sequence[_Work]) -> None:
        if self._transactions is None:
            await self._store_then_commit(works)
            return
        members: dict[Commits, list[_Work]] = {}
        rest: list[_Work] = []
        for work in works:
            if _needs_successor(work):
                members.setdefault(work.leased.buffer.commits, []).append(work)
            else:
                rest.append(work)
        await asyncio.gather(
            self._store_then_commit(rest),
            *[
                self._store_and_commit(self._transactions, commits, part)
                for commits, part in members.items()
            ],
        )

    # -- in one transaction ------------------------------------------------------------------------

    async def _store_and_commit(
        self, transactions: KafkaTransactions, commits: Commits, works: Sequence[_Work]
    ) -> None:
        """Leave out the settlements whose successor cannot be stored, and repeat the others."""
        records = [self._successor(work) for work in works]
        missing = await self._store.missing(records)
        pending: list[tuple[_Work, Record]] = []
        for work, record in zip(works, records, strict=True):
            if isinstance(record, MatadorError):
                work.outcome = record
            elif record.topic in missing:
                work.outcome = missing[record.topic]
            else:
                pending.append((work, record))
        async with commits.lock, transactions.lock:
            while pending:
                await self._try(transactions, commits, pending)
                if was_batch_too_large([work.outcome for work, _ in pending]):
                    for one in pending:
                        await self._try(transactions, commits, [one])
                pending = [one for one in pending if one[0].outcome is _TRY_AGAIN]

    async def _try(
        self,
        transactions: KafkaTransactions,
        commits: Commits,
        pending: list[tuple[_Work, Record]],
    ) -> None:
        """Run one transaction. If the broker refuses a record, the others must be repeated."""
        reports = await transactions.send([record for _, record in pending])
        refused = any(isinstance(report, MatadorError) for report in reports)
        for (work, record), report in zip(pending, reports, strict=True):
            work.outcome = _TRY_AGAIN if refused else None
            if isinstance(report, MatadorError):
                work.outcome = report
            else:
                work.successor = _in_place(work, record, report)
        if refused:
            await transactions.abort()
            return
        copies: dict[Partition, Progress] = {}
        for work, _ in pending:
            partition = work.leased.partition
            if partition.progress is not None:
                _advance(work, copies.setdefault(partition, partition.progress.copy()))
        offsets = [
            TopicPartition(one.topic, one.number, offset, metadata=text)
            for one, copied in copies.items()
            for offset, text in (copied.commit(),)
        ]
        outcome = await transactions.commit(offsets, await commits.membership())
        for work, _ in pending:
            owned = work.leased.partition.owned
            lost = isinstance(outcome, LeaseLostError)
            work.outcome = still_owned(outcome) if lost and owned else outcome
            if outcome is None and owned:
                _advance(work, work.leased.partition.progress)

    # -- one after the other -----------------------------------------------------------------------

    async def _store_then_commit(self, works: Sequence[_Work]) -> None:
        await self._store_successors([one for one in works if _needs_successor(one)])
        partitions: dict[Partition, list[_Work]] = {}
        for work in works:
            leased = work.leased
            if work.outcome is None and not leased.partition.owned:
                work.outcome = _partition_lost(leased.queue)
            if work.outcome is None:
                _advance(work, leased.partition.progress)
                partitions.setdefault(leased.partition, []).append(work)
        requests = [
            part[0].leased.buffer.commits.request(partition)
            for partition, part in partitions.items()
        ]
        for part, request in zip(partitions.values(), requests, strict=True):
            outcome = await request
            for work in part:
                work.outcome = outcome

    async def _store_successors(self, works: Sequence[_Work]) -> None:
        """Store successors, but none for a partition that was lost without notice."""
        members = {one.leased.partition: one.leased.buffer.commits for one in works}
        verified = await asyncio.gather(
            *[commits.verify(partition) for partition, commits in members.items()]
        )
        lost = dict(zip(members, verified, strict=True))
        records: list[RecordOrError] = []
        for work in works:
            error = lost[work.leased.partition]
            records.append(self._successor(work) if error is None else error)
        reports = await self._store.put(records)
        for work, record, report in zip(works, records, reports, strict=True):
            if isinstance(report, MatadorError):
                work.outcome = report
            else:
                work.leased.stored = True
                work.successor = work.leased.successor = _in_place(work, record, report)

    def _successor(self, work: _Work) -> RecordOrError:
        made = self._retry_or_dead_letter(work.settlement, work.leased)
        if isinstance(made, Record) and _keeps_place(work, made):
            return msgspec.structs.replace(made, located=True)
        return made

    def _retry_or_dead_letter(self, settlement: Settlement, leased: LeasedMessage) -> RecordOrError:
        try:
            if isinstance(settlement, DeadLetter):
                topic = topic_name(dead_letter_name(leased.queue, settlement.kind))
                if settlement.bare:
                    return bare(leased.record, topic, settlement.reason, leased.fit, leased.place)
                if settlement.message is None:
                    return with_reason(leased.record, topic, settlement.reason)
                return self._store.record(dead_letter_of(settlement, leased.message))
            assert isinstance(settlement, Retry)
            return self._store.record(settlement.message)
        except MatadorError as error:
            return error


def _partition_lost(queue: str) -> LeaseLostError:
    return lease_lost(queue, "its partition belongs to another worker")


def _finish(work: _Work) -> None:
    """Deliver what follows, or make the message ready for the next try of its settlement."""
    leased, outcome = work.leased, work.outcome
    if outcome is None:
        if work.successor is None:
            leased.buffer.settled([leased])
        else:
            leased.buffer.replaced(leased, work.successor)
        return
    # The topic of the dead letters may take smaller records than the topic of the queue, where the
    # broker measures a record as its producer compressed it. It may also be compacted.
    if isinstance(work.settlement, DeadLetter) and work.settlement.bare:
        leased.fit = leased.fit.after(outcome, leased.record) or leased.fit
    leased.settled = isinstance(outcome, LeaseLostError)


def _needs_successor(work: _Work) -> bool:
    return isinstance(work.settlement, Retry | DeadLetter) and not work.leased.stored


def _keeps_place(work: _Work, record: Record) -> bool:
    if not isinstance(work.settlement, Retry):
        return False
    leased = work.leased
    same = record.topic == leased.partition.topic and record.key == leased.key
    return same and record.key is not None


def _in_place(work: _Work, record: RecordOrError, report: Report) -> LeasedMessage | None:
    """The successor, if it is handled in the place of the original."""
    leased = work.leased
    if not isinstance(record, Record) or not isinstance(report, Location):
        return None
    if report.partition != leased.partition.number or not isinstance(work.settlement, Retry):
        return None
    stored_at = report.stored_at or time.time()
    successor = LeasedMessage(leased.buffer, leased.partition, report.offset, record, stored_at)
    successor.root = leased.root
    return successor


def _advance(work: _Work, progress: Progress | None) -> None:
    """Record a settlement in the progress that the next commit stores."""
    leased = work.leased
    assert progress is not None
    if isinstance(work.settlement, Release):
        progress.release(leased.offset)
        work.successor = LeasedMessage(
            leased.buffer, leased.partition, leased.offset, leased.record, leased.stored_at
        )
        work.successor.root = leased.root
        return
    if work.successor is not None:
        if not progress.move(leased.root, work.successor.offset):
            work.successor.root = work.successor.offset
            progress.finish(leased.root)
        if leased.offset != leased.root:
            progress.finish(leased.offset)
        return
    progress.finish(leased.offset)
    if leased.root != leased.offset:
        progress.finish(leased.root)


class KafkaTransactions:
    """Stores records and commits offsets in one transaction: both, or neither.

    There is one transaction at a time: hold ``lock`` from ``send`` to ``commit`` or ``abort``. The
    transactional id stays the same for the life of the transport, so that a new producer ends what
    its predecessor has left open.
    """

    def __init__(self, client: KafkaClient) -> None:
        self.lock = asyncio.Lock()
        self._client = client
        self._id = f"{client.address.client_id}-{uuid4().hex}"
        self._producer: Producer | None = None

    async def send(self, records: Sequence[Record]) -> list[Report]:
        """Begin a transaction and store records in it; for each its report, or why it failed."""
        return await self._client.blocking(lambda: self._send(records))

    async def commit(self, offsets: list[TopicPartition], member: Any) -> MatadorError | None:
        """Commit offsets of a group member, and the transaction. On an error, it is aborted."""
        return await self._client.blocking(lambda: self._commit(offsets, member))

    async def abort(self) -> None:
        await self._client.blocking(self._abort)

    async def close(self) -> None:
        async with self.lock:
            if self._producer is not None:
                await self.abort()
                self._producer = None

    # -- blocking ----------------------------------------------------------------------------------

    def _started(self) -> Producer:
        if self._producer is None:
            settings = self._client.address.producer_settings()
            settings |= {"transactional.id": self._id}
            settings |= {"transaction.timeout.ms": _TRANSACTION_TIMEOUT}
            producer = Producer(settings | {"error_cb": self._client.failed})
            producer.init_transactions(self._client.address.timeout)
            self._producer = producer
        return self._producer

    def _send(self, records: Sequence[Record]) -> list[Report]:
        reports: list[Report] = [UnstorableError("no report")] * len(records)
        try:
            producer = self._started()
            producer.begin_transaction()
        except KafkaException as error:
            self._producer = None
            failed = translate(error, self._client.where)
            return [failed] * len(records)

        def put(
            index: int, error: KafkaError | BaseException | None, message: KafkaMessage | None
        ) -> None:
            record = records[index]
            if error is not None:
                limit, where = self._client.address.max_message_size, self._client.where
                reports[index] = translate(
                    error, where, queue=record.topic, limit=limit, size=record.size
                )
            else:
                assert message is not None
                reports[index] = Location(message) if record.located else None

        send_and_flush(producer, records, put)
        return reports

    def _commit(self, offsets: list[TopicPartition], member: Any) -> MatadorError | None:
        producer, timeout = self._producer, self._client.address.timeout
        assert producer is not None
        try:
            _retry(lambda: producer.send_offsets_to_transaction(offsets, member, timeout))
            _retry(lambda: producer.commit_transaction(timeout))
        except KafkaException as error:
            self._abort()
            return translate(error, self._client.where)
        return None

    def _abort(self) -> None:
        """Abort, or drop a producer that cannot: its successor aborts the transaction."""
        if self._producer is not None:
            try:
                self._producer.abort_transaction(self._client.address.timeout)
            except KafkaException as error:
                found = error_of(error)
                if found is None or found.code() != KafkaError._STATE:
                    self._producer = None


def _retry(call: Callable[[], object]) -> None:
    """Repeat a call while the error is retriable."""
    for last in (*[False] * (_TRIES - 1), True):
        try:
            call()
            return
        except KafkaException as error:
            found = error_of(error)
            if last or found is None or not found.retriable():
                raise
