"""Replies: one list per calling process, which lives as long as the process.

A key beside the list shows that the process is alive. Both expire, so a killed process leaves
nothing behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from uuid import uuid4

from matador.errors import TransportError
from matador.model.message import Message
from matador.transports.kit.backoff import Backoff
from matador.transports.kit.replies import MOST_REPLIES, REPLY_PREFIX, ReplySubscription
from matador.transports.redis.client import RedisClient, script
from matador.transports.redis.send import Outcomes, check_size, cut, note
from matador.transports.redis.wire import content_of, delivery_of, message_of
from matador.transports.redis_client.connection import Argument, PipelinedConnection, forget
from matador.transports.redis_client.errors import UNWRITABLE, unstorable

log = logging.getLogger("matador.transports.redis")

_KEPT = 60_000  # milliseconds
_MOST = 500  # replies in one call


class RedisReplies:
    """The reply address of one transport, and the replies that arrive there."""

    def __init__(self, client: RedisClient, key_of: Callable[[str], str], block: float) -> None:
        self._client = client
        self._key_of = key_of
        self._block = block
        self.address: str | None = None
        self._subscription: ReplySubscription | None = None
        self._reading: asyncio.Task[None] | None = None

    async def open(self) -> str:
        """The address, made on first use."""
        if self.address is None:
            address = f"{REPLY_PREFIX}{uuid4()}"
            await self._note(await self._client.connection(), address)
            self.address = address
        return self.address

    async def keep(self, connection: PipelinedConnection) -> None:
        """Extend the lifetime of the reply address."""
        if self.address is not None:
            await self._note(connection, self.address)

    async def _note(self, connection: PipelinedConnection, address: str) -> None:
        try:
            await connection.call("SET", f"{self._key_of(address)}:used", "1", "PX", _KEPT)
        except Exception as error:
            raise self._client.translated(connection, error) from error

    async def subscribe(self) -> ReplySubscription:
        address = await self.open()
        if self._subscription is None or not self._subscription.active:
            self._subscription = ReplySubscription(address, lambda _: None)
        if self._reading is None:
            self._reading = asyncio.create_task(self._read(address), name="matador-redis-replies")
        return self._subscription

    async def close(self) -> None:
        """Drop the address and all replies that arrive for it from now on."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)
            self._reading = None
        if self._subscription is not None:
            await self._subscription.close()
        address, self.address = self.address, None
        if address is not None:
            key = self._key_of(address)
            with contextlib.suppress(TransportError):  # then it expires
                await self._client.call("UNLINK", f"{key}:used", f"{key}:replies")

    async def _read(self, address: str) -> None:
        """Hand out replies, read over a separate connection. Reconnects after each failure."""
        backoff = Backoff(0.05, 1.0)
        while True:
            connection: PipelinedConnection | None = None
            try:
                await self._client.wait_connected()
                connection = await self._client.open()
                await self._read_from(connection, address, backoff)
            except TransportError as error:
                log.debug("reading replies: %s", error)
            except Exception:
                log.warning("replies cannot be read; retrying", exc_info=True)
            finally:
                if connection is not None:
                    await connection.close()
            await backoff.sleep()

    async def _read_from(
        self, connection: PipelinedConnection, address: str, backoff: Backoff
    ) -> None:
        key = f"{self._key_of(address)}:replies"

        def ask(*command: Argument, patience: float = 0.0) -> asyncio.Future[list[bytes] | None]:
            asked = connection.call(*command, patience=patience)
            asked.add_done_callback(forget)  # its caller may have stopped waiting
            return asked

        def wait() -> asyncio.Future[list[bytes] | None]:
            return ask("BLPOP", key, str(self._block), patience=self._block)

        try:
            waiting = wait()
            while True:
                found = await waiting
                backoff.reset()
                # Fetch replies behind the first one together with the next read.
                rest = ask("LPOP", key, _MOST) if found else None
                waiting = wait()
                if found:
                    self._arrived(address, found[1:])
                if rest is not None:
                    self._arrived(address, await rest or ())
        except Exception as error:
            raise self._client.translated(connection, error) from error

    def _arrived(self, address: str, contents: Sequence[bytes]) -> None:
        subscription = self._subscription
        if subscription is not None and subscription.active:
            for content in contents:
                subscription.put(delivery_of(message_of(address, content), None, 1))

    # -- sending -----------------------------------------------------------------------------------

    async def send(self, messages: Sequence[Message]) -> Outcomes:
        """Store replies to requests of other processes; replies to ended processes are dropped."""
        connection = await self._client.connection()
        outcomes: Outcomes = [None] * len(messages)
        addresses: dict[str, list[int]] = {}
        for place, message in enumerate(messages):
            addresses.setdefault(message.queue, []).append(place)
        for address, places in addresses.items():
            for some in cut(places, messages, _MOST):
                await self._send(connection, address, messages, some, outcomes)
        return outcomes

    async def _send(
        self,
        connection: PipelinedConnection,
        address: str,
        messages: Sequence[Message],
        places: Sequence[int],
        outcomes: Outcomes,
    ) -> None:
        arguments: list[Argument] = [_KEPT, MOST_REPLIES]
        sent: list[int] = []
        for place in places:
            try:
                check_size(messages[place])
                arguments.append(content_of(messages[place]))
                sent.append(place)
            except UNWRITABLE as error:
                outcomes[place] = unstorable("a reply", error)
        if sent:
            try:
                keys = [self._key_of(address)]
                await self._client.run_on(connection, script("reply", None), keys, arguments)
            except TransportError as error:
                note(outcomes, sent, error)


def is_reply(message: Message) -> bool:
    """Whether a message goes to a reply address."""
    return message.queue.startswith(REPLY_PREFIX)
