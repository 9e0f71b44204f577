"""Runs the consumers of channels: finds the one for a message, and fills its parameters by type."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, cast

from matador.channels.compression import decompressed
from matador.channels.declare import Consumer, queue_name
from matador.messages.context import Acknowledgement, Arrival, arrival_of
from matador.messages.functions import Fill, MessageFunction, read_function
from matador.messages.handler import MessageHandler, Unhandled, decoded
from matador.model.envelope import Docket, Envelope
from matador.model.message import Delivery
from matador.model.options import suggestion
from matador.pubsub.context import MessageContext, Received
from matador.transports.base import Transport


@dataclass(frozen=True, slots=True)
class Arrived:
    """A message for one consumer: what its parameters are filled from."""

    context: MessageContext
    consumer: Consumer
    data: Any
    received_at: datetime
    transport: Transport
    service: object


def envelope_of(arrived: Arrived) -> Envelope[Any]:
    """The message as an envelope, for consumers that take one."""
    context, consumer = arrived.context, arrived.consumer
    headers = {name: value for name, value in context.headers.items() if name[:2] != "x-"}
    docket = Docket(
        event_key=consumer.queue,
        target_subscriber=getattr(consumer.method, "__qualname__", consumer.queue),
        attempts=context.attempts,
        importance="should-investigate",
        created_at=arrived.received_at,
        original_queue=context.queue,
        correlation_id=context.correlation_id,
        metadata=headers,
    )
    return Envelope(context.message_id, arrived.data, docket)


def read_consumer(consumer: Consumer, service: type[object]) -> MessageFunction:
    """Read the signature of a consumer.

    Raises:
        ConfigurationError: it has a parameter that nothing fills.
    """
    fills: dict[type[Any], Fill] = {
        MessageContext: lambda arrived: arrived.context,
        Envelope: envelope_of,
        cast("type[Any]", Transport): lambda arrived: arrived.transport,
        service: lambda arrived: arrived.service,
    }
    where = f"@consume({consumer.consumes.name!r}) of channel {consumer.channel!r}"
    return read_function(
        consumer.method, where, context=MessageContext, inject=fills, carrier=Envelope
    )


class ChannelHandler(MessageHandler):
    """A ``Handler`` for all queues of a service."""

    def bind(
        self,
        consumers: Mapping[str, tuple[Consumer, MessageFunction]],
        broadcasts: Mapping[str, str],
        transport: Transport,
        service: object,
    ) -> None:
        """Say who handles what.

        Args:
            consumers: by the names of their queues.
            broadcasts: the channel of each queue for published messages.
            transport: the connection.
            service: the service itself.
        """
        self._consumers = consumers
        self._broadcasts = broadcasts
        self._transport = transport
        self._service = service

    def arrive(self, delivery: Delivery) -> Arrival:
        """See ``MessageHandler``: a compressed body is decompressed."""
        plain = decompressed(delivery, self._validation.max_size)
        return arrival_of(delivery, self._clock.new_id, plain.body, plain.problem)

    async def run(self, arrival: Arrival, acknowledgement: Acknowledgement | None) -> bytes | None:
        """See ``MessageHandler``."""
        queue = arrival.delivery.receipt.queue
        channel = self._broadcasts.get(queue)
        context = Received(arrival, channel or "", acknowledgement).context
        wanted = queue if channel is None else queue_name(channel, context.routing_key)
        found = self._consumers.get(wanted)
        if found is None:
            raise Unhandled(
                f"no consumer for {wanted[:200]!r}{suggestion(wanted[:200], self._consumers)}"
            )
        consumer, function = found
        data = decoded(function, arrival.body)
        now = self._clock.now()
        arrived = Arrived(context, consumer, data, now, self._transport, self._service)
        await self.call(function, arrived, data, consumer.consumes.timeout)
        return None
