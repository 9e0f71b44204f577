"""The edge to pika: connections with a fast way in, channels with calls that can be awaited.

The rest of this package knows neither pika's objects nor its callbacks.
"""

from __future__ import annotations

import asyncio
import builtins
import logging
import ssl
from collections.abc import Callable
from typing import Any, cast

import pika
from pika import exceptions as pika_errors

from matador.errors import MatadorError, NotConnectedError, TimeoutError
from matador.transports.rabbitmq.errors import connection_failed, translate
from matador.transports.rabbitmq.fast import FastConnection, Sink
from matador.transports.rabbitmq.plan import Arguments, Binding, Exchange, Queue
from matador.transports.rabbitmq.url import Address

log = logging.getLogger("matador.rabbitmq")

_CALL_TIMEOUT = 20.0
_CLOSE_TIMEOUT = 3.0


class Connection:
    """One AMQP connection. ``lost`` is done, with the reason, when it is closed by anybody."""

    def __init__(
        self, raw: FastConnection, lost: asyncio.Future[BaseException], host: str, port: int
    ) -> None:
        self._raw = raw
        self.lost = lost
        self.host = host
        self.port = port
        self.blocked: str | None = None
        self.on_blocked: Callable[[], None] = lambda: None
        raw.add_on_connection_blocked_callback(self._blocked)
        raw.add_on_connection_unblocked_callback(self._unblocked)

    @classmethod
    async def open(cls, address: Address, host: str, port: int, role: str) -> Connection:
        """Connect to one host.

        Raises:
            ConnectionFailedError: it cannot be reached, or refuses.
        """
        loop = asyncio.get_running_loop()
        opened: asyncio.Future[None] = loop.create_future()
        lost: asyncio.Future[BaseException] = loop.create_future()
        where = f"{host}:{port}"

        def on_open(_: object) -> None:
            if not opened.done():
                opened.set_result(None)

        def on_error(_: object, error: BaseException | str) -> None:
            if not opened.done():
                reason = error if isinstance(error, BaseException) else OSError(error)
                opened.set_exception(connection_failed(reason, where))

        def on_close(_: object, error: BaseException) -> None:
            if not lost.done():
                lost.set_result(error)

        try:
            parameters = _parameters(address, host, port, role)
            raw = FastConnection(parameters, on_open, on_error, on_close, custom_ioloop=loop)
        except (OSError, ssl.SSLError) as error:  # a file of TLS that is not there
            raise connection_failed(error, where) from error
        try:
            async with asyncio.timeout(2 * address.connect_timeout):
                await opened
        except builtins.TimeoutError as error:
            _abort(raw)
            raise connection_failed(OSError("no answer in time"), where) from error
        except BaseException:
            _abort(raw)
            raise
        raw.speed_up()
        return cls(raw, lost, host, port)

    @property
    def is_open(self) -> bool:
        """Can it be used?"""
        return bool(self._raw.is_open) and not self.lost.done()

    @property
    def frame_max(self) -> int:
        """Bytes of the largest frame, as agreed with the server."""
        return int(self._raw.params.frame_max)

    @property
    def server_version(self) -> str:
        """The server's own version."""
        return str(cast("dict[str, Any]", self._raw.server_properties or {}).get("version", "?"))

    def write(self, data: bytes) -> None:
        """Send whole frames.

        Raises:
            NotConnectedError: the connection is not open.
        """
        if not self.is_open:
            raise NotConnectedError("the connection was lost")
        self._raw.write(data)

    async def channel(self, sink: Sink | None = None) -> Channel:
        """A new channel; ``sink`` gets its frames first.

        Raises:
            TransportError: the connection is not open, or has no channel left.
        """
        opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def on_open(_: object) -> None:
            if not opened.done():
                opened.set_result(None)

        try:
            raw = self._raw.channel(on_open_callback=on_open)
            made = Channel(self, raw, self._raw.sinks)
            await made.wait(opened, "opening a channel")
        except pika_errors.AMQPError as error:
            raise translate(error, "opening a channel") from error
        if sink is not None:
            self._raw.sinks[made.number] = sink
        return made

    async def close(self) -> None:
        """Close it in order, or cut it if the server does not answer. Idempotent."""
        if self._raw.is_open:
            self._raw.close()
        if not self.lost.done():
            try:
                async with asyncio.timeout(_CLOSE_TIMEOUT):
                    await asyncio.shield(self.lost)
            except builtins.TimeoutError:
                _abort(self._raw)
                await asyncio.wait([self.lost], timeout=1.0)  # the socket is closed then

    def _blocked(self, _: object, method: Any) -> None:
        self.blocked = str(method.method.reason) or "no reason given"
        log.warning("RabbitMQ blocks publishers: %s", self.blocked)
        self.on_blocked()

    def _unblocked(self, _: object, __: object) -> None:
        self.blocked = None
        log.info("RabbitMQ accepts messages again")
        self.on_blocked()


