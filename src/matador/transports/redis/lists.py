"""``RedisListTransport``: plain lists; each message goes to one consumer and survives its crash."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import sha1

from matador.model.message import (
    Complete,
    DeadLetter,
    Delivery,
    Release,
    Retry,
    Settlement,
    TopologyNote,
)
from matador.model.topology import Topology
from matador.transports.redis.base import STORED, StoredTransport
from matador.transports.redis.blocking import BlockingSubscription, QueueSource
from matador.transports.redis.send import list_form
from matador.transports.redis.settle import SettleBatch, hold_of
from matador.transports.redis.topology import key_of, unsupported
from matador.transports.redis.wire import (
    Lane,
    content_of,
    element_of,
    letter_of,
    listed_of,
    message_of,
    milliseconds,
)
from matador.transports.redis_client.connection import Argument


class RedisListSubscription(BlockingSubscription):
    """A subscription to a list. Created by ``RedisListTransport.subscribe``."""

    def __init__(self, source: QueueSource, lane: Lane) -> None:
        super().__init__(source)
        self._lane = lane

    async def _fetch_once(self, limit: int) -> list[Delivery]:
        source, lane = self._source, self._lane
        found = await self._run("pop", source.lease, limit)
        if not found:
            held = f"{source.base}:held:{source.consumer}"
            element = await self._block_on(
                *("BLMOVE", lane.key, held, "LEFT", "RIGHT", f"{source.block:.3f}")
            )
            found = [] if element is None else [element]
        return [listed_of(lane, element) for element in found]

    def _arrived(self) -> Iterable[str]:
        return (sha1(one, usedforsecurity=False).hexdigest() for one in self._lane.held)


class ListSettleBatch(SettleBatch):
    """Settlements of deliveries from lists."""

    _kind = "list"

    def _ordered(self, places: list[int]) -> list[int]:
        # Released messages are pushed to the front of the list, so the last one is pushed first.
        given = self._settlements
        return sorted(places, key=lambda one: -one if type(given[one]) is Release else one)

    def _written(self, settlement: Settlement, target: int) -> list[Argument]:
        lane, element, _ = hold_of(settlement.receipt)
        front: list[Argument] = [lane.consumer, element]
        match settlement:
            case Retry(message=message):
                return [*front, target, milliseconds(message.delay), content_of(message)]
            case DeadLetter():
                received = message_of(lane.queue, element_of(element)[1])
                return [*front, target, 0, content_of(letter_of(settlement, received))]
            case Complete():
                return [*front, -1, 0, ""]
            case Release():
                return [*front, 0, 0, ""]


class RedisListTransport(StoredTransport):
    """Messages in Redis lists (``redis://…?mode=list``), point to point. See ``Transport``.

    A message is moved to a list of the worker that handles it, and removed from there when it is
    finished. If the worker shows no sign of life for ``lease`` seconds, its messages return to the
    queue. There are no priorities, replay and browsing: use streams for those.

    Args: those of ``RedisTransport``.
    """

    _kind = "list"
    _form_of = staticmethod(list_form)
    _batch = ListSettleBatch
    _capabilities = STORED

    def _key(self, queue: str) -> str:
        return key_of(f"{self._prefix}-list", queue)

    async def apply_topology(self, topology: Topology) -> Sequence[TopologyNote]:
        """Lists have no priorities, no retention and no limits."""
        letters = [name for _, _, name in topology.dead_letter_names()]
        names = [topology.full_name(queue.name) for queue in topology.queues]
        await self._declare_all({name: [] for name in (*names, *letters)})
        return unsupported(topology, "a list")

    async def create(self, queues: Iterable[str]) -> None:
        """Create queues that belong to no topology of this transport."""
        await self._declare_all({name: [] for name in queues if name not in self._declared})

    def _subscription(self, source: QueueSource, levels: int) -> RedisListSubscription:
        return RedisListSubscription(source, self._lane(source.queue, "ready"))
