"""Stores records and commits offsets in one transaction: both are there, or neither.

One transaction at a time. Its id stays the same for as long as the transport exists, so that a
producer that has to be made again ends what its predecessor has left open.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any
from uuid import uuid4

from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka import Message as KafkaMessage

from matador.errors import MatadorError, UnstorableError
from matador.transports.kafka.client import KafkaClient
from matador.transports.kafka.errors import error_of, translate
from matador.transports.kafka.producer import Location, Report
from matador.transports.kafka.wire import Record

_OPEN_FOR = 30_000  # milliseconds after which the broker aborts what nobody ends
_TRIES = 3


class KafkaTransactions:
    """A producer of transactions. ``lock`` is held from ``send`` to ``commit`` or ``abort``."""

    def __init__(self, client: KafkaClient) -> None:
        self.lock = asyncio.Lock()
        self._client = client
        self._id = f"{client.address.client_id}-{uuid4().hex}"
        self._producer: Producer | None = None

    async def send(self, records: Sequence[Record]) -> list[Report]:
        """Begin a transaction, and store records in it; each report, or why it is not stored."""
        return await self._client.blocking(lambda: self._send(records))

    async def commit(self, offsets: list[TopicPartition], member: Any) -> MatadorError | None:
        """Commit offsets for a member of their group, and the transaction. None, or why it failed;
        then it was aborted."""
        return await self._client.blocking(lambda: self._commit(offsets, member))

    async def abort(self) -> None:
        """Undo everything since ``send``."""
        await self._client.blocking(self._abort)

    async def close(self) -> None:
        """Abort what is open, and end."""
        async with self.lock:
            if self._producer is not None:
                await self.abort()
                self._producer = None

    # -- blocking ----------------------------------------------------------------------------------

    def _started(self) -> Producer:
        if self._producer is None:
            settings = self._client.address.producer_settings()
            settings |= {"transactional.id": self._id, "transaction.timeout.ms": _OPEN_FOR}
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
        for index, record in enumerate(records):
            try:
                producer.produce(
                    record.topic,
                    record.value,
                    record.key,
                    record.partition,
                    self._reporter(reports, index, record),
                    headers=record.headers,  # pyright: ignore[reportArgumentType] - invariant
                )
            except (KafkaException, BufferError, TypeError, ValueError) as error:
                reports[index] = self._translate(error, record)
        producer.flush()
        return reports

    def _reporter(
        self, reports: list[Report], index: int, record: Record
    ) -> Callable[[KafkaError | None, KafkaMessage], None]:
        def put(error: KafkaError | None, message: KafkaMessage) -> None:
            found = None if error is None else self._translate(error, record)
            reports[index] = found or (Location(message) if record.located else None)

        return put

    def _translate(self, error: BaseException | KafkaError, record: Record) -> MatadorError:
        limit = self._client.address.max_message_size
        where = self._client.where
        return translate(error, where, queue=record.topic, limit=limit, size=record.size)

    def _commit(self, offsets: list[TopicPartition], member: Any) -> MatadorError | None:
        producer, timeout = self._producer, self._client.address.timeout
        assert producer is not None
        try:
            self._patiently(lambda: producer.send_offsets_to_transaction(offsets, member, timeout))
            self._patiently(lambda: producer.commit_transaction(timeout))
        except KafkaException as error:
            self._abort()
            return translate(error, self._client.where)
        return None

    def _patiently(self, call: Callable[[], object]) -> None:
        for last in (*[False] * (_TRIES - 1), True):
            try:
                call()
                return
            except KafkaException as error:
                found = error_of(error)
                if last or found is None or not found.retriable():
                    raise

    def _abort(self) -> None:
        """A producer that cannot even do that is made again, which aborts, too."""
        if self._producer is not None:
            try:
                self._producer.abort_transaction(self._client.address.timeout)
            except KafkaException as error:
                found = error_of(error)
                if found is None or found.code() != KafkaError._STATE:
                    self._producer = None
