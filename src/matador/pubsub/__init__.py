"""Pub/sub: publish messages by routing key, and receive them by patterns.

>>> from matador.pubsub import Publisher, Subscriber
>>> sub = Subscriber("amqp://localhost", exchange="events", queue="analytics")
"""

from matador.errors import (
    BufferExpiredError,
    BufferFullError,
    CircuitOpenError,
    InvalidMessageError,
    PublishError,
)
from matador.model.topology import Exchange
from matador.policy.ack import AckStrategy, DeadLetterOptions
from matador.policy.circuit import CircuitBreaker
from matador.policy.dedup import Deduplication
from matador.policy.recovery import Recovery
from matador.policy.validation import Validation
from matador.pubsub.publisher import Published, Publisher, SyncPublisher
from matador.pubsub.subscriber import Subscriber
from matador.runtime.messages import MessageContext

__all__ = [
    "AckStrategy",
    "BufferExpiredError",
    "BufferFullError",
    "CircuitBreaker",
    "CircuitOpenError",
    "DeadLetterOptions",
    "Deduplication",
    "Exchange",
    "InvalidMessageError",
    "MessageContext",
    "PublishError",
    "Published",
    "Publisher",
    "Recovery",
    "Subscriber",
    "SyncPublisher",
    "Validation",
]
