"""Receives replies and passes each to the call that waits for it.

A transport has one reply address. Clients that share a transport share its ``ReplyRouter``, which
the transport stores.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict

from matador.errors import UnsupportedError
from matador.model.message import Delivery
from matador.transports.base import Replying, Subscription, Transport
from matador.transports.kit.backoff import Backoff
from matador.transports.kit.replies import ReplySubscription

log = logging.getLogger("matador.rpc")

_AT_ONCE = 1000
_MOST_USED = 10_000
_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 1.0


class Waiting:
    """A call that waits for its reply."""

    __slots__ = ("reply", "sent")

    def __init__(self, reply: asyncio.Future[Delivery]) -> None:
        self.reply = reply
        self.sent = False
        """The broker has confirmed the request."""

    def answered(self, reply: Delivery) -> None:
        """Handle the reply. Raises nothing."""
        if not self.reply.done():
            self.reply.set_result(reply)

    def fail(self, error: BaseException) -> None:
        """Fail the call: there will be no reply."""
        if not self.reply.done():
            self.reply.set_exception(error)


class ReplyRouter:
    """The replies of one transport. Made by ``open``, ended by ``close``."""

    def __init__(self) -> None:
        self.address = ""
        """The reply address: the ``reply_to`` of requests."""
        self.waiting: dict[str, Waiting] = {}
        """The calls that wait, by their correlation ids."""
        self._used: OrderedDict[str, None] = OrderedDict()
        self._users = 0
        self._opening = asyncio.Lock()
        self._subscription: Subscription | None = None
        self._reader: asyncio.Task[None] | None = None

    @classmethod
    async def open(cls, transport: Transport) -> ReplyRouter:
        """Open the replies of this transport for another client.

        Raises:
            UnsupportedError: the transport cannot receive replies.
            TransportError: it is not connected.
        """
        if not isinstance(transport, Replying):
            raise UnsupportedError(
                f"the transport {transport.name!r} cannot receive replies, so it cannot be used "
                f"for calls; use RabbitMQ, Redis, SQLite or memory"
            )
        found: ReplyRouter = transport.shared.setdefault(cls, cls())
        async with found._opening:
            await found._start(transport)
        return found

    async def _start(self, transport: Replying) -> None:
        if self._reader is None or self._reader.done():  # done: its event loop has ended
            self._users = 0
            self.address = await transport.reply_address()
            self._subscription = await transport.replies()
            self._reader = asyncio.create_task(self._read(transport), name="matador-replies")
        self._users += 1

    async def close(self) -> None:
        """Release the replies for one client; the last one closes them."""
        async with self._opening:
            self._users -= 1
            if self._users > 0 or self._reader is None:
                return
            reader, self._reader = self._reader, None
            subscription, self._subscription = self._subscription, None
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)
            if subscription is not None:
                await subscription.close()

    def is_free(self, correlation_id: str) -> bool:
        """Reserve a correlation id; False if a recent request used it.

        A late reply to an earlier request must not be mistaken for a reply to the next.
        """
        if correlation_id in self._used or correlation_id in self.waiting:
            return False
        self._used[correlation_id] = None
        if len(self._used) > _MOST_USED:
            self._used.popitem(last=False)
        return True

    async def _read(self, transport: Replying) -> None:
        pauses = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE)
        while True:
            try:
                subscription = self._subscription
                if subscription is None or not subscription.active:
                    # The owner of the transport has disconnected it, and may connect it again.
                    self.address = await transport.reply_address()
                    subscription = self._subscription = await transport.replies()
                if isinstance(subscription, ReplySubscription):
                    subscription.listen(self._hand_over)
                for reply in await subscription.receive(_AT_ONCE):
                    self._hand_over(reply)
                pauses.reset()
            except Exception as error:  # noqa: BLE001 - keep receiving replies after any error
                log.debug("could not receive replies, trying again: %s", error)
                await asyncio.sleep(pauses.next())

    def _hand_over(self, reply: Delivery) -> None:
        """Pass a reply to its call. Late, duplicate and foreign replies are dropped."""
        properties = reply.properties
        if properties is not None and properties.correlation_id is not None:
            call = self.waiting.pop(properties.correlation_id, None)
            if call is not None:
                call.answered(reply)
