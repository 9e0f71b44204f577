"""Sends messages: creates what a delay needs, checks callers, creates again what was deleted.

RabbitMQ ends a whole connection for a direct reply-to address that it cannot resolve: a forged one,
or one of a node that has left the cluster. A client could thus have the server lose all requests
that it is handling, again and again. So each address is declared passively first, as RabbitMQ
recommends for finding out whether a caller is still there, on a connection for nothing else.

A reply must not fail because its address could not be checked: it is sent all the same.
"""

from __future__ import annotations

import asyncio
import builtins
import logging
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial

from pika.exceptions import ConnectionClosedByBroker

from matador.errors import MatadorError, QueueNotFoundError, SendRefusedError
from matador.model.message import Message
from matador.model.text import SHORT_TEXT, storable_text
from matador.transports.rabbitmq.connection import AmqpChannel, AmqpConnection
from matador.transports.rabbitmq.declare import AppliedTopologies
from matador.transports.rabbitmq.outgoing import OutgoingMessages
from matador.transports.rabbitmq.publisher import DIRECT_REPLY, Publication, UnroutableError
from matador.transports.rabbitmq.session import AmqpSession

log = logging.getLogger("matador.rabbitmq")

_CALLER = f"{DIRECT_REPLY}."
"""How the address of a caller begins in the requests that a server gets."""

_CREATE_AGAIN_AFTER = 1.0  # seconds after an attempt that did not bring a queue back
_INTERNAL_ERROR = 541
_MOST_CALLERS = 10_000
_UNTIL_CLOSED = 1.0  # seconds between the end of a channel and that of its connection
_LONGEST_LOOK_UP = 3.0  # seconds, in which replies to new callers wait
_LOOK_UP_AGAIN_AFTER = 10.0  # seconds after a look-up that got no answer


class Sender:
    """Sends the messages of one transport, and publishes what its settlements store."""

    def __init__(self, outgoing: OutgoingMessages, topologies: AppliedTopologies) -> None:
        self._outgoing = outgoing
        self._topologies = topologies
        self._callers = ReplyAddresses()
        self._still_missing: dict[str, float] = {}  # when: although its topology was declared

    async def send(
        self, session: AmqpSession, messages: Sequence[Message]
    ) -> Sequence[MatadorError | None]:
        """Send messages; return the outcome of each.

        Raises:
            NotConnectedError: the connection is lost.
        """
        delayed = [message for message in messages if message.delay > 0]
        if delayed:
            await self._outgoing.create_hops(session, delayed)
        callers = [one.queue for one in messages if one.queue.startswith(_CALLER)]
        if not callers:
            return await self._send(session, self._outgoing.publication, messages, delayed)
        unknown = self._callers.unknown(session, callers)
        if not unknown:
            return await self._send(session, self._reply, messages, delayed)
        # Other messages do not wait while unknown callers are looked up. The order for each queue
        # stays.
        parts: list[list[int]] = [[], []]
        for place, message in enumerate(messages):
            parts[message.queue in unknown].append(place)
        outcomes: list[MatadorError | None] = [None] * len(messages)
        for places in parts:
            if places is parts[1]:
                await self._callers.look_up(session, unknown)
            part = [messages[place] for place in places]
            for place, outcome in zip(
                places, await self._send(session, self._reply, part, delayed), strict=True
            ):
                outcomes[place] = outcome
        return outcomes

    async def send_routed(
        self, session: AmqpSession, exchange: str, messages: Sequence[Message]
    ) -> Sequence[MatadorError | None]:
        """Send messages to the queues whose bindings match; return the outcome of each."""
        return await self._send(session, partial(self._outgoing.routed, exchange), messages)

    def _reply(self, message: Message) -> Publication:
        self._callers.check(message.queue)
        return self._outgoing.publication(message)

    async def _send(
        self,
        session: AmqpSession,
        make: Callable[[Message], Publication],
        messages: Sequence[Message],
        delayed: Sequence[Message] = (),
    ) -> Sequence[MatadorError | None]:
        publications: list[Publication] = []
        problems: dict[int, MatadorError] = {}
        for place, message in enumerate(messages):
            try:
                publications.append(make(message))
            except MatadorError as error:
                problems[place] = error
        outcomes = await self.publish(session, publications, delayed)
        if not problems:
            return outcomes
        rest = iter(outcomes)
        return [
            problems[place] if place in problems else next(rest) for place in range(len(messages))
        ]

    async def publish(
        self,
        session: AmqpSession,
        publications: Sequence[Publication],
        delayed: Sequence[Message] = (),
    ) -> list[MatadorError | None]:
        """Publish; create what was deleted once more, if a topology has it. Never raises.

        ``delayed``: the messages among them whose hops may have to be created again.
        """
        loop = asyncio.get_running_loop()
        started = loop.time()
        outcomes = await session.publisher.publish(publications)
        if not any(outcomes):
            return outcomes
        gone = [
            place
            for place, one in enumerate(outcomes)
            if isinstance(one, QueueNotFoundError) and not isinstance(one, UnroutableError)
        ]
        targets = {publications[place].target for place in gone}
        if targets and await self._create_again(session, targets, delayed, started):
            again = await session.publisher.publish([publications[place] for place in gone])
            for place, error in zip(gone, again, strict=True):
                outcomes[place] = error
                if isinstance(error, QueueNotFoundError):
                    self._still_missing[publications[place].target] = loop.time()
        full = [
            place
            for place, one in enumerate(outcomes)
            if isinstance(one, SendRefusedError) and one.queue and publications[place].released
        ]
        if full:
            await self._publish_later(session, publications, outcomes, full)
        return outcomes

    async def _publish_later(
        self,
        session: AmqpSession,
        publications: Sequence[Publication],
        outcomes: list[MatadorError | None],
        full: Sequence[int],
    ) -> None:
        """Delay copies that their full queues refused, so that they arrive when there is room.

        Returned to their places instead, they would count as deliveries of a worker that died.
        """
        delayed: dict[int, Publication] = {}
        for place in full:
            try:
                delayed[place] = await self._outgoing.later(session, publications[place])
            except MatadorError as error:
                log.debug("%s cannot be delayed: %s", publications[place].key, error)
        again = await session.publisher.publish(list(delayed.values()))
        for place, error in zip(delayed, again, strict=True):
            outcomes[place] = error

    async def _create_again(
        self,
        session: AmqpSession,
        names: Collection[str],
        delayed: Sequence[Message],
        since: float,
    ) -> bool:
        """Create what is missing unless that was done after ``since``; False if nothing was."""
        latest = asyncio.get_running_loop().time() - _CREATE_AGAIN_AFTER
        names = [one for one in names if self._still_missing.get(one, latest - 1) < latest]
        try:
            if not await self._topologies.create_again(session, names, since):
                return False
            await self._outgoing.create_hops(session, delayed)
        except MatadorError as error:
            log.warning("what was deleted could not be created again: %s", error)
            return False
        return True

    async def close(self) -> None:
        """Close the connection on which callers are looked up."""
        await self._callers.close()


