"""The two connections of a transport: one to publish, one to consume and for everything else.

The broker blocks connections that publish when it runs out of memory or disk; acknowledgements
must go on then, as they are what frees it.
"""

from __future__ import annotations

import asyncio
import logging

from matador.errors import ConnectionFailedError
from matador.transports.rabbitmq.channel import AmqpChannel
from matador.transports.rabbitmq.connection import AmqpConnection
from matador.transports.rabbitmq.errors import translate
from matador.transports.rabbitmq.management import Management
from matador.transports.rabbitmq.options import RabbitMQAddress
from matador.transports.rabbitmq.publisher import AmqpPublisher

log = logging.getLogger("matador.rabbitmq")


class AmqpSession:
    """Both connections, alive together or not at all."""

    def __init__(
        self, address: RabbitMQAddress, publishing: AmqpConnection, consuming: AmqpConnection
    ) -> None:
        self.address = address
        self.publishing = publishing
        self.consuming = consuming
        self.management = Management(address, consuming.host, consuming.port)
        self._closing: asyncio.Task[None] | None = None
        self.publisher = AmqpPublisher(
            publishing, window=address.window, timeout=address.send_timeout
        )

    @classmethod
    async def open(cls, address: RabbitMQAddress) -> AmqpSession:
        """Connect to the first host that answers.

        Raises:
            ConnectionFailedError: none does; every reason is named.
        """
        failures: list[ConnectionFailedError] = []
        for host, port in address.hosts:
            try:
                return await cls._open_at(address, host, port)
            except ConnectionFailedError as error:
                failures.append(error)
        if len(failures) == 1:
            raise failures[0]
        raise ConnectionFailedError("; ".join(map(str, failures))) from failures[-1]

    @classmethod
    async def _open_at(cls, address: RabbitMQAddress, host: str, port: int) -> AmqpSession:
        publishing = await AmqpConnection.open(address, host, port, "publishing")
        try:
            consuming = await AmqpConnection.open(address, host, port, "consuming")
        except BaseException:
            await publishing.close()
            raise
        session = cls(address, publishing, consuming)
        try:
            await session.publisher.open()
        except BaseException:
            await session.close()
            raise
        return session

    async def wait_lost(self) -> BaseException | None:
        """Wait until one of the connections is lost; the other is being closed then."""
        either = [self.publishing.lost, self.consuming.lost]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        reason = next(one.result() for one in either if one.done())
        log.warning("the connection to %s was lost: %s", self.address, reason)
        # In the background: the other one may be just as dead, and the state is to be known now.
        self._closing = asyncio.create_task(self.close())
        return translate(reason, str(self.address))

    @property
    def is_closed(self) -> bool:
        """Are both connections gone?"""
        return self.publishing.lost.done() and self.consuming.lost.done()

    async def channel(self) -> AmqpChannel:
        """A channel for questions: it may be closed by a wrong one, and nothing else is."""
        return await self.consuming.channel()

    async def close(self) -> None:
        """Close both. Idempotent."""
        await asyncio.gather(self.publishing.close(), self.consuming.close())
