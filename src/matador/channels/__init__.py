"""Channels: consumers declared as methods of classes, and a service that runs and feeds them.

Example:
    >>> from matador.channels import QueueService, channel, consume
    >>> @channel("orders")
    ... class Orders:
    ...     @consume("created")
    ...     async def created(self, order: OrderCreated, ctx: MessageContext) -> None: ...
    >>> service = QueueService.from_config("matador.toml", channels=[Orders])
"""

from __future__ import annotations

from matador.channels.declare import Consumer, channel, consume
from matador.channels.service import QueueService, SyncQueueService
from matador.channels.settings import (
    DeadLetterQueueSettings,
    QueueSettings,
    RedisModeWarning,
    RetrySettings,
    Settings,
    ShutdownSettings,
)
from matador.errors import ConfigurationError, QueueError
from matador.model.envelope import Envelope
from matador.policy.ack import AckStrategy, DeadLetterOptions
from matador.policy.circuit import CircuitBreaker
from matador.policy.dedup import Deduplication
from matador.policy.recovery import Recovery
from matador.policy.validation import Validation
from matador.runtime.messages import MessageContext

__all__ = [
    "AckStrategy",
    "CircuitBreaker",
    "ConfigurationError",
    "Consumer",
    "DeadLetterOptions",
    "DeadLetterQueueSettings",
    "Deduplication",
    "Envelope",
    "MessageContext",
    "QueueError",
    "QueueService",
    "QueueSettings",
    "Recovery",
    "RedisModeWarning",
    "RetrySettings",
    "Settings",
    "ShutdownSettings",
    "SyncQueueService",
    "Validation",
    "channel",
    "consume",
]
