"""Delayed messages: one topic per queue, in which each partition is a level of waiting.

All messages of a partition wait for the same time after they were stored, so the first one is
always due first, and no long delay blocks a short one. A message waits in the longest level that
does not exceed its delay, then in the level for the rest, and so on; then it moves to its queue.
The consumers of the queue do the moving: the group shares the partitions of both topics.

Times are those of the broker that stored the message. A wrong clock of a worker makes no message
early.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka import Message as KafkaMessage

from matador.errors import (
    MatadorError,
    QueueNotFoundError,
    UnstorableError,
)
from matador.model.topology import dead_letter_name
from matador.transports.kafka.producer import KafkaProducer, Location
from matador.transports.kafka.topics import DELAY_LEVELS, delayed_topic
from matador.transports.kafka.wire import (
    Fit,
    Record,
    bare,
    delay_of,
    record_of,
    with_delay,
)

_SHORTEST = 0.1
_RETRY_AFTER = 1.0
_CLOCK_EXPIRES = 600.0
_MARGIN = 0.002
_TRIM_EVERY = 30.0
_LOG = logging.getLogger(__name__)


def level_of(delay: float) -> int:
    """The partition in which a message with this delay waits next.

    Example:
        >>> [level_of(delay) for delay in (0.05, 0.1, 0.3, 1.0, 86_400)]
        [0, 0, 1, 3, 14]
    """
    level = 0
    while level < DELAY_LEVELS - 1 and _SHORTEST * 2 ** (level + 1) <= delay:
        level += 1
    return level


def wait_of(level: int) -> float:
    """How many seconds a message waits in a level at most."""
    return _SHORTEST * 2**level if 0 <= level < DELAY_LEVELS else 0.0


def delayed(record: Record, delay: float) -> Record:
    """The record of a queue as a record of its topic of delayed messages."""
    return with_delay(record, delayed_topic(record.topic), delay, level_of(delay))


class BrokerClock:
    """The time of the broker, or a little earlier, derived from the last report.

    The last partition of a topic of delayed messages takes records that only ask for the time.
    """

    def __init__(self) -> None:
        self._stored_at = 0.0
        self._known_at = float("-inf")

    def update(self, report: object) -> None:
        """Read the time from the report of a record that was just stored."""
        if isinstance(report, Location) and report.stored_at:
            self._stored_at, self._known_at = report.stored_at, time.monotonic()

    def use_local_time(self) -> None:
        """Use the clock of this machine: the topic does not store the time of the broker."""
        self._stored_at, self._known_at = time.time(), time.monotonic()

    @property
    def now(self) -> float | None:
        """Seconds since the epoch; None if the broker must be asked."""
        age = time.monotonic() - self._known_at
        return None if age > _CLOCK_EXPIRES else self._stored_at + age

    @staticmethod
    def question(topic: str) -> Record:
        """The record whose report tells the time; ``topic`` is that of a queue."""
        return Record(delayed_topic(topic), b"", None, [], DELAY_LEVELS, located=True)


class DelayMover:
    """Moves due messages out of the partitions of one consumer. Belongs to its polling thread."""

    def __init__(self, topic: str, producer: KafkaProducer, clock: BrokerClock) -> None:
        self.topic = delayed_topic(topic)
        self._target = topic
        self._producer = producer
        self._clock = clock
        self._sleeping: dict[int, float] = {}
        self._moved: dict[int, int] = {}
        self._finished: dict[int, int] = {}
        self._trimmed = time.monotonic()

    def revoked(self, partition: int) -> None:
        """Forget a partition that belongs to another member now."""
        self._sleeping.pop(partition, None)
        self._moved.pop(partition, None)

    def next_wait(self, longest: float) -> float:
        """How many seconds may pass until ``wake`` must be called."""
        if not self._sleeping:
            return longest
        return max(0.0, min(longest, min(self._sleeping.values()) - time.monotonic()))

    def wake(self, consumer: Consumer) -> None:
        """Resume the partitions whose first message is due."""
        self.commit(consumer)
        now = time.monotonic()
        due = [partition for partition, at in self._sleeping.items() if at <= now]
        for partition in due:
            del self._sleeping[partition]
        if due:
            consumer.resume([TopicPartition(self.topic, one) for one in due])

    def handle(self, consumer: Consumer, messages: Sequence[KafkaMessage]) -> None:
        """Move due messages in order. Pause the other partitions until their first one is due."""
        now = self._now()
        if now is None:
            for message in messages:
                if message.partition() not in self._sleeping:
                    self._sleep(consumer, message, _RETRY_AFTER)
            return
        due: dict[int, list[KafkaMessage]] = {}
        for message in messages:
            partition = message.partition()
            if partition is None or partition in self._sleeping:
                continue  # it will be read again
            wait = 0.0 if partition >= DELAY_LEVELS else self._wait(message, now)
            if wait > 0:
                self._sleep(consumer, message, wait)
            else:
                due.setdefault(partition, []).append(message)
        for part in due.values():
            self._move(consumer, part, now)

    def _now(self) -> float | None:
        """The time of the broker; None if the broker does not answer."""
        if self._clock.now is None:
            (report,) = self._producer.send_now([self._clock.question(self._target)])
            self._clock.update(report)
            if self._clock.now is None and not isinstance(report, MatadorError):
                self._clock.use_local_time()  # another program created the topic
        return self._clock.now

    def _wait(self, message: KafkaMessage, now: float) -> float:
        stored_at = message.timestamp()[1] / 1000
        level = message.partition() or 0
        return stored_at + min(wait_of(level), delay_of(record_of(message))) - now

    def _sleep(self, consumer: Consumer, message: KafkaMessage, wait: float) -> None:
        partition, offset = message.partition() or 0, message.offset() or 0
        place = TopicPartition(self.topic, partition, offset)
        consumer.pause([place])
        consumer.seek(place)
        self._sleeping[partition] = time.monotonic() + wait + _MARGIN

    def _move(self, consumer: Consumer, messages: list[KafkaMessage], now: float) -> None:
        """Store the messages of one partition where they belong next, then commit."""
        if (messages[0].partition() or 0) < DELAY_LEVELS:
            reports = self._producer.send_now([self._next(message, now) for message in messages])
        else:
            reports = [None] * len(messages)
        last: KafkaMessage | None = None
        for message, report in zip(messages, reports, strict=True):
            if isinstance(report, MatadorError) and not self._bury(message, report):
                _LOG.warning(
                    "could not move a delayed message of %s, trying again: %s",
                    self._target,
                    report,
                )
                self._sleep(consumer, message, _RETRY_AFTER)
                break
            self._clock.update(report)
            last = message
        if last is not None:
            self._moved[last.partition() or 0] = (last.offset() or 0) + 1
            self.commit(consumer)

    def commit(self, consumer: Consumer) -> None:
        """Commit what was moved; the next call repeats it if the group is rebalancing."""
        if not self._moved:
            return
        places = [TopicPartition(self.topic, number, at) for number, at in self._moved.items()]
        try:
            consumer.commit(offsets=places, asynchronous=False)
        except KafkaException as error:
            _LOG.info("could not commit %s, trying again: %s", self.topic, error)
        else:
            self._finished |= self._moved
            self._moved.clear()

    def finished(self) -> dict[int, int]:
        """Up to which offset each partition may be deleted; empty if it is too early for that."""
        now = time.monotonic()
        if not self._finished or now < self._trimmed + _TRIM_EVERY:
            return {}
        finished, self._finished = self._finished, {}
        self._trimmed = now
        return finished

    def _next(self, message: KafkaMessage, now: float) -> Record:
        record = record_of(message)
        left = message.timestamp()[1] / 1000 + delay_of(record) - now
        if left <= _MARGIN:
            return with_delay(record, self._target, 0.0)
        moved = with_delay(record, self.topic, left, level_of(left))
        return Record(moved.topic, moved.value, moved.key, moved.headers, moved.partition, True)

    def _bury(self, message: KafkaMessage, error: MatadorError) -> bool:
        """Store a message that can never be moved as a dead letter; False: try again later."""
        if not isinstance(error, UnstorableError | QueueNotFoundError):
            return False
        letters = dead_letter_name(self._target, "undeliverable")
        reason = f"it could not be delivered after its delay: {error}"
        record, fit = record_of(message), Fit()
        place = f"{self.topic}/{message.partition()}/{message.offset()}"
        while fit is not None:
            (report,) = self._producer.send_now([bare(record, letters, reason, fit, place)])
            if not isinstance(report, MatadorError):
                return True
            fit = fit.after(report, record)
        return False
