"""Transports by URL. A transport is imported when it is first used."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from matador.errors import ConfigurationError
from matador.model.options import suggestion
from matador.transports.base import Transport
from matador.transports.credentials import is_scheme

_REDIS = "redis:RedisTransport"
_TRANSPORTS = {
    "memory": "memory:MemoryTransport",
    "sqlite": "sqlite:SqliteTransport",
    "amqp": "rabbitmq:RabbitMQTransport",
    "amqps": "rabbitmq:RabbitMQTransport",
    "redis": _REDIS,
    "rediss": _REDIS,
    "redis+sentinel": _REDIS,
    "rediss+sentinel": _REDIS,
    "redis+unix": _REDIS,
    "bullmq": "bullmq:BullMQTransport",
    "sqs": "sqs:SqsTransport",
    "kafka": "kafka:KafkaTransport",
    "kafkas": "kafka:KafkaTransport",
}


def transport_from_url(url: str, **options: Any) -> Transport:
    """The transport for a URL, not connected yet. Options can be in the URL, or keywords.

    Raises:
        ConfigurationError: unknown transport; the error lists the known ones.

    Example:
        >>> transport_from_url("sqlite:///shop.db", lease=60)
        SqliteTransport('shop.db')
    """
    scheme, separator, _ = url.partition("://")
    scheme = scheme.lower()
    home = _TRANSPORTS.get(scheme) if separator else None
    if home is not None:
        module, _, name = home.partition(":")
        found = getattr(import_module(f"matador.transports.{module}"), name)
        return getattr(found, "from_url", found)(url, **options)
    known = ", ".join(f"{name}://" for name in _TRANSPORTS)
    if not separator or not is_scheme(scheme):
        # Not repeated: a URL without its scheme may still contain a password.
        raise ConfigurationError(
            f"not a transport URL: write for example sqlite:///shop.db (known: {known})"
        )
    raise ConfigurationError(
        f"no transport for {scheme}:// (known: {known}){suggestion(scheme, _TRANSPORTS)}"
    )
