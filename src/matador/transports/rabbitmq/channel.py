"""A channel of a connection, with calls that can be awaited."""

from __future__ import annotations

import asyncio
import builtins
import logging
from collections.abc import Callable
from typing import Any, Protocol

from pika import exceptions as pika_errors

from matador.errors import NotConnectedError, TimeoutError
from matador.transports.rabbitmq.errors import translate
from matador.transports.rabbitmq.pika_connection import Sink
from matador.transports.rabbitmq.topology import AmqpBinding, AmqpExchange, AmqpQueue, Arguments

log = logging.getLogger("matador.rabbitmq")

_CALL_TIMEOUT = 20.0
_CLOSE_TIMEOUT = 3.0


class ChannelOwner(Protocol):
    """What a channel needs of its connection."""

    lost: asyncio.Future[BaseException]

    @property
    def is_open(self) -> bool:
        """Can it be used?"""
        ...

    def write(self, data: bytes) -> None:
        """Send whole frames."""
        ...


class AmqpChannel:
    """A channel whose calls are awaited. Closed by the broker at the first mistake.

    ``on_closed`` is called once, with the reason, when it is closed by anybody; ``on_cancel`` when
    the broker cancels a consumer.
    """

    def __init__(self, connection: ChannelOwner, raw: Any, sinks: dict[int, Sink]) -> None:
        self.connection = connection
        self.number = int(raw.channel_number)
        self.error: BaseException | None = None
        self.on_closed: Callable[[BaseException], None] = lambda _: None
        self.on_cancel: Callable[[], None] = lambda: None
        self._raw: Any = raw  # pika's types are too loose to be of use
        self._sinks = sinks
        self._waiting: set[asyncio.Future[Any]] = set()
        raw.add_on_close_callback(self._closed)
        raw.add_on_cancel_callback(self._cancelled)
        # A connection that breaks does not always close its channels first.
        connection.lost.add_done_callback(self._connection_lost)

    @property
    def is_open(self) -> bool:
        """Can it be used?"""
        return self.error is None and bool(self._raw.is_open)

    def write(self, data: bytes) -> None:
        """Send whole frames of this channel.

        Raises:
            NotConnectedError: it is closed.
        """
        if self.error is not None:
            raise NotConnectedError("the channel was closed")
        self.connection.write(data)

    async def declare_queue(self, queue: AmqpQueue, *, passive: bool = False) -> tuple[int, int]:
        """Make a queue, or look whether it is there: how many messages are ready, and consumers."""
        name, arguments = _declaration(queue)
        reply = await self._call(f"queue {queue.name}", name, passive=passive, **arguments)
        return int(reply.message_count), int(reply.consumer_count)

    async def declare_exchange(self, exchange: AmqpExchange) -> None:
        """Make an exchange."""
        name, arguments = _declaration(exchange)
        await self._call(f"exchange {exchange.name}", name, **arguments)

    async def bind(self, binding: AmqpBinding) -> None:
        """Bind a queue to an exchange."""
        name, arguments = _declaration(binding)
        await self._call(f"binding of {binding.queue} to {binding.exchange}", name, **arguments)

    def declare_unheard(self, thing: AmqpExchange | AmqpQueue | AmqpBinding) -> None:
        """Make something without waiting for an answer; a mistake closes the channel."""
        name, arguments = _declaration(thing)
        getattr(self._raw, name)(**arguments)

    async def confirm(self) -> None:
        """Have the broker confirm every message published here; the sink hears of it."""
        await self._call("confirms", "confirm_delivery", _nobody)

    async def limit(self, prefetch: int) -> None:
        """How many messages may be unacknowledged."""
        await self._call("prefetch", "basic_qos", prefetch_count=min(prefetch, 65535))

    async def consume(self, queue: str, arguments: Arguments | None = None) -> str:
        """Have messages pushed to the sink; the consumer's tag."""
        reply = await self._call(
            f"consuming {queue}",
            "basic_consume",
            queue,
            _nobody,  # the sink takes what comes
            arguments=arguments,
        )
        return str(reply.consumer_tag)

    async def consume_replies(self, queue: str, on_reply: Callable[[bytes, bytes], None]) -> None:
        """Have answers given to ``on_reply``: properties as they are written, and the body."""

        def arrived(_: object, __: object, properties: Any, body: bytes) -> None:
            on_reply(b"".join(properties.encode()), body)

        await self._call(f"consuming {queue}", "basic_consume", queue, arrived, auto_ack=True)

    async def cancel(self, consumer: str) -> None:
        """Have no more messages pushed."""
        await self._call("cancelling a consumer", "basic_cancel", consumer)

    async def purge(self, queue: str) -> int:
        """Delete what is ready; how many there were."""
        reply = await self._call(f"purging {queue}", "queue_purge", queue)
        return int(reply.message_count)

    async def close(self) -> None:
        """Close it; what is unacknowledged goes back to its queue. Idempotent."""
        if not self.is_open:
            return
        closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        tell = self.on_closed

        def told(_: BaseException) -> None:
            if not closed.done():
                closed.set_result(None)

        self.on_closed = told
        self._raw.close()
        try:
            async with asyncio.timeout(_CLOSE_TIMEOUT):
                await closed
        except builtins.TimeoutError:
            log.warning("a channel did not close in time")
        tell(self.error or pika_errors.ChannelClosedByClient(0, "closed"))

    def close_soon(self) -> None:
        """Close it without waiting for the broker's answer. Idempotent."""
        if self.is_open:
            self.on_closed = lambda _: None
            self._raw.close()

    async def wait(self, answer: asyncio.Future[Any], what: str) -> Any:
        """An answer of the broker, or the error that came in its place.

        Raises:
            TransportError: the channel was closed; TimeoutError: there was no answer.
        """
        if self.error is not None:
            raise translate(self.error, what)
        self._waiting.add(answer)
        try:
            async with asyncio.timeout(_CALL_TIMEOUT):
                return await answer
        except builtins.TimeoutError as error:
            raise TimeoutError(f"{what}: no response within {_CALL_TIMEOUT:g} s") from error
        except (pika_errors.AMQPError, pika_errors.ChannelError) as error:
            raise translate(error, what) from error
        finally:
            self._waiting.discard(answer)

    async def _call(self, what: str, method: str, *arguments: Any, **options: Any) -> Any:
        """Call a method of pika's channel, and wait for the broker's answer."""
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def done(reply: Any) -> None:
            if not answer.done():
                answer.set_result(reply.method)

        if self.error is not None:
            raise translate(self.error, what)
        try:
            getattr(self._raw, method)(*arguments, callback=done, **options)
        except (pika_errors.AMQPError, pika_errors.ChannelError) as error:
            raise translate(error, what) from error
        return await self.wait(answer, what)

    def _connection_lost(self, lost: asyncio.Future[BaseException]) -> None:
        self._closed(None, lost.result())

    def _closed(self, _: object, reason: BaseException) -> None:
        if self.error is not None:
            return
        self.error = reason
        self._sinks.pop(self.number, None)
        self.connection.lost.remove_done_callback(self._connection_lost)
        for waiting in list(self._waiting):
            if not waiting.done():
                waiting.set_exception(reason)
        self.on_closed(reason)

    def _cancelled(self, _: object) -> None:
        self.on_cancel()


def _declaration(thing: AmqpExchange | AmqpQueue | AmqpBinding) -> tuple[str, dict[str, Any]]:
    """The method of pika's channel that makes it, and what it is told."""
    match thing:
        case AmqpExchange(name, type_, arguments, durable):
            given = {"exchange": name, "exchange_type": type_, "durable": durable}
            return "exchange_declare", given | {"arguments": arguments}
        case AmqpQueue(name, arguments):
            return "queue_declare", {"queue": name, "durable": True, "arguments": arguments}
        case AmqpBinding(queue, exchange, key, arguments):
            given = {"queue": queue, "exchange": exchange, "routing_key": key}
            return "queue_bind", given | {"arguments": arguments}


def _nobody(*_: object) -> None:
    """For callbacks that nobody needs."""
