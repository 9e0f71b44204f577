"""The settings of brokers, topics and groups, as the brokers tell them."""

from __future__ import annotations

from typing import Any

from confluent_kafka.admin import (
    ConfigResource,  # pyright: ignore[reportPrivateImportUsage] - public
    ResourceType,  # pyright: ignore[reportPrivateImportUsage] - public
)

from matador.errors import MatadorError
from matador.transports.kafka.client import KafkaClient


async def broker_settings(client: KafkaClient) -> dict[str, str]:
    """The settings of one of the brokers; none if we may not see them."""
    cluster: Any = await client.blocking(client.cluster)
    broker = next(iter(cluster.brokers), None)
    return await settings_of(client, ConfigResource(ResourceType.BROKER, str(broker)))


async def settings_of(client: KafkaClient, resource: ConfigResource) -> dict[str, str]:
    """The settings of a broker, a topic or a group; none if we may not see them."""
    answers = await client.ask(lambda admin: admin.describe_configs([resource]))
    found: Any = next(iter(answers.values()), None)
    if found is None or isinstance(found, MatadorError):
        return {}
    return {name: str(entry.value) for name, entry in found.items() if entry.value is not None}


def whole_of(text: str | None, default: int) -> int:
    """A setting that is a whole number, or the default."""
    try:
        return default if text is None else int(text)
    except ValueError:
        return default
