"""Channels as a way in: finds the consumer of a message, and fills its parameters by type."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeAlias, cast

import msgspec

from matador.channels.compression import decompressed
from matador.channels.declare import Consumer
from matador.errors import ConfigurationError
from matador.model.envelope import Docket, Envelope
from matador.model.message import DeadLetter, Delivery, Retry, Settlement
from matador.model.options import suggestion
from matador.model.signature import place_of
from matador.model.text import SHORT_TEXT
from matador.model.topology import dead_letter_name
from matador.runtime.batches import Batches
from matador.runtime.calls import INTERRUPTED, Calls
from matador.runtime.functions import Fill, MessageFunction, read_function
from matador.runtime.messages import (
    FIRST_QUEUE,
    ORIGINAL_QUEUE,
    MessageContext,
    MessageOptions,
    MessageRoute,
    MessageWay,
    MessageWork,
    Unhandled,
    message_of,
)
from matador.runtime.way import Call, Scope
from matador.transports.kit.dead_letters import dead_letter_of

Arrived: TypeAlias = tuple[MessageContext, MessageWork, datetime]
"""The source of the values of a consumer's parameters, with the time of arrival."""


class ChannelRoute(MessageRoute, frozen=True, kw_only=True):
    """The route to a consumer.

    Attributes:
        consumer: as it was declared.
        concurrency: how many messages, or batches, it handles at once.
        batch_size: the maximum size of a batch; None: it takes single messages.
        limit: the time limit of a batch in seconds. The messages of a batch have no separate
            ``timeout``.
    """

    consumer: Consumer
    concurrency: int
    batch_size: int | None = None
    limit: float | None = None

    @property
    def slots(self) -> int:
        """The number of messages received at once."""
        return self.concurrency * (self.batch_size or 1)


class ChannelWay(MessageWay):
    """The way in of all queues of a queue service.

    ``consumers`` are by the names of their queues. ``broadcasts`` names, for each queue of
    published messages, that of its consumer. ``send`` sends to one consumer, and ``calls`` run
    batches.
    """

    def __init__(
        self,
        options: MessageOptions,
        consumers: Mapping[str, ChannelRoute],
        broadcasts: Mapping[str, str],
        send: Callable[..., Awaitable[str]],
        calls: Calls,
    ) -> None:
        super().__init__(options)
        self._send = send
        self._calls = calls
        self._batches: dict[str, Batches] = {}
        self._consumers = consumers
        self._broadcasts = broadcasts

    def body_of(self, delivery: Delivery) -> tuple[bytes, str | None]:
        return decompressed(delivery, self._validation.max_size)

    def route_of(self, delivery: Delivery, name: str) -> MessageRoute:
        wanted = self._consumer_queue(delivery)[:SHORT_TEXT]
        found = self._consumers.get(wanted)
        if found is None:
            raise Unhandled(f"no consumer for {wanted!r}{suggestion(wanted, self._consumers)}")
        return found

    def arguments(self, work: MessageWork, scope: Scope | None) -> Arrived:
        consumer = cast("ChannelRoute", work.route).consumer
        exchange = consumer.channel if work.delivery.receipt.queue in self._broadcasts else ""
        return MessageContext(work, scope, exchange, self._send), work, self._clock.now()

    def call(self, work: MessageWork, scope: Scope | None) -> Call:
        route = cast("ChannelRoute", work.route)
        return super().call(work, scope) if route.batch_size is None else self._joined(work, route)

    # -- batches ----------------------------------------------------------------------------------

    async def _joined(self, work: MessageWork, route: ChannelRoute) -> None:
        """Handle a message in a batch, or in a separate batch once it has failed.

        So a message that makes its batch fail only uses up its own attempts.
        """
        receipt = work.delivery.receipt
        batches = self._batches.get(receipt.queue)
        if batches is None:
            batches = self._batches[receipt.queue] = Batches(
                lambda works: self._run(route, works),
                size=route.batch_size or 1,
                at_once=route.concurrency,
                name=f"matador-batch-{receipt.queue}",
            )
        again = work.attempt > 1 or receipt.delivery_count > 1 or receipt.redelivered
        try:
            await batches.join(work, alone=again)
        except asyncio.CancelledError:
            if not route.function.is_async:  # its thread continues, so a redelivery decides
                work.route = msgspec.structs.replace(route, idempotent="unknown")
            raise

    async def _run(self, route: ChannelRoute, works: Sequence[MessageWork]) -> Exception | None:
        """Call a consumer with a batch; return its error."""
        function, data = route.function, [one.data for one in works]
        if function.enveloped:
            data = [_envelope(self.arguments(one, None)) for one in works]
        bound = function.bind(None, data)

        async def called() -> None:
            if not function.is_async:
                await self._calls.in_thread(bound, limit=route.limit, who=route.handler)
            elif route.limit is not None:
                await self._calls.limited(bound(), route.limit, route.handler)
            else:
                await bound()

        _, error = (await self._calls.run(called())).outcome
        if error is INTERRUPTED:
            raise asyncio.CancelledError
        return error

    # -- dead letters -----------------------------------------------------------------------------

    def letter(self, letter: DeadLetter, delivery: Delivery) -> Settlement:
        """Keep the dead letters of published messages in the consumer's queue, because their own
        queue is deleted with the service."""
        receipt = letter.receipt
        if receipt.queue not in self._broadcasts:
            return letter
        queue = self._consumer_queue(delivery)
        kept = dead_letter_of(letter, message_of(delivery, delivery.id, delivery.headers))
        message = msgspec.structs.replace(
            kept,
            queue=dead_letter_name(queue, letter.kind),
            headers={**kept.headers, ORIGINAL_QUEUE: queue, FIRST_QUEUE: receipt.queue},
        )
        return Retry(receipt, message)

    def _consumer_queue(self, delivery: Delivery) -> str:
        """The queue of the consumer that a message is for."""
        queue = delivery.receipt.queue
        return self._broadcasts.get(queue, queue)


