"""Transports by URL. An adapter is imported only when it is asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from matador.errors import ConfigurationError
from matador.model.options import suggestion
from matador.transports.base import Transport
from matador.transports.credentials import is_scheme

Maker: TypeAlias = Callable[[str], Transport]


def _memory(url: str) -> Transport:
    from matador.transports.memory import MemoryTransport

    return MemoryTransport.from_url(url)


def _sqlite(url: str) -> Transport:
    from matador.transports.sqlite import SqliteTransport

    return SqliteTransport.from_url(url)


def _redis(url: str) -> Transport:
    from matador.transports.redis import RedisTransport

    return RedisTransport.from_url(url)


def _bullmq(url: str) -> Transport:
    from matador.transports.bullmq import BullMQTransport

    return BullMQTransport(url)


def _rabbitmq(url: str) -> Transport:
    from matador.transports.rabbitmq import RabbitMQTransport

    return RabbitMQTransport(url)


_MAKERS: dict[str, Maker] = {
    "memory": _memory,
    "sqlite": _sqlite,
    "amqp": _rabbitmq,
    "amqps": _rabbitmq,
    "redis": _redis,
    "rediss": _redis,
    "redis+sentinel": _redis,
    "rediss+sentinel": _redis,
    "redis+unix": _redis,
    "bullmq": _bullmq,
}


def transport_from_url(url: str) -> Transport:
    """The transport for a URL, not connected yet.

    Raises:
        ConfigurationError: not a URL of a known transport; those known are listed.

    Example:
        >>> transport_from_url("sqlite:///shop.db")
        SqliteTransport('shop.db')
    """
    scheme, separator, _ = url.partition("://")
    scheme = scheme.lower()
    maker = _MAKERS.get(scheme) if separator else None
    if maker is not None:
        return maker(url)
    known = ", ".join(f"{name}://" for name in _MAKERS)
    if not separator or not is_scheme(scheme):
        # The text itself is not repeated: a URL without its scheme may still hold a password.
        raise ConfigurationError(
            f"not a transport URL: write for example sqlite:///shop.db (known: {known})"
        )
    raise ConfigurationError(
        f"no transport for {scheme}:// (known: {known}){suggestion(scheme, _MAKERS)}"
    )
