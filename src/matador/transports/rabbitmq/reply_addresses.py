"""Asks about the addresses of callers before the first reply goes to them.

RabbitMQ ends a whole connection for a direct reply-to address that it cannot resolve: a forged one,
or one of a node that has left the cluster. Whoever writes requests could thus have the server lose
what it is handling, again and again. So an address is declared passively first, as RabbitMQ
recommends for finding out whether a caller is still there, on a connection that nobody misses.

A reply must not fail because nobody could be asked: then it is sent all the same.
"""

from __future__ import annotations

import asyncio
import builtins
import logging
from collections import OrderedDict
from collections.abc import Iterable

from pika.exceptions import ConnectionClosedByBroker

from matador.errors import MatadorError, QueueNotFoundError
from matador.model.text import SHORT_TEXT, storable_text
from matador.transports.rabbitmq.connection import AmqpChannel, AmqpConnection
from matador.transports.rabbitmq.publisher import DIRECT_REPLY
from matador.transports.rabbitmq.session import AmqpSession

log = logging.getLogger("matador.rabbitmq")

CALLER = f"{DIRECT_REPLY}."
"""How the address of a caller begins, as others see it."""

_INTERNAL_ERROR = 541
_MOST = 10_000
_UNTIL_CLOSED = 1.0  # seconds between the end of a channel and that of its connection
_LONGEST_LOOK_UP = 3.0  # seconds, in which replies to new callers wait
_LEFT_ALONE = 10.0  # seconds without look-ups after one that could not be made


class ReplyAddresses:
    """What is known of the addresses of callers, for one session at a time."""

    def __init__(self) -> None:
        self._session: AmqpSession | None = None
        self._connection: AmqpConnection | None = None
        self._harmful: OrderedDict[str, bool] = OrderedDict()
        self._asking = asyncio.Lock()
        self._ask_again_at = 0.0

    def unknown(self, session: AmqpSession, addresses: Iterable[str]) -> set[str]:
        """Those of these addresses that must be looked up. The others were used just now."""
        if session is not self._session:  # a lost connection may have been an address's fault
            self._session = session
            self._harmful.clear()
        unknown: set[str] = set()
        for address in addresses:
            if address in self._harmful:
                self._harmful.move_to_end(address)
            else:
                unknown.add(address)
        return unknown

    async def look_up(self, session: AmqpSession, addresses: Iterable[str]) -> None:
        """Ask about addresses that are not known yet. Never raises."""
        loop = asyncio.get_running_loop()
        for address in addresses:
            async with self._asking:
                if address in self._harmful or loop.time() < self._ask_again_at:
                    continue
                try:
                    async with asyncio.timeout(_LONGEST_LOOK_UP):
                        await self._ask(session, address)
                except (MatadorError, builtins.TimeoutError) as error:
                    self._ask_again_at = loop.time() + _LEFT_ALONE
                    self._drop()
                    log.warning(
                        "could not ask about the address of a caller, so replies are sent "
                        "unchecked for %.0f s: %s",
                        _LEFT_ALONE,
                        str(error) or f"no answer in {_LONGEST_LOOK_UP:g} s",
                    )

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

    def _drop(self) -> None:
        """Forget a connection that does not answer."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.cut()

    async def _ask(self, session: AmqpSession, address: str) -> None:
        """Note what is known of an address afterwards.

        Raises:
            MatadorError: nobody could be asked.
        """
        connection = await self._connect(session)
        try:
            channel = await AmqpChannel.open(connection)
            await channel.count_ready(address)
            await channel.close()
        except QueueNotFoundError:
            pass  # the caller is gone, and RabbitMQ drops the reply
        except MatadorError as error:
            if await _was_ended(connection):
                self._note(address, harmful=True)
            elif connection.lost.done():
                log.debug("could not ask about the address of a caller: %s", error)
            else:
                raise
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
