"""``RedisListTransport``: plain lists, each message to one consumer, none lost."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from hashlib import sha1
from typing import Unpack, cast

from matador.errors import TransportError
from matador.model.message import (
    Complete,
    DeadLetter,
    Delivery,
    QueueDepth,
    Receipt,
    Release,
    Retry,
    Settlement,
    TopologyNote,
)
from matador.model.topology import Topology
from matador.transports.kit.errors import lease_lost
from matador.transports.redis.base import STORED, StoredTransport, consumer_name
from matador.transports.redis.blocking import BlockingSubscription
from matador.transports.redis.client import RedisClient, Script, script
from matador.transports.redis.connection import Argument, PipelinedConnection
from matador.transports.redis.options import RedisOptions
from matador.transports.redis.send import Outcomes, list_form
from matador.transports.redis.settle import SettleBatch, is_near
from matador.transports.redis.topology import key_of, unsupported
from matador.transports.redis.upkeep import QueueUpkeep
from matador.transports.redis.wire import (
    content_of,
    element_of,
    letter_of,
    message_of,
    milliseconds,
)
from matador.transports.redis_client.errors import translate

log = logging.getLogger("matador.transports.redis")


class HeldElements:
    """The elements of one queue that a consumer holds, as they are on the server."""

    __slots__ = ("base", "consumer", "elements", "queue")

    def __init__(self, queue: str, base: str, consumer: str) -> None:
        self.queue = queue
        self.base = base
        self.consumer = consumer
        self.elements: set[bytes] = set()

    def delivery(self, element: bytes) -> Delivery:
        """Hold an element that has arrived."""
        self.elements.add(element)
        deliveries, content = element_of(element)
        found = message_of(self.queue, content)
        number = deliveries + 1
        receipt = Receipt(
            self.queue, (self, element), number, number > 1, found.priority, found.ordering_key
        )
        return Delivery(found.body, found.headers, receipt, None, found.properties)


class RedisListSubscription(BlockingSubscription):
    """See ``matador.transports.base.Subscription``. Made by ``RedisListTransport.subscribe``."""

    def __init__(
        self,
        client: RedisClient,
        held: HeldElements,
        *,
        lease: float,
        block: float,
        give_back: Callable[[Sequence[Delivery]], Awaitable[None]],
        declare: Callable[[str], Awaitable[None]],
        closed: Callable[[RedisListSubscription], None],
    ) -> None:
        super().__init__(client, held.queue, block=block, give_back=give_back)
        self._held = held
        self._lease = round(lease * 1000)
        self._declare = declare
        self._closed = closed

    async def _fetch_once(self, limit: int) -> list[Delivery]:
        held = self._held
        found = await self._client.run(
            script("pop", "list"), [held.base], [held.consumer, self._lease, limit]
        )
        if found is None:
            await self._declare(self._queue)
            return []
        if found:
            return [held.delivery(element) for element in found]
        try:
            element = await self._block_on(
                *("BLMOVE", f"{held.base}:ready", f"{held.base}:held:{held.consumer}"),
                *("LEFT", "RIGHT", f"{self._block:.3f}"),
            )
        except TransportError:
            raise
        except Exception as error:
            raise translate(error, self._client.where) from error
        return [] if element is None else [held.delivery(element)]

    async def _release_unseen(self) -> None:
        held = self._held
        seen = [sha1(one, usedforsecurity=False).hexdigest() for one in held.elements]
        released = await self._client.run(
            script("give_back_unseen", "list"), [held.base], [held.consumer, *seen]
        )
        if released:
            log.info("%s: %d messages were lost on the way and released", self._queue, released)

    async def _leave(self) -> None:
        self._closed(self)


class ListSettleBatch(SettleBatch):
    """Settlements of deliveries from lists."""

    @property
    def _script(self) -> Script:
        return script("settle", "list")

    async def settle(self) -> Outcomes:
        """See ``SettleBatch``."""
        near: dict[HeldElements, list[int]] = {}
        for place, settlement in enumerate(self._settlements):
            hold = _hold_of(settlement.receipt)
            if hold is None:
                self._outcomes[place] = lease_lost(settlement.receipt.queue)
                continue
            if isinstance(settlement, Retry) and not is_near(settlement):
                await self._move(place)
            else:
                near.setdefault(hold[0], []).append(place)
        for held, places in near.items():
            # A release puts its message in front: the last one goes first.
            places.sort(key=self._order)
            for some in self._cut(places):
                await self._settle_each(held.base, some)
        return self._outcomes

    def _order(self, place: int) -> int:
        return -place if isinstance(self._settlements[place], Release) else place

    def _written(self, settlement: Settlement, target: int) -> list[Argument]:
        hold = _hold_of(settlement.receipt)
        assert hold is not None
        _, element = hold
        match settlement:
            case Retry(message=message):
                return [element, target, milliseconds(message.delay), content_of(message)]
            case DeadLetter(receipt=receipt):
                content = element_of(element)[1]
                letter = letter_of(settlement, lambda: message_of(receipt.queue, content))
                return [element, target, 0, letter]
            case Complete():
                return [element, -1, 0, ""]
            case Release():
                return [element, 0, 0, ""]

    def _removal(self, receipt: Receipt) -> tuple[str, list[Argument]]:
        hold = _hold_of(receipt)
        assert hold is not None
        return hold[0].base, [hold[1], -1, 0, ""]

    async def _is_held(self, receipt: Receipt) -> bool:
        hold = _hold_of(receipt)
        assert hold is not None
        held, element = hold
        list_ = f"{held.base}:held:{self._front[0]}"
        return await self._client.call("LPOS", list_, element) is not None

    def _let_go(self, receipt: Receipt) -> None:
        hold = _hold_of(receipt)
        if hold is not None:
            hold[0].elements.discard(hold[1])


def _hold_of(receipt: Receipt) -> tuple[HeldElements, bytes] | None:
    """The handle of a delivery; None for one of another transport."""
    handle = receipt.handle
    if type(handle) is tuple:
        hold = cast("tuple[HeldElements, bytes]", handle)
        if type(hold[0]) is HeldElements:
            return hold
    return None


class RedisListTransport(StoredTransport):
    """Messages in Redis lists (``redis://…?mode=list``), point to point. See ``Transport``.

    A message is moved to a list of the worker that handles it, and removed from there when it is
    done. What a worker held that died is put back when the worker has not been heard of for
    ``lease`` seconds. Without priorities, replay and browsing: use streams for those.

    Args: those of ``RedisTransport``.
    """

    _form_of = staticmethod(list_form)

    def __init__(self, url: str, **options: Unpack[RedisOptions]) -> None:
        super().__init__(url, **options)
        self._capabilities = STORED
        self._consumer = consumer_name(self._lease)
        self._held: dict[str, HeldElements] = {}
        self._upkeep: dict[str, QueueUpkeep] = {}
        self._subscriptions: set[RedisListSubscription] = set()

    def _key(self, queue: str) -> str:
        return key_of(f"{self._prefix}-list", queue)

    async def _before_disconnect(self) -> None:
        for subscription in list(self._subscriptions):
            await subscription.close()
        for upkeep in self._upkeep.values():
            await upkeep.close()
        self._upkeep.clear()
        if self.state.status == "connected":
            leave = script("leave", "list")
            for held in self._held.values():
                with contextlib.suppress(TransportError):
                    while not await self._client.run(leave, [held.base], [held.consumer]):
                        pass
        self._held.clear()

    async def apply_topology(self, topology: Topology) -> Sequence[TopologyNote]:
        """See ``Transport``. Lists have no priorities, no retention and no limits."""
        letters = [name for _, _, name in topology.dead_letter_names()]
        names = [topology.full_name(queue.name) for queue in topology.queues]
        await self._declare_all({name: [] for name in (*names, *letters)})
        return unsupported(topology, "a list")

    async def _declare(self, connection: PipelinedConnection, queue: str) -> None:
        # The key is all that says that there is such a queue.
        key = self._key(queue)
        try:
            await connection.call("HSET", key, "kind", "list")
        except Exception as error:
            raise self._client.translated(connection, error, f", {key}") from error

    async def subscribe(self, queue: str, *, prefetch: int) -> RedisListSubscription:
        """See ``Transport``. ``prefetch`` is ignored: nothing is held in advance."""
        base = self._key(queue)
        if not await self._client.call("EXISTS", base):
            await self._declare_again(queue)
        held = self._held.setdefault(queue, HeldElements(queue, base, self._consumer))
        if queue not in self._upkeep:
            await self._run_upkeep(base)  # known to others before it holds anything
            self._upkeep[queue] = QueueUpkeep(
                self._client,
                base,
                run=lambda: self._run_upkeep(base),
                longest=min(self._block, self._lease / 4),
            )
        subscription = RedisListSubscription(
            self._client,
            held,
            lease=self._lease,
            block=self._block,
            give_back=self._give_back,
            declare=self._declare_again,
            closed=self._subscriptions.discard,
        )
        self._subscriptions.add(subscription)
        return subscription

    async def _run_upkeep(self, base: str) -> int:
        lease = round(self._lease * 1000)
        found = await self._client.run(script("upkeep", "list"), [base], [self._consumer, lease])
        if found is None:
            return -1
        due, problem = found
        if problem:
            log.error("%s: upkeep of delayed or held messages failed: %s", base, problem.decode())
        return due

    def _batch(
        self, connection: PipelinedConnection, settlements: Sequence[Settlement]
    ) -> SettleBatch:
        return ListSettleBatch(
            self._client, connection, self._key, self.send, settlements, [self._consumer]
        )

    async def depth(self, queue: str) -> QueueDepth:
        """See ``Measuring``."""
        return await self._measure(script("depth", "list"), queue)

    async def purge(self, queue: str) -> int:
        """See ``Purging``."""
        return await self._purge(script("purge", "list"), queue)
