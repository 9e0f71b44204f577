"""Keeps the objects of the applied topologies in place.

They are declared again on every new connection and when somebody has deleted them. The queues for
delays are declared on first use.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable, Sequence

from matador.errors import (
    MatadorError,
    NotConnectedError,
    QueueNotFoundError,
    SendRefusedError,
    TransportError,
    UnsupportedError,
)
from matador.model.message import Message, TopologyNote
from matador.model.topology import Topology
from matador.transports.rabbitmq import delays
from matador.transports.rabbitmq.connection import AmqpChannel, AmqpConnection
from matador.transports.rabbitmq.declare import declare
from matador.transports.rabbitmq.delays import Hop
from matador.transports.rabbitmq.options import RabbitMQAddress
from matador.transports.rabbitmq.publisher import Publication, UnroutableError
from matador.transports.rabbitmq.send import OutgoingMessages
from matador.transports.rabbitmq.session import AmqpSession
from matador.transports.rabbitmq.topology import (
    AmqpBinding,
    AmqpExchange,
    AmqpObject,
    delayed_exchange,
    plan_for,
    route_of,
)

log = logging.getLogger("matador.rabbitmq")

_CANCELLING = 0.3  # seconds in which consumers learn that their queue was deleted
_REST = 1.0  # seconds until a queue that could not be created is tried again


class TopologyUpkeep:
    """The applied topologies of one transport, and what was declared for them."""

    def __init__(self, address: RabbitMQAddress, outgoing: OutgoingMessages) -> None:
        self._address = address
        self._outgoing = outgoing
        self._topologies: list[Topology] = []
        self._plugin: bool | None = None
        self._making = asyncio.Lock()
        self._applied: dict[Topology, float] = {}  # when each was applied
        self._in_vain: dict[str, float] = {}  # when a queue was missing all the same

    def forget_server(self) -> None:
        """Look for the plugin again: the next connection may be to another server."""
        self._plugin = None

    async def restore(self, session: AmqpSession) -> None:
        """Declare everything on a new connection."""
        for topology in list(self._topologies):
            await self._apply(session, topology)

    async def apply(self, session: AmqpSession, topology: Topology) -> Sequence[TopologyNote]:
        notes = await self._apply(session, topology)
        self._topologies = [one for one in self._topologies if not _replaces(topology, one)]
        self._topologies.append(topology)
        self._applied = {
            one: when for one, when in self._applied.items() if one in self._topologies
        }
        return notes

    async def delete_queue(self, session: AmqpSession, queue: str) -> None:
        """Delete a queue, and do not create it again."""
        self._topologies = [one.without_queue(queue) for one in self._topologies]
        self._outgoing.forget(queue)
        async with session.channel() as channel:
            await channel.delete_queue(queue)

    async def unbind(self, session: AmqpSession, exchange: str, queue: str, pattern: str) -> None:
        """Remove a binding, and do not create it again."""
        self._topologies = [
            one.without_binding(exchange, queue, pattern) for one in self._topologies
        ]
        try:
            async with session.channel() as channel:
                await channel.unbind(AmqpBinding(queue, exchange, pattern))
        except QueueNotFoundError:  # the queue or the exchange is gone, and so is the binding
            return

    async def redeclare(self, session: AmqpSession, queue: str) -> bool:
        """Create a queue again if it belongs to an applied topology; False if it does not."""
        topology = self._owner(queue)
        if topology is None:
            return False
        await self._apply(session, topology)
        return True

    async def _apply(self, session: AmqpSession, topology: Topology) -> list[TopologyNote]:
        self._outgoing.declared(topology)
        if not topology.queues:  # it only publishes
            plan = plan_for(topology, due_exchange=None, plugin=False)
            return (await declare(session, plan)).notes
        plugin = await self._has_plugin(session, topology.namespace)
        notes: list[TopologyNote] = []
        prefix = self._address.delay_prefix
        missing = await _create(session, delays.objects(prefix))
        if missing is not None and not plugin:
            notes.append(TopologyNote(None, f"messages cannot be delayed: {missing}"))
        due = None if missing else delays.due_exchange(prefix)
        declared = await declare(session, plan_for(topology, due_exchange=due, plugin=plugin))
        notes += declared.notes
        for queue in topology.queues:
            if queue.retention is not None:
                text = "no retention: RabbitMQ keeps no finished messages"
                notes.append(TopologyNote(topology.full_name(queue.name), text))
        self._outgoing.learn(
            topology, plugin=plugin, delays_missing=missing, refusing=declared.refusing
        )
        self._applied[topology] = asyncio.get_running_loop().time()
        return notes

    async def _has_plugin(self, session: AmqpSession, namespace: str) -> bool:
        """Create the exchange of the delayed-message plugin, if the server has the plugin.

        On a separate connection, because RabbitMQ closes it if there is no plugin.
        """
        if self._address.delays == "levels" or self._plugin is False:
            return False
        arguments: dict[str, str | int] = {"x-delayed-type": "direct"}
        exchange = AmqpExchange(delayed_exchange(namespace), "x-delayed-message", arguments)
        host, port = session.publishing.host, session.publishing.port
        found = False
        try:
            probe = await AmqpConnection.open(self._address, host, port, "looking for a plugin")
            try:
                await (await AmqpChannel.open(probe)).declare(exchange)
                found = True
            finally:
                await probe.disconnect()
        except MatadorError as error:
            log.debug("no delayed-message plugin: %s", error)
        self._plugin = found
        if self._address.delays == "plugin" and not found:
            raise UnsupportedError(
                "the server has no delayed-message plugin; leave out delays=plugin"
            )
        return found

    def _owner(self, name: str) -> Topology | None:
        """The topology of a queue, of a dead-letter queue or of an exchange."""
        for topology in self._topologies:
            if name in _names_in(topology):
                return topology
        return None

    # -- publishing: what was deleted is created again, once --------------------------------------

    async def publish(
        self,
        session: AmqpSession,
        publications: Sequence[Publication],
        delayed: Sequence[Message] = (),
    ) -> list[MatadorError | None]:
        """Publish. What somebody has deleted is created again if it is ours. Never raises."""
        started = asyncio.get_running_loop().time()
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
                    self._in_vain[publications[place].target] = asyncio.get_running_loop().time()
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
        """Publish copies that their full queues refused, so that they arrive when there is room.

        Returned to their places instead, they would look as if a worker had died of them.
        """
        delayed: dict[int, Publication] = {}
        for place in full:
            try:
                later, hop = self._outgoing.later(publications[place])
                await self._make_hops(session, [hop])
            except MatadorError as error:
                log.debug("%s cannot be delayed: %s", publications[place].key, error)
                continue
            if hop in self._outgoing.made:
                delayed[place] = later
        again = await session.publisher.publish(list(delayed.values()))
        for place, error in zip(delayed, again, strict=True):
            outcomes[place] = error

    async def _create_again(
        self, session: AmqpSession, names: set[str], delayed: Sequence[Message], since: float
    ) -> bool:
        """Create what is missing unless that was done ``since``; False if it is pointless."""
        now = asyncio.get_running_loop().time()
        worth = [name for name in names if self._in_vain.get(name, -_REST) + _REST < now]
        owners = {id(one): one for name in worth if (one := self._owner(name)) is not None}
        if not owners:
            return False
        try:
            async with self._making:
                for topology in owners.values():
                    if self._applied.get(topology, -1.0) < since:
                        namespace = topology.namespace
                        log.warning("%s: something was deleted; creating it again", namespace)
                        # RabbitMQ does not cancel the consumers of a quorum queue that is created
                        # again at once: they would wait forever on a queue that is gone.
                        await asyncio.sleep(_CANCELLING)
                        await self._apply(session, topology)
                await self.make_hops(session, delayed)
        except MatadorError as error:
            log.warning("what was deleted could not be created again: %s", error)
            return False
        return True

    async def make_hops(self, session: AmqpSession, delayed: Iterable[Message]) -> None:
        """Create the queues of delays that were not used before.

        Raises:
            NotConnectedError: the connection is lost.
        """
        await self._make_hops(session, self._outgoing.unmade(delayed))

    async def _make_hops(self, session: AmqpSession, hops: Collection[Hop]) -> None:
        hops = set(hops) - self._outgoing.made
        if not hops:
            return
        error = await _create(session, delays.hop_objects(self._address.delay_prefix, hops))
        if error is None:
            self._outgoing.made.update(hops)
        else:
            self._outgoing.refused.update((hop, error) for hop in hops)


def _names_in(topology: Topology) -> set[str]:
    """The names by which publications reach what a topology declares."""
    names = {exchange.name for exchange in topology.exchanges}
    for queue in topology.queues:
        names.add(topology.full_name(queue.name))
        letters = route_of(topology, queue, plugin=False).letters
        names.update(route.key for route in letters.values())
    return names


def _replaces(new: Topology, old: Topology) -> bool:
    """Whether nothing is lost if ``new`` takes the place of ``old``."""
    return new.namespace == old.namespace and _names_in(old) <= _names_in(new)


async def _create(session: AmqpSession, things: Iterable[AmqpObject]) -> TransportError | None:
    """Create objects exactly as they are described; return why one cannot be created.

    Raises:
        NotConnectedError: the connection is lost.
    """
    try:
        async with session.channel() as channel:
            for thing in things:
                await channel.declare(thing)
    except NotConnectedError:
        raise
    except TransportError as error:
        return error
    return None
