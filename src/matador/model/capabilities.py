"""What a transport can do. Declared by each, shown true by the compliance suite."""

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
    """The abilities of a transport.

    Attributes:
        delivery_modes: the modes it supports.
        delays: it can keep a message safely until its time.
        dead_letters: ``native``: the broker moves them; ``manual``: stored and acknowledged by us.
        attempt_tracking: receipts carry a true delivery count that survives a crash.
        concurrency: how parallel consumers are made.
        ordering: ``none``; ``queue``: one consumer sees the order of sending; ``partition``: also
            messages with one ordering key are handled one at a time, in order, by any number of
            consumers.
        priorities: a higher number is delivered first, on queues that are declared with it.
        browse: stored messages can be read without consuming them (``Browsing``).
        purge: a queue can be emptied (``Purging``).
        depth: it can say how many messages wait (``Measuring``).
        replay: what a queue with a retention has finished can be read again (``Replaying``).
        once: a message that is sent again under its id is not stored again (``Deduplicating``).
        properties: the fields of ``Message.properties`` it carries from sender to receiver.
        routing: exchanges and bindings can be declared and published to (``Routing``).
        jobs: states and results of jobs are stored (``JobStoring``).
        durable: a confirmed send survives a crash of every process.
        in_process: nobody outside this process can receive its messages.
        lease: seconds for which a delivery belongs to its receiver unless renewed
            (``Leasing``); None: for as long as the connection lives.
        docket_in_headers: the docket travels in message headers by default (AMQP).
        max_message_size: bytes of the largest body, None: no limit of its own.
        max_delay: the longest delay in seconds, None: no limit.
    """

    delivery_modes: frozenset[DeliveryMode]
    delays: bool
    dead_letters: DeadLetterRouting
    attempt_tracking: bool
    concurrency: ConcurrencyModel
    ordering: Ordering
    priorities: bool
    browse: bool = False
    purge: bool = False
    depth: bool = False
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
