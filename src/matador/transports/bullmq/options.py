"""BullMQ addresses and their options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from matador.transports.kit.options import Scheme, text
from matador.transports.redis_client.options import PORT, RedisServerAddress


@dataclass(frozen=True, kw_only=True)
class BullMQAddress(RedisServerAddress):
    """A BullMQ address with its options. Its repr has no secret.

    Attributes:
        prefix: what all keys begin with, as BullMQ's own option.
    """

    kind = "BullMQ"
    schemes: ClassVar[Mapping[str, Scheme]] = {"bullmq": Scheme(PORT)}
    form = "bullmq://user:password@host:6379/0?prefix=bull"

    name: str = text("bullmq", empty=False)
    prefix: str = text("bull", empty=False)

    @property
    def where(self) -> str:
        """The server in a few words, without credentials: for logs and errors."""
        return f"BullMQ on Redis at {self.listed_hosts}"
