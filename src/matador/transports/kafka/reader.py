"""Reads records without joining a group: nothing is consumed. All of it blocks.

The functions serve a transport. ``KafkaLog`` reads topics from any process, such as the executors
of Spark. Neither sees the records of an open transaction, or the records behind them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import closing
from datetime import datetime
from typing import Any, TypeVar

from confluent_kafka import (
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka import Message as KafkaMessage
from confluent_kafka.admin import (
    AdminClient,
    OffsetSpec,  # pyright: ignore[reportPrivateImportUsage] - public
)

from matador.errors import MatadorError, MessagesDeletedError, SendUnconfirmedError, TransportError
from matador.model.log import LogMessage, LogPartition, LogRange
from matador.transports.kafka.errors import translate
from matador.transports.kafka.options import KafkaAddress
from matador.transports.kafka.topics import topic_name
from matador.transports.kafka.wire import content_of
from matador.transports.kit.backoff import Backoff

T = TypeVar("T")

_BATCH = 500
_LOG_BATCH = 2000
_LOG_WAIT = 0.2
_TRIES = 5
_DELETED = (KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._AUTO_OFFSET_RESET)
_PERMANENT = (
    *(KafkaError._AUTHENTICATION, KafkaError._FATAL, KafkaError._STATE, KafkaError._SSL),
    *(KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION),
)


def read_one(address: KafkaAddress, topic: str, partition: int, offset: int) -> KafkaMessage | None:
    """One record; None if Kafka has deleted it."""
    for message in read_range(address, topic, {partition: (offset, offset + 1)}):
        if message.offset() == offset:
            return message
    return None


def read_first(
    address: KafkaAddress, topic: str, ranges: Mapping[int, tuple[int, int]]
) -> list[KafkaMessage]:
    """The first record of each range that has one; see ``read_range``."""
    found: dict[int, KafkaMessage] = {}
    wanted = sum(start < end for start, end in ranges.values())
    with closing(read_range(address, topic, ranges, fetch=1)) as messages:
        for message in messages:
            found.setdefault(message.partition() or 0, message)
            if len(found) == wanted:
                break
    return list(found.values())


def read_commits(
    address: KafkaAddress, group: str, places: list[TopicPartition]
) -> list[TopicPartition]:
    """The commits of a group.

    A consumer asks, without joining the group: librdkafka 2.16 ends the process if a coordinator
    refuses to answer an ``AdminClient``.

    Raises:
        KafkaException: no broker has answered.
    """
    consumer = Consumer(address.consumer_settings(group))
    try:
        return consumer.committed(places, timeout=address.timeout)
    finally:
        consumer.close()


def read_range(
    address: KafkaAddress,
    topic: str,
    ranges: Mapping[int, tuple[int, int]],
    *,
    whole: bool = False,
    fetch: int | None = None,
) -> Generator[KafkaMessage]:
    """The records from one offset up to another of some partitions, in order within each.

    Args:
        ranges: for each partition its first offset, and the offset behind the last.
        whole: fail, after a while, if a partition ends early. It may seem to while a new broker
            becomes its leader. Otherwise the end of a partition ends its range.
        fetch: how many bytes of a partition to request at a time; at least one batch arrives.

    Raises:
        KafkaException: the records could not be read in time.
    """
    left = {number: end for number, (start, end) in ranges.items() if start < end}
    if not left:
        return
    settings = address.consumer_settings(f"{address.client_id}-reader")
    if fetch is not None:
        settings["fetch.message.max.bytes"] = fetch
    consumer = Consumer(settings | {"enable.partition.eof": True})
    try:
        consumer.assign([TopicPartition(topic, number, ranges[number][0]) for number in left])
        until = time.monotonic() + address.timeout
        while left:
            messages = consumer.consume(_BATCH, 0.05)
            if messages:
                until = time.monotonic() + address.timeout
            elif time.monotonic() > until:
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT, f"reading {topic}"))
            for message in messages:
                yield from _within(message, left, whole)
    finally:
        consumer.close()


def _within(message: KafkaMessage, left: dict[int, int], whole: bool) -> Iterator[KafkaMessage]:
    number = message.partition() or 0
    error = message.error()
    if error is not None:
        if error.code() == KafkaError._PARTITION_EOF:
            if not whole or (message.offset() or 0) >= left.get(number, 0):
                left.pop(number, None)
        elif not error.retriable():
            raise KafkaException(error)
        return
    end = left.get(number)
    if end is None:
        return
    offset = message.offset() or 0
    if offset < end:
        yield message
    if offset + 1 >= end:
        del left[number]


class KafkaLog:
    """The queues of a cluster, for processes that have no transport."""

    kind = "kafka"

    def __init__(self, address: KafkaAddress) -> None:
        self._address = address
        self._admin: Any = None

    def __repr__(self) -> str:
        return f"KafkaLog({self._address.where!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return KafkaLog, (self._address,)

    def close(self) -> None:
        self._admin = None  # the library closes it with its last reference

    # -- offsets -----------------------------------------------------------------------------------

    def partitions(self, queues: Sequence[str]) -> list[LogPartition]:
        topics = {topic_name(queue): queue for queue in queues}
        if not topics:
            return []
        for _ in range(_TRIES):
            described = self._describe(topics)
            places = [(topic, number) for topic in topics for number in described[topic][1]]
            starts = self._offsets(dict.fromkeys(places, OffsetSpec.earliest()))
            ends = self._offsets(dict.fromkeys(places, OffsetSpec.latest()))
            if self._describe(topics) == described:  # no topic was recreated in between
                cluster = self._cluster()
                return [
                    LogPartition(
                        topics[topic],
                        f"{cluster}/{topic}",
                        described[topic][0],
                        number,
                        starts[topic, number],
                        ends[topic, number],
                    )
                    for topic, number in places
                ]
        raise TransportError(f"{self._address.where}: the topics keep changing; try again")

    def offsets_at(self, partitions: Sequence[LogPartition], moment: datetime) -> list[int]:
        spec = OffsetSpec.for_timestamp(max(0, round(moment.timestamp() * 1000)))
        places = [(topic_name(one.queue), one.number) for one in partitions]
        found = self._offsets(dict.fromkeys(places, spec))
        return [
            one.end if found[place] < 0 else min(found[place], one.end)
            for one, place in zip(partitions, places, strict=True)
        ]

    def _cluster(self) -> str:
        described = self._ask(
            lambda admin: {"": admin.describe_cluster(request_timeout=self._address.timeout)}
        )
        return described[""].cluster_id or self._address.listed_hosts

    def _describe(self, topics: Mapping[str, str]) -> dict[str, tuple[str, tuple[int, ...]]]:
        names = TopicCollection(list(topics))
        timeout = self._address.timeout
        found = self._ask(lambda admin: admin.describe_topics(names, request_timeout=timeout))
        return {
            topic: (str(one.topic_id), tuple(sorted(place.id for place in one.partitions)))
            for topic, one in found.items()
        }

    def _offsets(self, asked: Mapping[tuple[str, int], Any]) -> dict[tuple[str, int], int]:
        wanted = {TopicPartition(topic, number): spec for (topic, number), spec in asked.items()}
        found = self._ask(
            lambda admin: admin.list_offsets(
                wanted,
                isolation_level=IsolationLevel.READ_COMMITTED,
                request_timeout=self._address.timeout,
            )
        )
        return {(place.topic, place.partition): one.offset for place, one in found.items()}

    def _ask(self, call: Callable[[Any], dict[Any, Future[T]]]) -> dict[Any, T]:
        """Ask the admin client; repeat the question while a broker cannot answer yet."""
        where, backoff = self._address.where, Backoff(0.05, 1.0)
        for left in reversed(range(_TRIES)):
            try:
                if self._admin is None:
                    self._admin = AdminClient(self._address.client_settings())
                answers: dict[Any, T] = {}
                for key, future in call(self._admin).items():
                    name = str(getattr(key, "topic", key))
                    try:
                        answers[key] = future.result(self._address.timeout + 5)
                    except KafkaException as error:
                        raise translate(error, where, queue=name) from error
                return answers
            except MatadorError as error:
                if not (left and isinstance(error, SendUnconfirmedError)):
                    raise
                time.sleep(backoff.next())
            except (KafkaException, ValueError, TypeError, OSError) as error:
                raise translate(error, where, opening=True) from error
        raise AssertionError("the last try returns or raises")

    # -- messages ----------------------------------------------------------------------------------

    def read(self, ranges: Sequence[LogRange]) -> Iterator[tuple[LogRange, LogMessage]]:
        left = {
            (topic_name(one.partition.queue), one.partition.number): one
            for one in ranges
            if one.size
        }
        if not left:
            return
        address = self._address
        consumer = Consumer(
            address.consumer_settings(f"{address.client_id}-reader")
            | {"enable.partition.eof": True, "queued.max.messages.kbytes": 65_536}
        )
        transient: KafkaError | None = None
        try:
            consumer.assign(
                [TopicPartition(*place, offset=one.start) for place, one in left.items()]
            )
            until = time.monotonic() + address.timeout
            while left:
                for message in consumer.consume(_LOG_BATCH, _LOG_WAIT):
                    place = message.topic() or "", message.partition() or 0
                    one = left.get(place)
                    error = message.error()
                    if error is not None and error.code() != KafkaError._PARTITION_EOF:
                        transient = self._transient(error, one)
                        continue
                    if one is None:
                        continue
                    until, transient = time.monotonic() + address.timeout, None
                    offset = message.offset() or 0
                    if error is None and offset < one.end:
                        yield one, _log_message(message)
                        offset += 1
                    # At the end of a partition, the offset is the next one. It may be too small
                    # for a moment, while a new broker becomes the leader.
                    if offset >= one.end:
                        del left[place]
                        consumer.pause([TopicPartition(*place)])  # nothing more is needed
                if time.monotonic() > until:
                    self._give_up(left, transient)
        except KafkaException as error:
            raise translate(error, address.where) from error
        finally:
            consumer.close()

    def _transient(self, error: KafkaError, one: LogRange | None) -> KafkaError:
        """Return an error that may pass; raise any other."""
        if error.code() in _DELETED and one is not None:
            raise MessagesDeletedError(
                f"{one.partition.queue!r}, partition {one.partition.number}: Kafka has deleted "
                f"messages with offsets from {one.start} to {one.end - 1}"
            )
        is_local = error.code() < 0 and error.code() not in _PERMANENT
        if not (is_local or error.retriable()):
            queue = "" if one is None else one.partition.queue
            raise translate(error, self._address.where, queue=queue)
        return error

    def _give_up(
        self, left: Mapping[tuple[str, int], LogRange], transient: KafkaError | None
    ) -> None:
        (topic, number), one = next(iter(left.items()))
        said = f" ({transient.str()})" if transient is not None else ""
        raise TransportError(
            f"{self._address.where}: {topic}, partition {number}, could not be read up to offset "
            f"{one.end} in time{said}"
        )


def _log_message(message: KafkaMessage) -> LogMessage:
    """The message in a record of any program. Never fails."""
    _, content = content_of(message)
    kind, milliseconds = message.timestamp()
    return LogMessage(
        message.partition() or 0,
        message.offset() or 0,
        content.body,
        content.headers,
        milliseconds * 1000 if kind else None,  # 0: the time is unknown
        content.problem,
    )
