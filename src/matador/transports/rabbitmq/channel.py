"""A channel of a connection, with calls that can be awaited."""

from __future__ import annotations

import asyncio
import builtins
import logging
from collections.abc import Callable
from typing import Any, Protocol

from pika import exceptions as pika_errors

from matador.errors import MatadorError, NotConnectedError, TimeoutError
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
        reply = await self._call(
            lambda done: self._raw.queue_declare(
                queue.name,
                passive=passive,
                durable=True,
                arguments=queue.arguments,
                callback=done,
            ),
            f"queue {queue.name}",
        )
        return int(reply.message_count), int(reply.consumer_count)

    async def declare_exchange(self, exchange: AmqpExchange) -> None:
        """Make an exchange."""
        await self._call(
            lambda done: self._raw.exchange_declare(
                exchange.name,
                exchange.type,
                durable=exchange.durable,
                arguments=exchange.arguments,
                callback=done,
            ),
            f"exchange {exchange.name}",
        )

    async def bind(self, binding: AmqpBinding) -> None:
        """Bind a queue to an exchange."""
        await self._call(
            lambda done: self._raw.queue_bind(
                binding.queue,
                binding.exchange,
                binding.key,
                arguments=binding.arguments,
                callback=done,
            ),
            f"binding of {binding.queue} to {binding.exchange}",
        )

    def declare_unheard(self, thing: AmqpExchange | AmqpQueue | AmqpBinding) -> None:
        """Make something without waiting for an answer; a mistake closes the channel."""
        arguments = thing.arguments
        match thing:
            case AmqpExchange():
                self._raw.exchange_declare(
                    thing.name, thing.type, durable=thing.durable, arguments=arguments
                )
            case AmqpQueue():
                self._raw.queue_declare(thing.name, durable=True, arguments=arguments)
            case AmqpBinding():
                self._raw.queue_bind(thing.queue, thing.exchange, thing.key, arguments=arguments)

    async def confirm(self) -> None:
        """Have the broker confirm every message published here; the sink hears of it."""
        await self._call(
            lambda done: self._raw.confirm_delivery(_nobody, callback=done), "confirms"
        )

    async def limit(self, prefetch: int) -> None:
        """How many messages may be unacknowledged."""
        await self._call(
            lambda done: self._raw.basic_qos(prefetch_count=min(prefetch, 65535), callback=done),
            "prefetch",
        )

    async def consume(self, queue: str, arguments: Arguments | None = None) -> str:
        """Have messages pushed to the sink; the consumer's tag."""
        reply = await self._call(
            lambda done: self._raw.basic_consume(
                queue,
                _nobody,  # the sink takes what comes
                arguments=arguments,
                callback=done,
            ),
            f"consuming {queue}",
        )
        return str(reply.consumer_tag)

    async def consume_replies(self, queue: str, on_reply: Callable[[bytes, bytes], None]) -> None:
        """Have answers given to ``on_reply``: properties as they are written, and the body."""

        def arrived(_: object, __: object, properties: Any, body: bytes) -> None:
            on_reply(b"".join(properties.encode()), body)

        await self._call(
            lambda done: self._raw.basic_consume(queue, arrived, auto_ack=True, callback=done),
            f"consuming {queue}",
        )

    async def cancel(self, consumer: str) -> None:
        """Have no more messages pushed."""
        await self._call(
            lambda done: self._raw.basic_cancel(consumer, callback=done), "cancelling a consumer"
        )

    async def purge(self, queue: str) -> int:
        """Delete what is ready; how many there were."""
        reply = await self._call(
            lambda done: self._raw.queue_purge(queue, callback=done), f"purging {queue}"
        )
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
            log.warning("a channel was not closed in time")
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
            raise self._failure(self.error, what)
        self._waiting.add(answer)
        try:
            async with asyncio.timeout(_CALL_TIMEOUT):
                return await answer
        except builtins.TimeoutError as error:
            raise TimeoutError(f"{what}: no answer in {_CALL_TIMEOUT:g} s") from error
        except (pika_errors.AMQPError, pika_errors.ChannelError) as error:
            raise self._failure(error, what) from error
        finally:
            self._waiting.discard(answer)

    async def _call(self, start: Callable[[Callable[[Any], None]], object], what: str) -> Any:
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def done(reply: Any) -> None:
            if not answer.done():
                answer.set_result(reply.method)

        if self.error is not None:
            raise self._failure(self.error, what)
        try:
            start(done)
        except (pika_errors.AMQPError, pika_errors.ChannelError) as error:
            raise self._failure(error, what) from error
        return await self.wait(answer, what)

    def _failure(self, error: BaseException, what: str) -> MatadorError:
        return translate(error, what)

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


def _nobody(*_: object) -> None:
    """For callbacks that nobody needs."""
