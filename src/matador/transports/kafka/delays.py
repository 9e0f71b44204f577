"""Delayed messages: a topic per queue, in which each partition is a level of waiting.

In one partition all messages wait for the same time, counted from when they were stored, so the
first is always the next to be due and no long delay is in front of a short one. A message waits in
the level that is just not longer than its delay, then in the one for what is left, and so on; then
it is moved to its queue. Whoever consumes the queue also does this: the partitions of both topics
are shared among the workers of the group.

Times are those of the broker that stored the message: no clock of ours makes a message early.
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
from matador.transports.kafka.names import delayed_topic
from matador.transports.kafka.producer import KafkaProducer, Location
from matador.transports.kafka.wire import (
    Fit,
    Record,
    bare,
    delay_of,
    record_of,
    with_delay,
)

_SHORTEST = 0.1
_LEVELS = 15
_FAILED_WAIT = 1.0
_FRESH = 600.0  # seconds after which the broker's clock is asked for again
_SOON = 0.002
_TRIM_EVERY = 30.0
_LOG = logging.getLogger(__name__)

PARTITIONS = _LEVELS + 1
"""Of a topic for delayed messages: one a level, and one that tells the time."""


def level_of(delay: float) -> int:
    """The partition in which a message with this delay waits next.

    Example:
        >>> [level_of(delay) for delay in (0.05, 0.1, 0.3, 1.0, 86_400)]
        [0, 0, 1, 3, 14]
    """
    level = 0
    while level < _LEVELS - 1 and _SHORTEST * 2 ** (level + 1) <= delay:
        level += 1
    return level


def wait_of(level: int) -> float:
    """How many seconds a message stays in a level at most."""
    return _SHORTEST * 2**level if 0 <= level < _LEVELS else 0.0


def delayed(record: Record, delay: float) -> Record:
    """A record for a queue, delayed: for the topic in which it waits."""
    return with_delay(record, delayed_topic(record.topic), delay, level_of(delay))


class BrokerClock:
    """The time on the broker, never later than it is. It is known from what was stored last.

    A record in the last partition of a topic of delayed messages does no more than tell it.
    """

    def __init__(self) -> None:
        self._stored_at = 0.0
        self._known_at = float("-inf")

    def saw(self, location: object) -> None:
        """A record was stored just now."""
        if isinstance(location, Location) and location.stored_at:
            self._stored_at, self._known_at = location.stored_at, time.monotonic()

    def guess(self) -> None:
        """Nothing that we store tells the time: go by our own clock."""
        self._stored_at, self._known_at = time.time(), time.monotonic()

    @property
    def now(self) -> float | None:
        """Seconds since the epoch; None: it has to be asked for."""
        age = time.monotonic() - self._known_at
        return None if age > _FRESH else self._stored_at + age

    @staticmethod
    def question(topic: str) -> Record:
        """The record to store in order to know the time; ``topic`` is that of a queue."""
        return Record(delayed_topic(topic), b"", None, [], PARTITIONS - 1, located=True)


class DelayMover:
    """Moves what is due from the partitions that one consumer was assigned. For its thread only."""

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
        """It is somebody else's now."""
        self._sleeping.pop(partition, None)
        self._moved.pop(partition, None)

    def next_wait(self, longest: float) -> float:
        """How many seconds may pass until ``wake`` has to be called."""
        if not self._sleeping:
            return longest
        return max(0.0, min(longest, min(self._sleeping.values()) - time.monotonic()))

    def wake(self, consumer: Consumer) -> None:
        """Read again from the partitions whose first message is due."""
        self.commit(consumer)
        now = time.monotonic()
        due = [partition for partition, at in self._sleeping.items() if at <= now]
        for partition in due:
            del self._sleeping[partition]
        if due:
            consumer.resume([TopicPartition(self.topic, one) for one in due])

    def handle(self, consumer: Consumer, messages: Sequence[KafkaMessage]) -> None:
        """Move those that are due, in order; of the others read none until the first is due."""
        now = self._now()
        if now is None:
            for message in messages:
                if message.partition() not in self._sleeping:
                    self._sleep(consumer, message, _FAILED_WAIT)
            return
        ready: dict[int, list[KafkaMessage]] = {}
        for message in messages:
            partition = message.partition()
            if partition is None or partition in self._sleeping:
                continue  # it is read again
            wait = 0.0 if partition >= _LEVELS else self._wait(message, now)
            if wait > 0:
                self._sleep(consumer, message, wait)
            else:
                ready.setdefault(partition, []).append(message)
        for part in ready.values():
            self._move(consumer, part, now)

    def _now(self) -> float | None:
        """The time on the broker; None: it cannot be asked at the moment."""
        if self._clock.now is None:
            (report,) = self._producer.send_now([self._clock.question(self._target)])
            self._clock.saw(report)
            if self._clock.now is None and not isinstance(report, MatadorError):
                self._clock.guess()  # the topic was made by others
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
        self._sleeping[partition] = time.monotonic() + wait + _SOON

    def _move(self, consumer: Consumer, messages: list[KafkaMessage], now: float) -> None:
        """Store all of one partition where they belong next, and then commit."""
        if (messages[0].partition() or 0) < _LEVELS:
            reports = self._producer.send_now([self._next(message, now) for message in messages])
        else:
            reports = [None] * len(messages)
        done: KafkaMessage | None = None
        for message, report in zip(messages, reports, strict=True):
            if isinstance(report, MatadorError) and not self._buried(message, report):
                _LOG.warning("delayed messages of %s wait on: %s", self._target, report)
                self._sleep(consumer, message, _FAILED_WAIT)
                break
            self._clock.saw(report)
            done = message
        if done is not None:
            self._moved[done.partition() or 0] = (done.offset() or 0) + 1
            self.commit(consumer)

    def commit(self, consumer: Consumer) -> None:
        """Commit what was moved; again later if the group is just being rearranged."""
        if not self._moved:
            return
        places = [TopicPartition(self.topic, number, at) for number, at in self._moved.items()]
        try:
            consumer.commit(offsets=places, asynchronous=False)
        except KafkaException as error:
            _LOG.info("a commit of %s has to wait: %s", self.topic, error)
        else:
            self._finished |= self._moved
            self._moved.clear()

    def finished(self) -> dict[int, int]:
        """Up to which offsets the partitions can be deleted; empty if it is not worth it yet."""
        now = time.monotonic()
        if not self._finished or now < self._trimmed + _TRIM_EVERY:
            return {}
        finished, self._finished = self._finished, {}
        self._trimmed = now
        return finished

    def _next(self, message: KafkaMessage, now: float) -> Record:
        record = record_of(message)
        left = message.timestamp()[1] / 1000 + delay_of(record) - now
        if left <= _SOON:
            return with_delay(record, self._target, 0.0)
        moved = with_delay(record, self.topic, left, level_of(left))
        return Record(moved.topic, moved.value, moved.key, moved.headers, moved.partition, True)

    def _buried(self, message: KafkaMessage, error: MatadorError) -> bool:
        """What can never be moved becomes a dead letter; False: it is to be tried again."""
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
