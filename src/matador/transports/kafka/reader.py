"""Reads records without being a member of a group: nothing is consumed. All of it blocks."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka import Message as KafkaMessage

from matador.transports.kafka.options import KafkaAddress

_MOST = 500


def read_one(address: KafkaAddress, topic: str, partition: int, offset: int) -> KafkaMessage | None:
    """One record; None if it is not there any more."""
    for message in read_range(address, topic, {partition: (offset, offset + 1)}):
        if message.offset() == offset:
            return message
    return None


def read_commits(
    address: KafkaAddress, group: str, places: list[TopicPartition]
) -> list[TopicPartition]:
    """What a group has committed for partitions.

    By a consumer that does not join the group: librdkafka 2.16 ends the process if a coordinator
    refuses to answer an ``AdminClient`` that asks for it.

    Raises:
        KafkaException: nobody could be asked.
    """
    consumer = Consumer(address.consumer_settings(group))
    try:
        return consumer.committed(places, timeout=address.timeout)
    finally:
        consumer.close()


def read_first(
    address: KafkaAddress, topic: str, ranges: Mapping[int, tuple[int, int]]
) -> list[KafkaMessage]:
    """The first record of each range, of those that have one. See ``read_range``."""
    found: dict[int, KafkaMessage] = {}
    wanted = sum(start < end for start, end in ranges.values())
    with closing(read_range(address, topic, ranges, fetch=1)) as messages:
        for message in messages:
            found.setdefault(message.partition() or 0, message)
            if len(found) == wanted:
                break
    return list(found.values())


def read_range(
    address: KafkaAddress,
    topic: str,
    ranges: Mapping[int, tuple[int, int]],
    *,
    whole: bool = False,
    fetch: int | None = None,
) -> Generator[KafkaMessage]:
    """The records of some partitions from one offset to the one before another, in any order of
    partitions. Offsets that do not exist are left out.

    A partition that ends earlier is done with its end. ``whole``: that is an error, after a while;
    it may only seem to end there, when another broker has become its leader. ``fetch``: how many
    bytes of a partition are asked for at a time; at least one batch comes.

    Raises:
        KafkaException: they could not be read, or not in time.
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
            messages = consumer.consume(_MOST, 0.05)
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
