"""The brokers: one adapter each, behind one protocol (``matador.transports.base``).

Adapters are imported when they are first asked for, so that none costs anything until it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matador.transports.base import Subscription as Subscription
    from matador.transports.base import Transport as Transport
    from matador.transports.bullmq import BullMQTransport as BullMQTransport
    from matador.transports.kafka import KafkaTransport as KafkaTransport
    from matador.transports.memory import MemoryTransport as MemoryTransport
    from matador.transports.multi import MultiTransport as MultiTransport
    from matador.transports.rabbitmq import RabbitMQTransport as RabbitMQTransport
    from matador.transports.redis import RedisTransport as RedisTransport
    from matador.transports.sqlite import SqliteTransport as SqliteTransport
    from matador.transports.sqs import SqsTransport as SqsTransport
    from matador.transports.urls import transport_from_url as transport_from_url

_HOMES = {
    "BullMQTransport": "matador.transports.bullmq",
    "KafkaTransport": "matador.transports.kafka",
    "MemoryTransport": "matador.transports.memory",
    "MultiTransport": "matador.transports.multi",
    "RabbitMQTransport": "matador.transports.rabbitmq",
    "RedisTransport": "matador.transports.redis",
    "SqliteTransport": "matador.transports.sqlite",
    "SqsTransport": "matador.transports.sqs",
    "Subscription": "matador.transports.base",
    "Transport": "matador.transports.base",
    "transport_from_url": "matador.transports.urls",
}

__all__ = [
    "BullMQTransport",
    "KafkaTransport",
    "MemoryTransport",
    "MultiTransport",
    "RabbitMQTransport",
    "RedisTransport",
    "SqliteTransport",
    "SqsTransport",
    "Subscription",
    "Transport",
    "transport_from_url",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(home), name)