class Channel:
    """A channel whose calls are awaited. Closed by the broker at the first mistake.

    ``on_closed`` is called once, with the reason, when it is closed by anybody; ``on_cancel`` when
    the broker cancels a consumer; ``on_return`` for messages that no queue takes.
    """

    def __init__(self, connection: Connection, raw: Any, sinks: dict[int, Sink]) -> None:
        self.connection = connection
        self.number = int(raw.channel_number)
        self.error: BaseException | None = None
        self.on_closed: Callable[[BaseException], None] = lambda _: None
        self.on_cancel: Callable[[], None] = lambda: None
        self.on_return: Callable[[str, str, str], None] = _nobody
        self._raw: Any = raw  # pika's types are too loose to be of use
        self._sinks = sinks
        self._waiting: set[asyncio.Future[Any]] = set()
        raw.add_on_close_callback(self._closed)
        raw.add_on_cancel_callback(self._cancelled)
        raw.add_on_return_callback(self._returned)
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

    async def declare_queue(self, queue: Queue, *, passive: bool = False) -> tuple[int, int]:
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

    async def declare_exchange(self, exchange: Exchange) -> None:
        """Make an exchange."""
        await self._call(
            lambda done: self._raw.exchange_declare(
                exchange.name,
                exchange.type,
                durable=True,
                arguments=exchange.arguments,
                callback=done,
            ),
            f"exchange {exchange.name}",
        )

    async def bind(self, binding: Binding) -> None:
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

    def declare_unheard(self, thing: Exchange | Queue | Binding) -> None:
        """Make something without waiting for an answer; a mistake closes the channel."""
        arguments = thing.arguments
        match thing:
            case Exchange():
                self._raw.exchange_declare(
                    thing.name, thing.type, durable=True, arguments=arguments
                )
            case Queue():
                self._raw.queue_declare(thing.name, durable=True, arguments=arguments)
            case Binding():
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

    def _returned(self, _: object, method: Any, properties: Any, __: bytes) -> None:
        self.on_return(
            str(method.routing_key), str(properties.message_id or ""), str(method.reply_text)
        )


def _nobody(*_: object) -> None:
    """For callbacks that nobody needs."""


def _parameters(address: Address, host: str, port: int, role: str) -> pika.ConnectionParameters:
    tls = None
    if address.tls is not None:
        context = ssl.create_default_context(cafile=address.tls.cafile)
        if not address.tls.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if address.tls.certfile is not None:
            context.load_cert_chain(address.tls.certfile, address.tls.keyfile)
        tls = pika.SSLOptions(context, address.tls.server_name or host)
    return pika.ConnectionParameters(
        host=host,
        port=port,
        virtual_host=address.vhost,
        credentials=pika.PlainCredentials(address.user, address.password),
        heartbeat=round(address.heartbeat),
        socket_timeout=address.connect_timeout,
        stack_timeout=2 * address.connect_timeout,
        ssl_options=tls,
        client_properties={"product": "Matador", "connection_name": f"matador {role}"},
    )


def _abort(raw: FastConnection) -> None:
    """Cut a connection that does not react."""
    if raw.is_closed:
        return
    try:
        if getattr(raw, "_transport", None) is None:
            raw.close()  # while it is being made: ends the attempt
        else:
            raw.cut()
    except pika_errors.AMQPError:
        log.debug("the connection was closed already")
