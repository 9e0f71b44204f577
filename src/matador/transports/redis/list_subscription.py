"""A receiver of one queue of lists: moves messages to a list of its own."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence

from matador.errors import TransportError
from matador.model.message import Delivery, Receipt
from matador.transports.redis.contents import element_of, message_of
from matador.transports.redis.link import Link
from matador.transports.redis.scripts import Script, script
from matador.transports.redis.waiting import WaitingSubscription
from matador.transports.redis_client.errors import translate

log = logging.getLogger("matador.transports.redis")


class Held:
    """What one consumer holds of a queue: the messages, as they are on the server."""

    __slots__ = ("base", "consumer", "messages", "queue")

    def __init__(self, queue: str, base: str, consumer: str) -> None:
        self.queue = queue
        self.base = base
        self.consumer = consumer
        self.messages: set[bytes] = set()

    def delivery(self, message: bytes) -> Delivery:
        """Hold a message that has arrived."""
        self.messages.add(message)
        _, deliveries, content = element_of(message)
        found = message_of(self.queue, content)
        number = deliveries + 1
        receipt = Receipt(
            self.queue, (self, message), number, number > 1, found.priority, found.ordering_key
        )
        return Delivery(found.body, found.headers, receipt)


def list_script(name: str) -> Script:
    """A script for lists."""
    return script(f"list_{name}", common="list_common")


class RedisListSubscription(WaitingSubscription):
    """See ``matador.transports.base.Subscription``. Made by ``RedisListTransport.subscribe``."""

    def __init__(
        self,
        link: Link,
        held: Held,
        *,
        lease: float,
        block: float,
        give_back: Callable[[Sequence[Delivery]], Awaitable[None]],
        declare: Callable[[str], Awaitable[None]],
        closed: Callable[[RedisListSubscription], None],
    ) -> None:
        super().__init__(link, held.queue, block=block, give_back=give_back)
        self._held = held
        self._lease = round(lease * 1000)
        self._declare = declare
        self._closed = closed

    async def _fetch_once(self, limit: int) -> list[Delivery]:
        held = self._held
        found = await self._link.run(
            list_script("pop"), [held.base], [held.consumer, self._lease, limit]
        )
        if found is None:
            await self._declare(self._queue)
            return []
        if found:
            return [held.delivery(message) for message in found]
        try:
            message = await self._wait_for(
                *("BLMOVE", f"{held.base}:ready", f"{held.base}:held:{held.consumer}"),
                *("LEFT", "RIGHT", f"{self._block:.3f}"),
            )
        except TransportError:
            raise
        except Exception as error:
            raise translate(error, self._link.where) from error
        return [] if message is None else [held.delivery(message)]

    async def _recover(self) -> None:
        held = self._held
        known = [element_of(message)[0] for message in held.messages]
        given_back = await self._link.run(
            list_script("recover"), [held.base], [held.consumer, *known]
        )
        if given_back:
            log.info("%s: %d messages were lost on the way and are back", self._queue, given_back)

    async def _leave(self) -> None:
        self._closed(self)
