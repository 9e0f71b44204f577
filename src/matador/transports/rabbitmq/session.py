"""The two connections of a transport: one publishes, the other does everything else.

When the broker runs out of memory or disk, it blocks connections that publish. Acknowledgements
must still get through then, because they free its resources.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Self

from matador.errors import ConnectionFailedError
from matador.transports.rabbitmq.connection import AmqpChannel, AmqpConnection
from matador.transports.rabbitmq.errors import translate
from matador.transports.rabbitmq.management import Management
from matador.transports.rabbitmq.options import RabbitMQAddress
from matador.transports.rabbitmq.publisher import AmqpPublisher

log = logging.getLogger("matador.rabbitmq")


class AmqpSession:
    """Both connections; if one is lost, the other is closed."""

    def __init__(
        self, address: RabbitMQAddress, publishing: AmqpConnection, consuming: AmqpConnection
    ) -> None:
        self.address = address
        self.publishing = publishing
        self.consuming = consuming
        self.management = Management(address, consuming.host, consuming.port)
        self.publisher = AmqpPublisher(
            publishing, window=address.window, timeout=address.send_timeout
        )
        self._closing: asyncio.Task[None] | None = None

    @classmethod
    async def open(cls, address: RabbitMQAddress) -> Self:
        """Connect to the first host that answers.

        Raises:
            ConnectionFailedError: none does; the error lists every reason.
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
    async def _open_at(cls, address: RabbitMQAddress, host: str, port: int) -> Self:
        async with AsyncExitStack() as opened:
            publishing = await AmqpConnection.open(address, host, port, "publishing")
            opened.push_async_callback(publishing.disconnect)
            consuming = await AmqpConnection.open(address, host, port, "consuming")
            opened.push_async_callback(consuming.disconnect)
            session = cls(address, publishing, consuming)
            await session.publisher.open()
            opened.pop_all()
        return session

    async def wait_lost(self) -> BaseException | None:
        """Wait until one of the connections is lost, and start to close the other."""
        either = [self.publishing.lost, self.consuming.lost]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        reason = next(one.result() for one in either if one.done())
        log.debug("lost the connection to %s: %s", self.address, reason)
        # In the background: the other one may be dead too, and the state must change now.
        self._closing = asyncio.create_task(self.close())
        return translate(reason, str(self.address))

    @property
    def is_closed(self) -> bool:
        """Whether both connections are closed."""
        return self.publishing.lost.done() and self.consuming.lost.done()

    @asynccontextmanager
    async def channel(self) -> AsyncGenerator[AmqpChannel]:
        """A channel for a few calls. If the broker closes it for one of them, nothing else is."""
        channel = await AmqpChannel.open(self.consuming)
        try:
            yield channel
        finally:
            await channel.close()

    async def close(self) -> None:
        """Close both. Idempotent."""
        await asyncio.gather(self.publishing.disconnect(), self.consuming.disconnect())
