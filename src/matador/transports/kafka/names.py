"""What queues are called on Kafka: topics, and the topics that belong to them."""

from __future__ import annotations

import re
from functools import lru_cache

from matador.errors import ConfigurationError
from matador.model.topology import DEAD_LETTER_KINDS

_ILLEGAL = re.compile(r"[^A-Za-z0-9._-]", re.ASCII)
_LONGEST = 249
_DELAYED = ".delayed"
_EXCHANGE = ".exchange"


@lru_cache(1000)
def topic_name(queue: str) -> str:
    """The topic of a queue. Its own name, but for characters that Kafka does not allow.

    Raises:
        ConfigurationError: it is too long for Kafka.

    Example:
        >>> topic_name("shop.events"), topic_name("Owner:orders")
        ('shop.events', 'Owner-3Aorders')
    """
    name = _ILLEGAL.sub(lambda found: "".join(f"-{byte:02X}" for byte in found[0].encode()), queue)
    if len(name) > _LONGEST:
        raise ConfigurationError(
            f"Kafka: the topic {name[:40]!r}… has {len(name)} characters, and Kafka allows "
            f"{_LONGEST}; choose a shorter name or namespace"
        )
    return name


def delayed_topic(topic: str) -> str:
    """The topic in which delayed messages of a queue wait, a partition per level.

    Example:
        >>> delayed_topic("shop.events")
        'shop.events.delayed'
    """
    return topic + _DELAYED


def exchange_topic(exchange: str) -> str:
    """The topic of an exchange. A queue of the same name has another one.

    Example:
        >>> exchange_topic("shop.orders")
        'shop.orders.exchange'
    """
    return topic_name(exchange + _EXCHANGE)


def is_dead_letters(queue: str) -> bool:
    """Whether a name is that of a queue of dead letters."""
    return queue.endswith(tuple(f".{kind}" for kind in DEAD_LETTER_KINDS))
