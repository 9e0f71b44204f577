"""What share groups need: a client and a broker that have them, and settings of the group.

The defaults of Kafka would lose messages: a share group begins at the end of a topic, and its
brokers drop a message that was delivered five times without an acknowledgement.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

import confluent_kafka
from confluent_kafka.admin import (
    AlterConfigOpType,  # pyright: ignore[reportPrivateImportUsage] - public
    ConfigEntry,  # pyright: ignore[reportPrivateImportUsage] - public
    ConfigResource,  # pyright: ignore[reportPrivateImportUsage] - public
    ResourceType,  # pyright: ignore[reportPrivateImportUsage] - public
)

from matador.errors import ConfigurationError, MatadorError
from matador.transports.kafka.client import KafkaClient
from matador.transports.kafka.server_settings import broker_settings, settings_of, whole_of
from matador.transports.kit.backoff import Backoff

_SHARE = ".share"
_RESET = "share.auto.offset.reset"
_LOCK = "share.record.lock.duration.ms"
_LIMIT = "share.delivery.count.limit"
_LONGEST_LOCK = "group.share.max.record.lock.duration.ms"
_SHORTEST_LOCK = "group.share.min.record.lock.duration.ms"
_HIGHEST_LIMIT = "group.share.max.delivery.count.limit"


@dataclass(frozen=True, slots=True)
class ShareLimits:
    """How long the broker lets us hold a message, in seconds, and how often it delivers it."""

    lock: float
    deliveries: int


def share_group(group: str) -> str:
    """The share group beside a consumer group: a name belongs to one kind of group only.

    Example:
        >>> share_group("shop.events")
        'shop.events.share'
    """
    return group + _SHARE


async def require_share_groups(client: KafkaClient) -> None:
    """Make sure that client and broker have them.

    Raises:
        ConfigurationError: one of them has not.
    """
    if not hasattr(confluent_kafka, "ShareConsumer"):
        raise ConfigurationError(
            f"Kafka: groups=share needs confluent-kafka 2.16 or newer, and "
            f"{confluent_kafka.__version__} is installed; update it, or use groups=consumer"
        )
    found = await settings_of(client, _resource(share_group(client.address.client_id)))
    if _RESET not in found:
        raise ConfigurationError(
            f"{client.where} has no share groups, or does not let us see their settings; "
            f"groups=share needs Kafka 4.2 or newer and the right DESCRIBE_CONFIGS on groups; "
            f"otherwise use groups=consumer"
        )


async def prepare_group(client: KafkaClient, group: str) -> ShareLimits:
    """Give a share group the settings that it needs, unless it has them.

    Raises:
        ConfigurationError: they cannot be set.
    """
    wanted = await _wanted(client)
    found = await settings_of(client, _resource(group))
    changed = {name: value for name, value in wanted.items() if found.get(name) != value}
    if changed:
        entries = [
            ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
            for name, value in changed.items()
        ]
        resource = ConfigResource(ResourceType.GROUP, group, incremental_configs=entries)
        answers = await client.ask(lambda admin: admin.incremental_alter_configs([resource]))
        for answer in answers.values():
            if isinstance(answer, MatadorError):
                listed = ", ".join(f"{name}={value}" for name, value in changed.items())
                raise ConfigurationError(
                    f"Kafka: the share group {group!r} needs {listed}, which could not be set: "
                    f"{answer}; allow ALTER_CONFIGS on the group, or set them with kafka-configs.sh"
                ) from answer
        await _wait_until_set(client, group, wanted)
    return ShareLimits(int(wanted[_LOCK]) / 1000, int(wanted[_LIMIT]))


async def _wait_until_set(client: KafkaClient, group: str, wanted: Mapping[str, str]) -> None:
    """Brokers hear of settings a little later. A group that begins before would skip messages."""
    until, backoff = time.monotonic() + client.address.timeout, Backoff(0.02, 0.5)
    while time.monotonic() < until:
        found = await settings_of(client, _resource(group))
        if all(found.get(name) == value for name, value in wanted.items()):
            return
        await backoff.sleep()
    raise ConfigurationError(
        f"Kafka: the share group {group!r} has not got its settings after "
        f"{client.address.timeout:g} s; look at the brokers"
    )


async def check_group(client: KafkaClient, group: str) -> list[str]:
    """What is wrong with the settings of a share group. A worker sets them right when it starts."""
    wanted = await _wanted(client)
    found = await settings_of(client, _resource(group))
    return [
        f"the share group {group} has {name}={found[name]}, and a worker sets {value}"
        for name, value in wanted.items()
        if name in found and found[name] != value
    ]


async def _wanted(client: KafkaClient) -> dict[str, str]:
    broker = await broker_settings(client)
    longest = whole_of(broker.get(_LONGEST_LOCK), 60_000)
    shortest = whole_of(broker.get(_SHORTEST_LOCK), 15_000)
    lock = round(client.address.lock * 1000) or longest
    if not shortest <= lock <= longest:
        raise ConfigurationError(
            f"Kafka: lock must be from {shortest / 1000:g} to {longest / 1000:g} s on this "
            f"broker, got {lock / 1000:g}; {_LONGEST_LOCK} of the brokers is the limit"
        )
    return {
        _RESET: "earliest",
        "share.isolation.level": "read_committed",
        _LOCK: str(lock),
        _LIMIT: str(whole_of(broker.get(_HIGHEST_LIMIT), 10)),
    }


def _resource(group: str) -> ConfigResource:
    return ConfigResource(ResourceType.GROUP, group)
