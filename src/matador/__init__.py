"""Matador: events over the broker you already run, with no message lost.

Example:
    >>> from dataclasses import dataclass
    >>> from matador import Envelope, Matador, Schema, event, subscriber
    >>> @event("order.placed", description="A customer placed an order.")
    ... @dataclass(frozen=True)
    ... class OrderPlaced:
    ...     order_id: str
    >>> @subscriber(description="Email the receipt.", idempotent="yes")
    ... async def email_receipt(envelope: Envelope[OrderPlaced]) -> None: ...
    >>> app = Matador("sqlite:///shop.db", schema=Schema({OrderPlaced: [email_receipt]}),
    ...               consume_from=["events"])
"""

from matador import _interrupt as _interrupt  # first: see there
from matador.codec import CompressedCodec, HeaderCodec, JsonCodec, MessagePackCodec
from matador.errors import (
    DontRetry,
    DoRetry,
    EventAssertionError,
    MatadorError,
    assert_event,
)
from matador.events.app import Matador, SyncMatador
from matador.events.context import SyncContext
from matador.model.capabilities import Capabilities
from matador.model.envelope import Docket, Envelope
from matador.model.event import EventType, event
from matador.model.schema import Schema
from matador.model.sending import SendOptions, SendResult
from matador.model.subscriber import Subscriber, SubscriberStub, subscriber
from matador.model.topology import (
    DeadLetterQueue,
    DeadLetters,
    RetryQueues,
    Topology,
    WorkQueue,
)
from matador.policy.dedup import Deduplication, DuplicateStore, KeyedMessage
from matador.policy.retry import (
    Discard,
    RetryContext,
    RetryLater,
    RetryPolicy,
    SendToDeadLetters,
    StandardRetryPolicy,
)
from matador.runtime.checkpoints import (
    CheckpointStore,
    MemoryCheckpointStore,
    NoCheckpointStore,
)
from matador.runtime.context import Context
from matador.runtime.dedup import Deduplicator, Handled, MemoryDuplicateStore
from matador.runtime.facts import Attempt, NotSent, Received, Sent
from matador.runtime.health import Health
from matador.runtime.hooks import CheckpointEvent, ConnectionChange, Hooks, TransportFallback
from matador.runtime.metrics import Metrics
from matador.runtime.redis_checkpoints import RedisCheckpointStore
from matador.runtime.redis_dedup import RedisDuplicateStore
from matador.runtime.service import Shutdown
from matador.runtime.sqlite_checkpoints import SqliteCheckpointStore

__all__ = [
    "Attempt",
    "Capabilities",
    "CheckpointEvent",
    "CheckpointStore",
    "CompressedCodec",
    "ConnectionChange",
    "Context",
    "DeadLetterQueue",
    "DeadLetters",
    "Deduplication",
    "Deduplicator",
    "Discard",
    "DoRetry",
    "Docket",
    "DontRetry",
    "DuplicateStore",
    "Envelope",
    "EventAssertionError",
    "EventType",
    "Handled",
    "HeaderCodec",
    "Health",
    "Hooks",
    "JsonCodec",
    "KeyedMessage",
    "Matador",
    "MatadorError",
    "MemoryCheckpointStore",
    "MemoryDuplicateStore",
    "MessagePackCodec",
    "Metrics",
    "NoCheckpointStore",
    "NotSent",
    "Received",
    "RedisCheckpointStore",
    "RedisDuplicateStore",
    "RetryContext",
    "RetryLater",
    "RetryPolicy",
    "RetryQueues",
    "Schema",
    "SendOptions",
    "SendResult",
    "SendToDeadLetters",
    "Sent",
    "Shutdown",
    "SqliteCheckpointStore",
    "StandardRetryPolicy",
    "Subscriber",
    "SubscriberStub",
    "SyncContext",
    "SyncMatador",
    "Topology",
    "TransportFallback",
    "WorkQueue",
    "assert_event",
    "event",
    "subscriber",
]

__version__ = "0.1.0"
