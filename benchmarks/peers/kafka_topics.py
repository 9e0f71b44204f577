"""What contestants on Kafka share: making topics, removing them, and how far a group has come."""

# pyright: basic, reportMissingImports=false
from __future__ import annotations

import time
from typing import Any

from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    NewTopic,  # pyright: ignore[reportPrivateImportUsage] - public
    OffsetSpec,  # pyright: ignore[reportPrivateImportUsage] - public
)

PARTITIONS = 8


def servers_of(url: str) -> str:
    """The brokers of a ``kafka://`` address."""
    return url.partition("://")[2].partition("/")[0].partition("?")[0]


def admin(url: str) -> Any:
    """A client that looks after topics."""
    return AdminClient({"bootstrap.servers": servers_of(url)})


def make(url: str, topic: str, group: str) -> None:
    """An empty topic with ``PARTITIONS`` partitions that nobody has consumed."""
    client = admin(url)
    remove(url, topic, group)
    client.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result()
    _wait_until(lambda: topic in client.list_topics(timeout=10).topics)


def remove(url: str, topic: str, group: str) -> None:
    """Delete topics that begin like this, and the group, if they are there."""
    client = admin(url)

    def found() -> list[str]:
        return [name for name in client.list_topics(timeout=10).topics if name.startswith(topic)]

    if names := found():
        for future in client.delete_topics(names, operation_timeout=10).values():
            future.exception()
    _wait_until(lambda: not found())
    client.delete_consumer_groups([group])[group].exception()


def left(url: str, topic: str, group: str) -> int:
    """Messages that the group has not committed."""
    client = admin(url)
    places = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    latest = client.list_offsets({place: OffsetSpec.latest() for place in places})
    ends = {place.partition: future.result().offset for place, future in latest.items()}
    asked = client.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group, places)])
    committed = {place.partition: place.offset for place in asked[group].result().topic_partitions}
    return sum(end - max(0, committed.get(number, 0)) for number, end in ends.items())


def _wait_until(condition: Any) -> None:
    for _ in range(100):
        if condition():
            return
        time.sleep(0.1)
    raise SystemExit("Kafka does not answer in time")
