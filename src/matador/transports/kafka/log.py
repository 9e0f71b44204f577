"""The topics of queues as logs that any process can read: by the driver and executors of Spark.

No group is joined and nothing is consumed. Of transactions only what is committed is seen; an open
one hides what comes after it. All of it blocks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
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
from matador.transports.kafka.names import topic_name
from matador.transports.kafka.options import KafkaAddress
from matador.transports.kafka.wire import content_of
from matador.transports.kit.backoff import Backoff

T = TypeVar("T")

_MOST = 2000
_TRIES = 5
_WAIT = 0.2
_DELETED = (KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._AUTO_OFFSET_RESET)
_FOR_GOOD = (
    *(KafkaError._AUTHENTICATION, KafkaError._FATAL, KafkaError._STATE, KafkaError._SSL),
    *(KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION),
)


class KafkaLog:
    """The queues of a cluster. See ``QueueLog``."""

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

    # -- where -------------------------------------------------------------------------------------

    def partitions(self, queues: Sequence[str]) -> list[LogPartition]:
        topics = {topic_name(queue): queue for queue in queues}
        if not topics:
            return []
        for _ in range(_TRIES):
            made = self._describe(topics)
            places = [(topic, number) for topic in topics for number in made[topic][1]]
            starts = self._offsets(dict.fromkeys(places, OffsetSpec.earliest()))
            ends = self._offsets(dict.fromkeys(places, OffsetSpec.latest()))
            if self._describe(topics) == made:  # else a topic was made again in between
                cluster = self._cluster()
                return [
                    LogPartition(
                        topics[topic],
                        f"{cluster}/{topic}",
                        made[topic][0],
                        number,
                        starts[topic, number],
                        ends[topic, number],
                    )
                    for topic, number in places
                ]
        raise TransportError(f"{self._address.where}: the topics change all the time; try again")

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
        """Ask the administration client; again if a broker has the answer only soon."""
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

    # -- what --------------------------------------------------------------------------------------

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
        passing: KafkaError | None = None
        try:
            consumer.assign(
                [TopicPartition(*place, offset=one.start) for place, one in left.items()]
            )
            until = time.monotonic() + address.timeout
            while left:
                messages = consumer.consume(_MOST, _WAIT)
                for message in messages:
                    place = message.topic() or "", message.partition() or 0
                    one = left.get(place)
                    error = message.error()
                    if error is not None and error.code() != KafkaError._PARTITION_EOF:
                        passing = self._checked(error, one)
                        continue
                    if one is None:
                        continue
                    until, passing = time.monotonic() + address.timeout, None
                    offset = message.offset() or 0
                    if error is None and offset < one.end:
                        yield one, _log_message(message)
                        offset += 1
                    # At the end of a partition the offset is the next one. It may be too small for
                    # a moment, after another broker has become its leader.
                    if offset >= one.end:
                        del left[place]
                        consumer.pause([TopicPartition(*place)])  # it need not read on
                if time.monotonic() > until:
                    self._give_up(left, passing)
        except KafkaException as error:
            raise translate(error, address.where) from error
        finally:
            consumer.close()

    def _checked(self, error: KafkaError, one: LogRange | None) -> KafkaError:
        """An error that may pass; others are raised."""
        if error.code() in _DELETED and one is not None:
            raise MessagesDeletedError(
                f"{one.partition.queue!r}, partition {one.partition.number}: not all offsets from "
                f"{one.start} to {one.end - 1} are there any more"
            )
        is_local = error.code() < 0 and error.code() not in _FOR_GOOD
        if not (is_local or error.retriable()):
            queue = "" if one is None else one.partition.queue
            raise translate(error, self._address.where, queue=queue)
        return error

    def _give_up(
        self, left: Mapping[tuple[str, int], LogRange], passing: KafkaError | None
    ) -> None:
        (topic, number), one = next(iter(left.items()))
        said = f" ({passing.str()})" if passing is not None else ""
        raise TransportError(
            f"{self._address.where}: {topic}, partition {number}, could not be read up to offset "
            f"{one.end} in time{said}"
        )


def _log_message(message: KafkaMessage) -> LogMessage:
    """What was received, whoever has written it. Never fails."""
    _, content = content_of(message)
    kind, milliseconds = message.timestamp()
    return LogMessage(
        message.partition() or 0,
        message.offset() or 0,
        content.body,
        content.headers,
        milliseconds * 1000 if kind else None,  # 0: not known
        content.problem,
    )
