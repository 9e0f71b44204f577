"""A channel of a connection, with calls that can be awaited."""

from __future__ import annotations

import asyncio
import builtins
import logging
from collections.abc import Callable
from typing import Any, Self

from pika import exceptions as pika_errors

from matador.errors import NotConnectedError, TimeoutError
from matador.transports.rabbitmq.connection import AmqpConnection, Sink
from matador.transports.rabbitmq.errors import translate
from matador.transports.rabbitmq.topology import AmqpBinding, AmqpExchange, AmqpObject, AmqpQueue

log = logging.getLogger("matador.rabbitmq")

_CALL_TIMEOUT = 20.0
_CLOSE_TIMEOUT = 3.0


class AmqpChannel:
    """A channel whose calls are awaited. The broker closes it at the first mistake.

    ``on_closed`` is called once, with the reason, when anybody closes the channel; ``on_cancel``
    when the broker cancels a consumer.
    """

    def __init__(self, connection: AmqpConnection, raw: Any) -> None:
        self.connection = connection
        self.number = int(raw.channel_number)
        self.error: BaseException | None = None
        self.on_closed: Callable[[BaseException], None] = lambda _: None
        self.on_cancel: Callable[[], None] = lambda: None
        self._raw: Any = raw  # pika's types are too loose to be useful
        self._waiting: set[asyncio.Future[Any]] = set()
        self._gone = asyncio.Event()
        raw.add_on_close_callback(self._closed)
        raw.add_on_cancel_callback(self._cancelled)
        # A connection that breaks does not always close its channels first.
        connection.lost.add_done_callback(self._connection_lost)

    @classmethod
    async def open(cls, connection: AmqpConnection, sink: Sink | None = None) -> Self:
        """Open a channel; its frames are offered to ``sink`` first.

        Raises:
            TransportError: the connection is not open, or has no channel left.
        """
        opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def on_open(_: object) -> None:
            if not opened.done():
                opened.set_result(None)

        try:
            channel = cls(connection, connection.channel(on_open_callback=on_open))
        except pika_errors.AMQPError as error:
            raise translate(error, "opening a channel") from error
        await channel.wait(opened, "opening a channel")
        if sink is not None:
            connection.sinks[channel.number] = sink
        return channel

    @property
    def is_open(self) -> bool:
        """Whether the channel can be used."""
        return self.error is None and bool(self._raw.is_open)

    def write(self, data: bytes) -> None:
        """Send whole frames of this channel.

        Raises:
            NotConnectedError: the channel is closed.
        """
        if self.error is not None:
            raise NotConnectedError("the channel was closed")
        self.connection.write(data)

    async def declare(self, thing: AmqpObject) -> None:
        """Create an exchange, a queue or a binding unless it exists."""
        match thing:
            case AmqpExchange(name, type_, arguments, durable):
                what, method = f"exchange {name}", "exchange_declare"
                given = {"exchange": name, "exchange_type": type_, "durable": durable}
            case AmqpQueue(name, arguments, _, durable):
                what, method = f"queue {name}", "queue_declare"
                given = {"queue": name, "durable": durable}
            case AmqpBinding(queue, exchange, key, arguments):
                what, method = f"binding of {queue} to {exchange}", "queue_bind"
                given = {"queue": queue, "exchange": exchange, "routing_key": key}
        await self._call(what, method, **given, arguments=arguments)

    async def count_ready(self, queue: str) -> int:
        """Return how many messages of a queue are ready. See ``count``."""
        return (await self.count(queue))[0]

    async def count(self, queue: str) -> tuple[int, int]:
        """Return how many messages of a queue are ready, and how many consumers it has.

        Raises:
            QueueNotFoundError: there is no such queue.
        """
        reply = await self._call(f"queue {queue}", "queue_declare", queue, passive=True)
        return int(reply.message_count), int(reply.consumer_count)

    async def confirm(self) -> None:
        """Have the broker confirm every message published here. The confirms go to the sink."""
        await self._call("confirms", "confirm_delivery", _ignore)

    async def consume(self, queue: str, prefetch: int) -> str:
        """Start a consumer with a prefetch of its own and return its tag.

        Its messages go to the sink.
        """
        await self._call("prefetch", "basic_qos", prefetch_count=min(prefetch, 65535))
        reply = await self._call(f"consuming {queue}", "basic_consume", queue, _ignore)
        return str(reply.consumer_tag)

    async def consume_replies(self, queue: str) -> None:
        """Receive replies, which are not acknowledged. They go to the sink."""
        await self._call(f"consuming {queue}", "basic_consume", queue, _ignore, auto_ack=True)

    async def cancel(self, consumer: str) -> None:
        """End a consumer."""
        await self._call("cancelling a consumer", "basic_cancel", consumer)

    async def delete_queue(self, queue: str) -> None:
        """Delete a queue with its bindings and messages. Idempotent."""
        await self._call(f"deleting {queue}", "queue_delete", queue)

    async def unbind(self, binding: AmqpBinding) -> None:
        """Remove a binding. Idempotent."""
        what = f"binding of {binding.queue} to {binding.exchange}"
        await self._call(what, "queue_unbind", binding.queue, binding.exchange, binding.key)

    async def purge(self, queue: str) -> int:
        """Delete the messages that are ready; return how many there were."""
        reply = await self._call(f"purging {queue}", "queue_purge", queue)
        return int(reply.message_count)

    async def close(self) -> None:
        """Close the channel; what is unacknowledged goes back to its queue. Idempotent."""
        if not self.is_open:
            return
        self._raw.close()
        try:
            async with asyncio.timeout(_CLOSE_TIMEOUT):
                await self._gone.wait()
        except builtins.TimeoutError:
            log.warning("a channel did not close in time")
            self._closed(None, pika_errors.ChannelClosedByClient(0, "closed"))

    def close_soon(self) -> None:
        """Close the channel without waiting for the broker's answer. Idempotent."""
        if self.is_open:
            self.on_closed = lambda _: None
            self._raw.close()

    async def wait(self, answer: asyncio.Future[Any], what: str) -> Any:
        """Wait for an answer of the broker.

        Raises:
            TransportError: the channel was closed; ``TimeoutError``: there was no answer.
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

    def _cancelled(self, _: object) -> None:
        self.on_cancel()

    def _connection_lost(self, lost: asyncio.Future[BaseException]) -> None:
        self._closed(None, lost.result())

    def _closed(self, _: object, reason: BaseException) -> None:
        if self.error is not None:
            return
        self.error = reason
        self._gone.set()
        self.connection.sinks.pop(self.number, None)
        self.connection.lost.remove_done_callback(self._connection_lost)
        for waiting in list(self._waiting):
            if not waiting.done():
                waiting.set_exception(reason)
        self.on_closed(reason)


def _ignore(*_: object) -> None:
    """A callback for what the sink handles."""
