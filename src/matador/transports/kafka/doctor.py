"""Checks a cluster for ``matador doctor``: settings that lose or repeat messages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from confluent_kafka.admin import (
    ConfigResource,  # pyright: ignore[reportPrivateImportUsage] - public
    ResourceType,  # pyright: ignore[reportPrivateImportUsage] - public
)

from matador.errors import MatadorError
from matador.model.message import Finding, TopologyNote
from matador.model.topology import Topology
from matador.transports.kafka.client import KafkaClient
from matador.transports.kafka.topics import (
    Topics,
    delayed_topic,
    int_setting,
    is_dead_letters,
    topic_name,
)

_DAY = 86_400_000
_HALF_A_DAY = 720


async def examine(client: KafkaClient) -> list[Finding]:
    """Check the number of brokers, and their defaults for topics."""
    cluster: Any = await client.blocking(client.cluster)
    count = len(cluster.brokers)
    findings = [Finding("server", f"{client.where} answers: {count} broker(s)")]
    if count < 3:
        findings.append(
            Finding(
                "replication",
                f"with {count} broker(s) the loss of one loses or stops messages",
                "run at least three brokers, with replication=3 and min.insync.replicas=2",
            )
        )
    broker = str(next(iter(cluster.brokers), None))
    settings = await client.settings_of(ConfigResource(ResourceType.BROKER, broker))
    if settings.get("auto.create.topics.enable") == "true":
        findings.append(
            Finding(
                "auto.create.topics.enable",
                "the brokers create a topic for every misspelled name",
                "set auto.create.topics.enable=false; Matador creates its own topics",
            )
        )
    if int_setting(settings, "offsets.retention.minutes", _HALF_A_DAY) < _HALF_A_DAY:
        findings.append(
            Finding(
                "offsets.retention.minutes",
                "the brokers forget the progress of stopped workers within hours",
                "raise offsets.retention.minutes to 10080 (a week) or more",
                serious=True,
            )
        )
    return findings


async def check(client: KafkaClient, topics: Topics, topology: Topology) -> list[TopologyNote]:
    """Check the existing topics of a topology."""
    names: dict[str, str] = {}
    for queue in topology.queues:
        full = topology.full_name(queue.name)
        names[topic_name(full)] = full
        names[delayed_topic(topic_name(full))] = full
    names |= {topic_name(full): full for _, _, full in topology.dead_letter_names()}
    wanted = topics.wanted(topology)
    limits: dict[str, int] = {}
    notes: list[TopologyNote] = []
    for topic, found in (await topics.describe(list(names))).items():
        if isinstance(found, MatadorError):
            continue
        settings = await client.settings_of(ConfigResource(ResourceType.TOPIC, topic))
        replicas = min((len(one.replicas) for one in found.partitions), default=1)
        count = len(found.partitions)
        if topic in wanted and topic.endswith(delayed_topic("")) and count < wanted[topic][0]:
            notes.append(
                TopologyNote(names[topic], f"{topic} needs {wanted[topic][0]} partitions: delays "
                             f"do not work with {count}")
            )  # fmt: skip
        kept = is_dead_letters(topic) or topic.endswith(delayed_topic(""))
        about = f"{topic}: " if topic.endswith(delayed_topic("")) else ""
        notes += [
            TopologyNote(names[topic], f"{about}{text}")
            for text in problems(settings, replicas, kept)
        ]
        limits[topic] = int_setting(settings, "max.message.bytes", 0)
    return notes + [
        TopologyNote(
            full,
            f"max.message.bytes is {limits[letters]:,}, and {limits[topic]:,} in {topic}: a dead "
            f"letter keeps only the beginning of a larger message; raise it",
        )
        for queue, _, full in topology.dead_letter_names()
        for topic, letters in ((topic_name(topology.full_name(queue.name)), topic_name(full)),)
        if 0 < limits.get(letters, 0) < limits.get(topic, 0)
    ]


def problems(settings: Mapping[str, str], replicas: int, kept: bool) -> Iterator[str]:
    """What is wrong with the settings of a topic; ``kept``: its messages may stay for long."""
    in_sync = int_setting(settings, "min.insync.replicas", 1)
    if replicas == 1:
        yield "there is one replica: the loss of a broker loses messages; use replication=3"
    elif in_sync < 2:
        yield "min.insync.replicas is 1: a message may be confirmed by one broker; set it to 2"
    elif in_sync >= replicas:
        yield (
            f"min.insync.replicas is {in_sync} of {replicas} replicas: nothing can be sent while "
            f"one broker is down; lower it by one"
        )
    retention = int_setting(settings, "retention.ms", -1)
    if 0 <= retention < _DAY and not kept:
        yield (
            f"Kafka deletes messages after {retention / 1000:g} s, handled or not; raise "
            f"retention.ms"
        )
    if retention >= 0 and kept and retention < _DAY:
        yield f"Kafka deletes waiting messages after {retention / 1000:g} s; raise retention.ms"
    if "compact" in settings.get("cleanup.policy", "delete"):
        yield (
            "cleanup.policy is compact: Kafka keeps only the last message of each key; use delete"
        )
