"""Asks about the addresses of callers before the first reply goes to them.

RabbitMQ ends a whole connection for a direct reply-to address that it cannot resolve: a forged one,
or one of a node that has left the cluster. Whoever writes requests could thus have the server lose
what it is handling, again and again. So an address is declared passively first, as RabbitMQ
recommends for finding out whether a caller is still there, on a connection that nobody misses.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Iterable

from pika.exceptions import ConnectionClosedByBroker

from matador.errors import MatadorError, QueueNotFoundError
from matador.model.text import SHORT_TEXT, storable_text
from matador.transports.rabbitmq.channel import AmqpChannel
from matador.transports.rabbitmq.connection import AmqpConnection
from matador.transports.rabbitmq.publisher import DIRECT_REPLY
from matador.transports.rabbitmq.session import AmqpSession

log = logging.getLogger("matador.rabbitmq")

CALLER = f"{DIRECT_REPLY}."
"""How the address of a caller begins, as others see it."""

_INTERNAL_ERROR = 541
_MOST = 10_000
_UNTIL_CLOSED = 1.0  # seconds between the end of a channel and that of its connection


class ReplyAddresses:
    """What is known of the addresses of callers, for one session at a time."""

    def __init__(self) -> None:
        self._session: AmqpSession | None = None
        self._connection: AmqpConnection | None = None
        self._harmful: OrderedDict[str, bool] = OrderedDict()
        self._asking = asyncio.Lock()

    async def look_up(self, session: AmqpSession, addresses: Iterable[str]) -> None:
        """Ask about those of these addresses that are not known yet. Never raises."""
        if session is not self._session:  # a lost connection may have been an address's fault
            self._session = session
            self._harmful.clear()
        for address in addresses:
            if address not in self._harmful:
                async with self._asking:
                    await self._ask(session, address)

    def check(self, queue: str) -> None:
        """Raise if a message to this queue would end the connection.

        Raises:
            QueueNotFoundError: RabbitMQ cannot resolve the address.
        """
        if self._harmful.get(queue):
            raise QueueNotFoundError(
                f"RabbitMQ cannot resolve the address {storable_text(queue, SHORT_TEXT)!r}: it is "
                f"forged, or its caller was connected to a node that has left the cluster"
            )

    async def close(self) -> None:
        """Close the connection, if there is one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.disconnect()

    async def _ask(self, session: AmqpSession, address: str) -> None:
        if address in self._harmful:
            return
        connection: AmqpConnection | None = None
        try:
            connection = await self._connect(session)
            channel = await AmqpChannel.open(connection)
            await channel.count_ready(address)
            await channel.close()
        except QueueNotFoundError:
            pass  # the caller is gone, and RabbitMQ drops the reply
        except MatadorError as error:
            if connection is None or not await _was_ended(connection):
                log.debug("could not ask about the address of a caller: %s", error)
                return  # it is not known, and asked about again
            self._note(address, harmful=True)
            return
        self._note(address, harmful=False)

    def _note(self, address: str, *, harmful: bool) -> None:
        self._harmful[address] = harmful
        if len(self._harmful) > _MOST:
            self._harmful.popitem(last=False)

    async def _connect(self, session: AmqpSession) -> AmqpConnection:
        known, at = self._connection, session.consuming
        if known is not None and known.is_open and (known.host, known.port) == (at.host, at.port):
            return known
        await self.close()
        opened = await AmqpConnection.open(session.address, at.host, at.port, "reply addresses")
        self._connection = opened
        return opened


async def _was_ended(connection: AmqpConnection) -> bool:
    """Whether the broker has ended the connection because of what was asked."""
    await asyncio.wait([connection.lost], timeout=_UNTIL_CLOSED)
    if not connection.lost.done():
        return False
    reason = connection.lost.result()
    return isinstance(reason, ConnectionClosedByBroker) and reason.reply_code == _INTERNAL_ERROR
