"""Checks that schema, topology and transport match, and decides how each queue is consumed."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from matador.errors import ConfigurationError, SubscriberIsStubError, UnsupportedError
from matador.events.config import AppConfig
from matador.model.capabilities import DeliveryMode
from matador.model.options import whole_number
from matador.model.schema import Schema
from matador.model.subscriber import Subscriber, SubscriberStub
from matador.model.topology import Topology
from matador.policy.retry import may_run_again
from matador.runtime.hooks import HookSet
from matador.transports.base import Transport

log = logging.getLogger("matador")


class Concurrency:
    """How many messages of each queue run concurrently, and which queues may be read ahead."""

    def __init__(self, config: AppConfig, hooks: HookSet) -> None:
        schema, topology = config.schema, config.topology
        self._topology = topology
        self._default = config.concurrency
        self.ask = None if hooks.get_queue_concurrency is None else self.of
        self._asked = hooks.get_queue_concurrency
        self._once = {
            topology.full_name(one.queue or topology.default_queue.name)
            for _, subscribers in schema
            for one in subscribers
            if isinstance(one, Subscriber) and not may_run_again(one.idempotent)
        }

    async def of(self, queue: str) -> int:
        """The concurrency of a queue, by its full name."""
        asked = None if self._asked is None else await self._asked(queue)
        given = self._topology.queue(queue).concurrency if self._topology.has_queue(queue) else None
        usual = given or self._default
        if asked is None:
            return usual
        try:
            return whole_number(asked, f"get_queue_concurrency for {queue}", minimum=1)
        except ConfigurationError as error:
            log.error("%s; the topology decides instead", error)
            return usual

    def may_read_ahead(self, queue: str) -> bool:
        """Whether to receive messages before a slot is free. Not if a crash would lose them."""
        return queue not in self._once


def check_fit(config: AppConfig) -> None:
    """Check that schema, topology and transport match.

    Raises:
        InvalidSchemaError: the schema is invalid; lists every problem.
        SubscriberIsStubError: a queue to be consumed receives messages for a stub.
        UnsupportedError: the transport does not support a delivery mode.
    """
    schema, consume_from = config.schema, config.consume_from
    schema.check(config.topology)
    for warning in schema.warnings():
        log.warning("schema: %s", warning)
    _check_stubs(schema, config.topology, consume_from)
    _check_delivery_modes(schema, config.transport, config.delivery)
    if (consume_from and not config.checkpoints.persistent) and any(
        one.idempotent == "resumable" for _, subscribers in schema for one in subscribers
    ):
        log.warning(
            "there are resumable subscribers but no checkpoint store: every attempt starts from "
            "the beginning; pass checkpoints=SqliteCheckpointStore(...) or another store"
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
    for where, mode in wanted.items():
        if mode not in supported:
            raise UnsupportedError(
                f"{where} asks for {mode} delivery, which {transport.name} does not support; "
                f"it supports {', '.join(sorted(supported))}"
            )