class ReplyAddresses:
    """Finds out which addresses of callers are harmful, for one session at a time."""

    def __init__(self) -> None:
        self._session: AmqpSession | None = None
        self._connection: AmqpConnection | None = None
        self._harmful: OrderedDict[str, bool] = OrderedDict()
        self._asking = asyncio.Lock()
        self._look_up_again_at = 0.0

    def unknown(self, session: AmqpSession, addresses: Iterable[str]) -> set[str]:
        """Return the addresses that must be looked up, and mark the others as used."""
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
        """Look up addresses that are not known yet. Never raises."""
        loop = asyncio.get_running_loop()
        for address in addresses:
            async with self._asking:
                if address in self._harmful or loop.time() < self._look_up_again_at:
                    continue
                try:
                    async with asyncio.timeout(_LONGEST_LOOK_UP):
                        await self._ask(session, address)
                except (MatadorError, builtins.TimeoutError) as error:
                    self._look_up_again_at = loop.time() + _LOOK_UP_AGAIN_AFTER
                    self._drop()
                    log.warning(
                        "could not look up the address of a caller, so replies are sent "
                        "unchecked for %.0f s: %s",
                        _LOOK_UP_AGAIN_AFTER,
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
        """Look up one address and note whether it is harmful.

        Raises:
            MatadorError: the broker did not answer.
        """
        connection = await self._connect(session)
        try:
            channel = await AmqpChannel.open(connection)
            await channel.count_ready(address)
            await channel.close()
        except QueueNotFoundError:
            pass  # the caller has disconnected, and RabbitMQ drops the reply
        except MatadorError as error:
            if await _was_closed_for_it(connection):
                self._note(address, harmful=True)
            elif connection.lost.done():
                log.debug("could not look up the address of a caller: %s", error)
            else:
                raise
            return
        self._note(address, harmful=False)

    def _note(self, address: str, *, harmful: bool) -> None:
        self._harmful[address] = harmful
        if len(self._harmful) > _MOST_CALLERS:
            self._harmful.popitem(last=False)

    async def _connect(self, session: AmqpSession) -> AmqpConnection:
        known, at = self._connection, session.consuming
        if known is not None and known.is_open and (known.host, known.port) == (at.host, at.port):
            return known
        await self.close()
        opened = await AmqpConnection.open(session.address, at.host, at.port, "reply addresses")
        self._connection = opened
        return opened


async def _was_closed_for_it(connection: AmqpConnection) -> bool:
    """Whether the broker closed the connection because of the address."""
    await asyncio.wait([connection.lost], timeout=_UNTIL_CLOSED)
    if not connection.lost.done():
        return False
    reason = connection.lost.result()
    return isinstance(reason, ConnectionClosedByBroker) and reason.reply_code == _INTERNAL_ERROR