def _envelope(arrived: Arrived) -> Envelope[Any]:
    """The message as an envelope, for consumers that take one."""
    context, work, now = arrived
    consumer = cast("ChannelRoute", work.route).consumer
    docket = Docket(
        event_key=consumer.queue,
        target_subscriber=getattr(consumer.method, "__qualname__", consumer.queue),
        attempts=context.attempts,
        importance="should-investigate",
        created_at=now,
        original_queue=context.queue,
        correlation_id=context.correlation_id,
        metadata=dict(context.metadata),
    )
    return Envelope(context.message_id, work.data, docket)


def read_consumer(consumer: Consumer, also: Mapping[type[Any], Fill]) -> MessageFunction:
    """Read the signature of a consumer. ``also``: makes the values of further parameters, by type.

    Raises:
        ConfigurationError: a parameter has no value to take.
    """
    where = f"@consume({consumer.name!r}) of channel {consumer.channel!r}"
    context: Fill = lambda arrived: arrived[0]  # noqa: E731 - compared below
    function = read_function(
        consumer.method,
        where,
        context=MessageContext,
        fill=context,
        inject={Envelope: _envelope, **also},
        carrier=Envelope,
        batches=True,
    )
    of_one = any(fill in (context, _envelope) for _, fill in function.fills)
    if function.batch and of_one:
        raise ConfigurationError(
            f"{where}: a batch has no context of one message; take list[Envelope[…]] for the id, "
            f"the attempt and the metadata of each{place_of(consumer.method)}"
        )
    if function.batch and consumer.options.get("idempotent") == "resumable":
        raise ConfigurationError(
            f"{where}: a batch has no steps of one message, so it cannot be resumable"
        )
    if consumer.batch_size is not None and not function.batch:
        raise ConfigurationError(
            f"{where}: batch_size needs a parameter that takes a list of payloads, such as "
            f"list[OrderCreated]{place_of(consumer.method)}"
        )
    return function
