"""What a transport supports. Each transport declares it; the compliance suite verifies it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

DeliveryMode: TypeAlias = Literal["at-least-once", "at-most-once"]
"""``at-least-once``: acknowledged after the callback. ``at-most-once``: before it."""

DeadLetterRouting: TypeAlias = Literal["native", "manual", "none"]
ConcurrencyModel: TypeAlias = Literal["prefetch", "worker", "partition", "none"]
PropertyName: TypeAlias = Literal["routing_key", "reply_to", "correlation_id", "type", "expires_at"]
"""The fields of ``Properties``."""

Ordering: TypeAlias = Literal["none", "queue", "partition"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """The capabilities of a transport.

    Attributes:
        delivery_modes: the supported modes.
        delays: messages can be delayed safely.
        delays_retries: a retry can be delayed, although a new message cannot.
        dead_letters: ``native``: the broker moves them; ``manual``: Matador does.
        attempt_tracking: receipts have an exact delivery count that survives a crash.
        concurrency: how consumers run in parallel.
        ordering: ``none``; ``queue``: a single consumer receives messages in the order of sending;
            ``partition``: in addition, messages with the same ordering key are handled one at a
            time and in order, by any number of consumers.
        priorities: higher priorities are delivered first, on queues declared with priorities.
        browse: stored messages can be read without consuming them (``Browsing``).
        purge: a queue can be emptied (``Purging``).
        depth: the number of waiting messages is known (``Measuring``).
        pause: a queue can be paused for all consumers (``QueuePausing``).
        replay: finished messages of a queue with a retention can be read again (``Replaying``).
        once: a message sent again with the same id is not stored again (``Deduplicating``).
        properties: the fields of ``Message.properties`` that it transmits.
        routing: exchanges and bindings can be declared and published to (``Routing``).
        jobs: states and results of jobs are stored (``JobStoring``).
        durable: a confirmed message survives a crash of every process.
        in_process: only this process can receive its messages.
        lease: seconds until a delivery that is not renewed returns to the queue (``Leasing``);
            None: it belongs to its receiver while the connection lasts.
        docket_in_headers: by default, the docket is in the message headers (AMQP).
        max_message_size: the largest body in bytes; None: no limit of its own.
        max_delay: the maximum delay in seconds; None: no limit.
    """

    delivery_modes: frozenset[DeliveryMode]
    delays: bool
    dead_letters: DeadLetterRouting
    attempt_tracking: bool
    concurrency: ConcurrencyModel
    ordering: Ordering
    priorities: bool
    delays_retries: bool = False
    browse: bool = False
    purge: bool = False
    depth: bool = False
    pause: bool = False
    replay: bool = False
    once: bool = False
    properties: frozenset[PropertyName] = frozenset()
    routing: bool = False
    jobs: bool = False
    durable: bool = True
    in_process: bool = False
    lease: float | None = None
    docket_in_headers: bool = False
    max_message_size: int | None = None
    max_delay: float | None = None
