"""Keeps the objects of the applied topologies in place.

They are declared again on every new connection, when somebody has deleted them, and, for the queues
of delays, when they are first used.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace

from matador.errors import (
    MatadorError,
    NotConnectedError,
    QueueNotFoundError,
    TransportError,
    UnsupportedError,
)
from matador.model.message import Message, TopologyNote
from matador.model.topology import Topology
from matador.transports.rabbitmq import delays
from matador.transports.rabbitmq.declare import declare, declare_at_once, has_delayed_exchange
from matador.transports.rabbitmq.options import RabbitMQAddress
from matador.transports.rabbitmq.publisher import Publication, UnroutableError
from matador.transports.rabbitmq.send import OutgoingMessages
from matador.transports.rabbitmq.session import AmqpSession
from matador.transports.rabbitmq.topology import delayed_exchange, plan_for

log = logging.getLogger("matador.rabbitmq")

_TELLING = 0.3  # seconds in which consumers hear that their queue is gone
_REST = 1.0  # seconds until a queue that could not be made again is tried once more


class TopologyUpkeep:
    """The applied topologies of one transport, and what was declared for them."""

    def __init__(self, address: RabbitMQAddress, outgoing: OutgoingMessages) -> None:
        self._address = address
        self._outgoing = outgoing
        self._topologies: dict[str, Topology] = {}
        self._plugin: bool | None = None
        self._making = asyncio.Lock()
        self._applied: dict[str, float] = {}  # when each topology was applied
        self._in_vain: dict[str, float] = {}  # when a queue was missing although it was

    def forget_server(self) -> None:
        """The next connection may be to another server: find out again what it can do."""
        self._plugin = None

    async def restore(self, session: AmqpSession) -> None:
        """Declare everything on a new connection."""
        for topology in list(self._topologies.values()):
            await self._apply(session, topology)

    async def apply(self, session: AmqpSession, topology: Topology) -> Sequence[TopologyNote]:
        """See ``Transport.apply_topology``."""
        notes = await self._apply(session, topology)
        self._topologies[topology.namespace] = topology
        return notes

    async def redeclare(self, session: AmqpSession, queue: str) -> bool:
        """Make a queue again if it belongs to a topology that was applied here."""
        topology = self._owner(queue)
        if topology is None:
            return False
        await self._apply(session, topology)
        return True

    async def _apply(self, session: AmqpSession, topology: Topology) -> list[TopologyNote]:
        plugin = await self._has_plugin(session, topology.namespace)
        notes: list[TopologyNote] = []
        prefix = self._address.delay_prefix
        missing: MatadorError | None = None
        try:
            await declare_at_once(session, delays.objects(prefix))
        except NotConnectedError:
            raise
        except TransportError as error:
            missing = error
            if not plugin:
                notes.append(TopologyNote(None, f"messages cannot be delayed: {error}"))
        due = None if missing else delays.due_exchange(prefix)
        plan = plan_for(topology, due_exchange=due, plugin=plugin)
        notes += await declare(session, plan)
        for queue in topology.queues:
            if queue.retention is not None:
                text = "no retention: RabbitMQ keeps no finished messages"
                notes.append(TopologyNote(topology.full_name(queue.name), text))
        self._outgoing.learn(topology, plugin=plugin, delays_missing=missing)
        self._applied[topology.namespace] = asyncio.get_running_loop().time()
        return notes

    async def _has_plugin(self, session: AmqpSession, namespace: str) -> bool:
        if self._address.delays == "levels" or self._plugin is False:
            return False
        name = delayed_exchange(namespace)
        address = replace(self._address, hosts=self._address.hosts[:1])
        self._plugin = await has_delayed_exchange(address, session, name)
        if self._address.delays == "plugin" and not self._plugin:
            raise UnsupportedError(
                "the server has no delayed-message plugin; leave out delays=plugin"
            )
        return self._plugin

    def _owner(self, name: str) -> Topology | None:
        """The topology that a queue, its dead letters or an exchange belongs to."""
        for topology in self._topologies.values():
            names = [topology.full_name(one.name) for one in topology.queues]
            names += [letters for _, _, letters in topology.dead_letter_names()]
            names += [exchange.name for exchange in topology.exchanges]
            if name in names:
                return topology
        return None

    # -- publishing: what is missing is made, once ------------------------------------------------

    async def publish(
        self,
        session: AmqpSession,
        publications: Sequence[Publication],
        delayed: Sequence[Message] = (),
    ) -> list[MatadorError | None]:
        """Publish; what somebody has deleted is made again if it is ours. Never raises."""
        started = asyncio.get_running_loop().time()
        outcomes = await session.publisher.publish(publications)
        if not any(outcomes):
            return outcomes
        gone = [
            place
            for place, one in enumerate(outcomes)
            if isinstance(one, QueueNotFoundError) and not isinstance(one, UnroutableError)
        ]
        if not gone:
            return outcomes
        targets = {publications[place].target for place in gone}
        if await self._make_again(session, targets, delayed, started):
            again = await session.publisher.publish([publications[place] for place in gone])
            for place, error in zip(gone, again, strict=True):
                outcomes[place] = error
                if isinstance(error, QueueNotFoundError):
                    self._in_vain[publications[place].target] = asyncio.get_running_loop().time()
        return outcomes

    async def _make_again(
        self, session: AmqpSession, names: set[str], delayed: Sequence[Message], since: float
    ) -> bool:
        """Make what these names need, unless that was done ``since``; False: it is of no use."""
        now = asyncio.get_running_loop().time()
        worth = [name for name in names if self._in_vain.get(name, -_REST) + _REST < now]
        owners = {one.namespace: one for name in worth if (one := self._owner(name)) is not None}
        if not owners:
            return False
        try:
            async with self._making:
                for namespace, topology in owners.items():
                    if self._applied.get(namespace, -1.0) < since:
                        log.warning("%s: something was deleted; creating it again", namespace)
                        # RabbitMQ forgets to tell consumers of a quorum queue that is made again
                        # at once: they would wait for ever on what is no more.
                        await asyncio.sleep(_TELLING)
                        await self._apply(session, topology)
                await self.make_hops(session, delayed)
        except MatadorError as error:
            log.warning("what was deleted could not be created again: %s", error)
            return False
        return True

    async def make_hops(self, session: AmqpSession, delayed: Sequence[Message]) -> None:
        """Make the queues of delays that were not used before.

        Raises:
            NotConnectedError: the connection is lost.
        """
        hops = self._outgoing.unmade(delayed)
        if not hops:
            return
        prefix = self._address.delay_prefix
        try:
            await declare_at_once(session, delays.hop_objects(prefix, hops))
        except NotConnectedError:
            raise
        except TransportError as error:
            self._outgoing.refused.update((hop, error) for hop in hops)
        else:
            self._outgoing.made.update(hops)
