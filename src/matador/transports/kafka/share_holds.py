"""A message that a share group has given to us."""

from __future__ import annotations

import time
from collections.abc import Sequence
from enum import IntEnum
from typing import Protocol

from confluent_kafka import Message as KafkaMessage

from matador.errors import MatadorError
from matador.model.message import Delivery, Message
from matador.transports.kafka.wire import AS_IT_IS, Record, deliveries_of, read, record_of


class Acknowledgement(IntEnum):
    """What a member says about a message; the numbers are those of the protocol of Kafka."""

    ACCEPT = 1
    RELEASE = 2


class Lender(Protocol):
    """The member that has read it, seen from what was read."""

    @property
    def is_open(self) -> bool:
        """Whether it can still acknowledge."""
        ...


class Acknowledging(Protocol):
    """Who consumes the queue, seen from what was read of it."""

    async def acknowledge(
        self, holds: Sequence[ShareHold], how: Acknowledgement
    ) -> Sequence[MatadorError | None]:
        """For each None once the broker knows it, or why it does not."""
        ...


class ShareHold:
    """A message in our hands, until it is acknowledged or its time is over.

    Attributes:
        count: how often it was delivered, this time included.
        times: how often the broker says so, which does not know about copies.
        fresh_until: until when a handler may begin with it, by the monotonic clock.
        deadline: when the broker may give it to somebody else, by the monotonic clock.
        settled: it is settled, or that is being done.
        fit: how its dead letter has to be.
    """

    __slots__ = (
        *("content", "count", "deadline", "fresh_until", "lender", "offset", "owner"),
        *("partition", "queue", "record", "fit", "settled", "stored_at", "times"),
    )

    def __init__(
        self,
        queue: str,
        owner: Acknowledging,
        lender: Lender,
        message: KafkaMessage,
        since: float,
        lock: float,
    ) -> None:
        self.queue = queue
        self.owner = owner
        self.lender = lender
        self.record: Record = record_of(message)
        self.content = read(self.record)
        self.partition = message.partition() or 0
        self.offset = message.offset() or 0
        self.stored_at = message.timestamp()[1] / 1000
        self.times = message.delivery_count() or 1
        self.count = deliveries_of(self.record) + self.times
        self.deadline = since + lock
        self.fresh_until = since + lock / 2
        self.settled = False
        self.fit = AS_IT_IS

    @property
    def is_ours(self) -> bool:
        """Whether it may still be settled."""
        return not self.settled and self.lender.is_open and time.monotonic() < self.deadline

    @property
    def message(self) -> Message:
        """The message as it was sent."""
        return self.content.message(self.queue, self.place)

    @property
    def place(self) -> str:
        """Where it is stored."""
        return f"{self.record.topic}/{self.partition}/{self.offset}"

    def delivery(self) -> Delivery:
        """What its receiver gets."""
        return self.content.delivery(self.queue, self, self.count)
