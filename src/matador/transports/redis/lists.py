"""``RedisListTransport``: plain lists, each message to one consumer, none lost."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Sequence

from matador.errors import MatadorError, MessageTooLargeError, TransportError
from matador.model.capabilities import Capabilities
from matador.model.message import (
    Delivery,
    Message,
    QueueDepth,
    Release,
    Settlement,
    StoredMessage,
    TopologyNote,
)
from matador.model.options import Seconds
from matador.model.topology import Topology
from matador.transports.base import ignored_arguments
from matador.transports.redis import list_looking
from matador.transports.redis.channel import Argument, Channel
from matador.transports.redis.contents import content_of
from matador.transports.redis.entries import milliseconds
from matador.transports.redis.keys import key_of
from matador.transports.redis.list_settling import ListSettling
from matador.transports.redis.list_subscription import Held, RedisListSubscription, list_script
from matador.transports.redis.sending import (
    UNWRITABLE,
    Outcomes,
    check_size,
    no_such_queue,
    note,
    note_answer,
    unwritable,
)
from matador.transports.redis.server import ServerTransport, consumer_name, restore_each
from matador.transports.redis.watcher import Watcher

log = logging.getLogger("matador.transports.redis")

_MOST = 500


class RedisListTransport(ServerTransport):
    """Messages in Redis lists (``redis://…?mode=list``). See ``Transport``.

    A message is moved to a list of the worker that handles it and removed from there when it is
    done; what a worker held that died is put back when it has not been heard of for ``lease``
    seconds. Simpler to look at than streams; no replay, no priorities.

    Args: those of ``RedisTransport``.
    """

    def __init__(
        self,
        url: str,
        *,
        lease: Seconds | None = None,
        timeout: Seconds | None = None,
        heartbeat: Seconds | None = None,
        prefix: str | None = None,
        name: str = "redis",
    ) -> None:
        super().__init__(
            url, lease=lease, timeout=timeout, heartbeat=heartbeat, prefix=prefix, name=name
        )
        self._capabilities = Capabilities(
            delivery_modes=frozenset({"at-least-once", "at-most-once"}),
            delays=True,
            dead_letters="native",
            attempt_tracking=True,
            concurrency="worker",
            ordering="queue",
            priorities=False,
            browse=True,
            purge=True,
            depth=True,
            durable=True,
        )
        self._consumer = consumer_name(self._lease)
        self._declared: dict[str, list[Argument]] = {}
        self._held: dict[str, Held] = {}
        self._watchers: dict[str, Watcher] = {}
        self._subscriptions: set[RedisListSubscription] = set()

    @property
    def capabilities(self) -> Capabilities:
        """See ``Transport``."""
        return self._capabilities

    def _key(self, queue: str) -> str:
        return key_of(f"{self._prefix}-list", queue)

    async def _before_disconnect(self) -> None:
        for subscription in list(self._subscriptions):
            await subscription.close()
        for watcher in self._watchers.values():
            await watcher.close()
        self._watchers.clear()
        for held in self._held.values():
            with contextlib.suppress(TransportError):
                if self.state.status == "connected":
                    while not await self._link.run(
                        list_script("leave"), [held.base], [held.consumer]
                    ):
                        pass
        self._held.clear()

    # -- queues ------------------------------------------------------------------------------------

    async def apply_topology(self, topology: Topology) -> Sequence[TopologyNote]:
        """See ``Transport``. Lists know no priorities, no retention and no time to live."""
        channel = await self._link.channel()
        notes = ignored_arguments(topology)
        made: dict[str, list[Argument]] = {}
        for queue in topology.queues:
            name = topology.full_name(queue.name)
            made[name] = [""]
            if queue.priorities:
                notes.append(TopologyNote(name, "lists have no priorities: first in, first out"))
            if queue.retention is not None:
                notes.append(TopologyNote(name, "lists keep nothing that is finished"))
        for _, kind, name in topology.dead_letter_names():
            letters = topology.dead_letters[kind]
            made[name] = ["" if letters.max_length is None else letters.max_length]
            if letters.ttl is not None:
                notes.append(TopologyNote(name, "lists have no time to live: they stay"))
        self._declared.update(made)
        await asyncio.gather(*(self._declare(channel, queue) for queue in made))
        return notes

    async def _restore(self, channel: Channel) -> None:
        await restore_each(self._declared, lambda queue: self._declare(channel, queue))

    async def _declare(self, channel: Channel, queue: str) -> None:
        arguments = self._declared[queue]
        await self._link.run_on(channel, list_script("declare"), [self._key(queue)], arguments)

    async def _declare_again(self, queue: str) -> None:
        if queue not in self._declared:
            raise no_such_queue(queue, self._link.where)
        await self._declare(await self._link.channel(), queue)

    # -- sending and receiving ---------------------------------------------------------------------

    async def send(self, messages: Sequence[Message]) -> Sequence[MatadorError | None]:
        """See ``Transport``."""
        channel = await self._link.channel()
        outcomes: Outcomes = [None] * len(messages)
        queues: dict[str, list[int]] = {}
        for place, message in enumerate(messages):
            queues.setdefault(message.queue, []).append(place)

        async def push(queue: str, places: list[int]) -> None:
            arguments: list[Argument] = []
            pushed: list[int] = []
            for place in places:
                message = messages[place]
                try:
                    check_size(message)
                    arguments += (milliseconds(message.delay), content_of(message))
                except (*UNWRITABLE, MessageTooLargeError) as error:
                    outcomes[place] = unwritable(message, error)
                else:
                    pushed.append(place)
            await self._push(channel, queue, arguments, pushed, outcomes)

        await asyncio.gather(
            *(
                push(queue, places[first : first + _MOST])
                for queue, places in queues.items()
                for first in range(0, len(places), _MOST)
            )
        )
        return outcomes

    async def _push(
        self,
        channel: Channel,
        queue: str,
        arguments: Sequence[Argument],
        places: Sequence[int],
        outcomes: Outcomes,
    ) -> None:
        keys = [self._key(queue)]
        try:
            stored = await self._link.run_on(channel, list_script("push"), keys, arguments)
            if stored == 0:
                await self._declare_again(queue)  # the server was emptied, or it is unknown
                stored = await self._link.run_on(channel, list_script("push"), keys, arguments)
        except TransportError as error:
            note(outcomes, places, error)
            return
        note_answer(outcomes, places, stored, queue, self._link, channel)

    async def subscribe(self, queue: str, *, prefetch: int) -> RedisListSubscription:
        """See ``Transport``. ``prefetch`` does not matter: nothing is held in advance."""
        if not await self._link.call("EXISTS", self._key(queue)):
            await self._declare_again(queue)
        subscription = RedisListSubscription(
            self._link,
            await self._attend(queue),
            lease=self._lease,
            block=self._block,
            give_back=self._give_back,
            declare=self._declare_again,
            closed=self._subscriptions.discard,
        )
        self._subscriptions.add(subscription)
        return subscription

    async def _attend(self, queue: str) -> Held:
        """Be known as one who holds messages of a queue, and stay so."""
        base = self._key(queue)
        held = self._held.setdefault(queue, Held(queue, base, self._consumer))
        if queue not in self._watchers:
            await self._tend(base)  # known to others before it holds anything
            self._watchers[queue] = Watcher(
                self._link,
                base,
                tend=lambda: self._tend(base),
                longest=min(self._block, self._lease / 4),
            )
        return held

    async def _tend(self, base: str) -> int:
        lease = round(self._lease * 1000)
        found = await self._link.run(list_script("tend"), [base], [self._consumer, lease])
        if found is None:
            return -1
        due, problem = found
        if problem:
            log.error("%s: delayed messages or what others held: %s", base, problem.decode())
        return due

    async def _give_back(self, deliveries: Sequence[Delivery]) -> None:
        with contextlib.suppress(TransportError):  # then it goes back when we do
            await self.settle([Release(delivery.receipt) for delivery in deliveries])

    async def settle(self, settlements: Sequence[Settlement]) -> Sequence[MatadorError | None]:
        """See ``Transport``. Each is atomic, but for a retry in a queue of another name: there
        the successor is stored first."""
        channel = await self._link.channel()
        return await ListSettling(
            self._link,
            channel,
            self._key,
            self._consumer,
            self.send,
            self._declare_again,
            settlements,
        ).settle()

    # -- optional abilities ------------------------------------------------------------------------

    async def browse(
        self, queue: str, *, after: str | None = None, limit: int | None = None
    ) -> AsyncIterator[StoredMessage]:
        """See ``Browsing``. The list is read whole, so only up to 100,000 messages."""
        found = await list_looking.browse(self._link, queue, self._key(queue), after)
        for stored in found if limit is None else found[: max(0, limit)]:
            yield stored

    async def take(self, queue: str, positions: Sequence[str]) -> Sequence[Delivery]:
        """See ``Browsing``."""
        held = await self._attend(queue)
        lease = round(self._lease * 1000)
        wanted = list_looking.places(positions)
        found = await self._link.run(
            list_script("take"), [held.base], [held.consumer, lease, *wanted]
        )
        if found is None:
            raise no_such_queue(queue, self._link.where)
        return [held.delivery(message) for message in found]

    async def depth(self, queue: str) -> QueueDepth:
        """See ``Measuring``."""
        found = await self._link.run(list_script("depth"), [self._key(queue)])
        if found is None:
            raise no_such_queue(queue, self._link.where)
        ready, delayed, in_flight = found
        return QueueDepth(ready=ready, delayed=delayed, in_flight=in_flight)

    async def purge(self, queue: str) -> int:
        """See ``Purging``."""
        found = await self._link.run(list_script("purge"), [self._key(queue)])
        if found < 0:
            raise no_such_queue(queue, self._link.where)
        return found
