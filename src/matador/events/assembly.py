"""Puts the receiving half of an application together, and checks beforehand that all fits."""

from __future__ import annotations

import logging
import random
from collections.abc import Sequence

from matador.codec.base import Codec
from matador.errors import SubscriberIsStubError, UnsupportedError
from matador.events.checkpoints import CheckpointStore
from matador.events.context import EventSender
from matador.events.hooks import HookSet
from matador.events.processor import MalformedStrategy, Processor
from matador.events.resolver import Resolver
from matador.events.runner import Runner
from matador.events.worker import EventWorker
from matador.model.capabilities import DeliveryMode
from matador.model.schema import Schema
from matador.model.subscriber import SubscriberStub
from matador.model.topology import Topology
from matador.policy.retry import RetryPolicy
from matador.runtime.activity import Activity
from matador.runtime.interruption import Interruption
from matador.runtime.leases import LeaseKeeper
from matador.runtime.settle import Settler
from matador.runtime.suspects import Suspects
from matador.runtime.threads import Threads
from matador.transports.base import Leasing, Transport
from matador.transports.clock import Clock

log = logging.getLogger("matador")

_MOST_THREADS = 1000  # the queues' concurrency is the limit that counts


def make_worker(
    *,
    transport: Transport,
    schema: Schema,
    topology: Topology,
    codec: Codec,
    retry: RetryPolicy,
    hooks: HookSet,
    checkpoints: CheckpointStore,
    sender: EventSender,
    activity: Activity,
    clock: Clock,
    delivery: DeliveryMode,
    malformed: MalformedStrategy,
    max_message_size: int,
) -> EventWorker:
    """The parts of a worker, each given what it needs and no more."""
    lease = transport.capabilities.lease
    leases = (
        LeaseKeeper(transport, lease)
        if lease is not None and isinstance(transport, Leasing)
        else None
    )
    settler = Settler(transport, activity, leases)
    threads = Threads(_MOST_THREADS)
    interruption = Interruption()
    resolver = Resolver(
        codec=codec,
        retry=retry,
        hooks=hooks,
        topology=topology,
        capabilities=transport.capabilities,
        clock=clock,
        random=random.random,
    )
    runner = Runner(
        hooks=hooks,
        sender=sender,
        leases=leases,
        threads=threads,
        interruption=interruption,
        transport_name=transport.name,
        timeouts={
            topology.full_name(queue.name): queue.consumer_timeout
            for queue in topology.queues
            if queue.consumer_timeout is not None
        },
    )
    processor = Processor(
        schema=schema,
        codec=codec,
        hooks=hooks,
        checkpoints=checkpoints,
        clock=clock,
        resolver=resolver,
        runner=runner,
        settler=settler,
        transport_name=transport.name,
        delivery=delivery,
        malformed=malformed,
        max_message_size=max_message_size,
    )
    return EventWorker(
        transport=transport,
        topology=topology,
        hooks=hooks,
        processor=processor,
        settler=settler,
        leases=leases,
        suspects=Suspects(retry.max_deliveries),
        interruption=interruption,
        threads=threads,
        activity=activity,
        clock=clock,
    )


def check_fit(
    schema: Schema,
    topology: Topology,
    transport: Transport,
    *,
    consume_from: Sequence[str],
    delivery: DeliveryMode,
    checkpoints: CheckpointStore,
) -> None:
    """Check that schema, topology and transport go together.

    Raises:
        InvalidSchemaError: with every problem of the schema.
        SubscriberIsStubError: a queue to be consumed receives messages for a stub.
        UnsupportedError: a delivery mode the transport does not support.
    """
    schema.check(topology)
    for warning in schema.warnings():
        log.warning("schema: %s", warning)
    _check_stubs(schema, topology, consume_from)
    _check_delivery_modes(schema, transport, delivery)
    if (consume_from and not checkpoints.persistent) and any(
        one.idempotent == "resumable" for _, subscribers in schema for one in subscribers
    ):
        log.warning(
            "there are resumable subscribers, but no checkpoint store: every attempt starts from "
            "the beginning; pass checkpoints=SqliteCheckpointStore(...) or another one"
        )


def _check_stubs(schema: Schema, topology: Topology, consume_from: Sequence[str]) -> None:
    for event, subscribers in schema:
        for one in subscribers:
            queue = topology.queue(one.queue).name if one.queue else topology.default_queue.name
            if isinstance(one, SubscriberStub) and queue in consume_from:
                raise SubscriberIsStubError(
                    f"subscriber {one.name!r} of {event.key!r} is a stub, but its messages go to "
                    f"{queue!r}, which this application consumes"
                )


def _check_delivery_modes(schema: Schema, transport: Transport, delivery: DeliveryMode) -> None:
    supported = transport.capabilities.delivery_modes
    wanted = {"the application": delivery}
    for event, subscribers in schema:
        for one in subscribers:
            if one.delivery is not None:
                wanted[f"subscriber {one.name!r} of {event.key!r}"] = one.delivery
    for who, mode in wanted.items():
        if mode not in supported:
            raise UnsupportedError(
                f"{who} asks for {mode} delivery, which {transport.name} does not support; "
                f"it supports {', '.join(sorted(supported))}"
            )
