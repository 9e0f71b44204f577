"""Declares the objects of topologies, and reports those that exist with other arguments.

Objects are declared again on every new connection, and when one was deleted. The queues for delays
are created on first use (``outgoing``). Also finds out which queues refuse messages while they are
full.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pika import exceptions as pika_errors

from matador.errors import (
    MatadorError,
    NotConnectedError,
    QueueNotFoundError,
    UnsupportedError,
)
from matador.model.message import TopologyNote
from matador.model.topology import Topology
from matador.transports.rabbitmq import delays
from matador.transports.rabbitmq.connection import AmqpChannel, AmqpConnection
from matador.transports.rabbitmq.errors import PRECONDITION_FAILED
from matador.transports.rabbitmq.options import RabbitMQAddress
from matador.transports.rabbitmq.outgoing import OutgoingMessages
from matador.transports.rabbitmq.session import AmqpSession
from matador.transports.rabbitmq.topology import (
    AmqpBinding,
    AmqpExchange,
    AmqpObject,
    AmqpQueue,
    plan_for,
    plugin_exchange,
    route_of,
)

log = logging.getLogger("matador.rabbitmq")

_CANCELLING = 0.3  # seconds in which consumers learn that their queue was deleted
_MOST_DIFFERENCES = 20
# The broker compares these first and stops there. We cannot adopt them, either.
_FIXED = frozenset({"type", "durable", "exclusive", "auto_delete"})
_OVERFLOW = "x-overflow"
_REFUSING = "reject-publish"  # also the beginning of reject-publish-dlx
_INEQUIVALENT = re.compile(
    r"inequivalent arg '(?P<name>[^']+)' for \w+ .*?: "
    r"received (?P<ours>none|.*?) but current is (?P<theirs>.*)$",
    re.DOTALL,
)
_VALUE = re.compile(r"(?:the value )?'(?P<value>.*?)'(?: of type '(?P<type>\w+)')?$")


class AppliedTopologies:
    """The topologies that one transport has applied.

    Their objects are declared again on every new connection, and when one was deleted.
    """

    def __init__(self, address: RabbitMQAddress, outgoing: OutgoingMessages) -> None:
        self._address = address
        self._outgoing = outgoing
        self._topologies: list[Topology] = []
        self._plugin: bool | None = None
        self._creating_again = asyncio.Lock()
        self._applied: dict[Topology, float] = {}  # when each was applied

    def forget_server(self) -> None:
        """Forget whether the server has the plugin: the next one may be another server."""
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
        """Delete a queue, and do not declare it again."""
        self._topologies = [one.without_queue(queue) for one in self._topologies]
        self._outgoing.forget(queue)
        async with session.channel() as channel:
            await channel.delete_queue(queue)

    async def unbind(self, session: AmqpSession, exchange: str, queue: str, pattern: str) -> None:
        """Remove a binding, and do not declare it again."""
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

    async def create_again(
        self, session: AmqpSession, names: Collection[str], since: float
    ) -> bool:
        """Declare the topologies that have these names, unless that was done after ``since``.

        Concurrent calls declare a topology once.

        Returns:
            False if no topology has any of the names.

        Raises:
            TransportError: the broker refuses, or the connection is lost.
        """
        owners = {id(one): one for name in names if (one := self._owner(name)) is not None}
        if not owners:
            return False
        async with self._creating_again:
            for topology in owners.values():
                if self._applied.get(topology, -1.0) < since:
                    log.warning("%s: an object was deleted; creating it again", topology.namespace)
                    # RabbitMQ does not cancel the consumers of a quorum queue that is created
                    # again at once: they would wait forever on a queue that is gone.
                    await asyncio.sleep(_CANCELLING)
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
        missing = await session.create(delays.objects(prefix))
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
        host, port = session.publishing.host, session.publishing.port
        found = False
        try:
            probe = await AmqpConnection.open(self._address, host, port, "looking for a plugin")
            try:
                await (await AmqpChannel.open(probe)).declare(plugin_exchange(namespace))
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
        """Find the topology of a queue, of a dead-letter queue or of an exchange."""
        for topology in self._topologies:
            if name in _names_in(topology):
                return topology
        return None


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


# -- declaring and comparing ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ArgumentDifference:
    """An argument that differs from ours. None: not set."""

    name: str
    ours: str | int | None
    theirs: str | int | None

    def __str__(self) -> str:
        theirs, ours = ("not set" if one is None else repr(one) for one in (self.theirs, self.ours))
        return f"{self.name} is {theirs}, ours would be {ours}"


@dataclass(frozen=True, slots=True)
class Declared:
    """What the broker has after a declaration."""

    notes: list[TopologyNote] = field(default_factory=list[TopologyNote])
    """The differences."""
    refusing: dict[str, str] = field(default_factory=dict[str, str])
    """The ``x-overflow`` of the queues that refuse messages while they are full."""

    def note_overflow(self, queue: str, overflow: str | int | None) -> None:
        """Note what a queue does when it is full, if it refuses messages then."""
        if isinstance(overflow, str) and overflow.startswith(_REFUSING):
            self.refusing[queue] = overflow


def difference_in(text: str) -> ArgumentDifference | None:
    """Parse the difference that the broker reports, if it reports one."""
    found = _INEQUIVALENT.search(text)
    if found is None:
        return None
    return ArgumentDifference(found["name"], _value(found["ours"]), _value(found["theirs"]))


async def declare(
    session: AmqpSession, plan: Iterable[AmqpObject], *, only_look: bool = False
) -> Declared:
    """Create what is missing, or only compare the queues that exist.

    Raises:
        TransportError: the broker refuses for another reason, or the connection is lost.
    """
    declarer = _Declarer(session)
    result = Declared()
    notes = result.notes
    missing: set[str] = set()
    try:
        for thing in plan:
            if isinstance(thing, AmqpBinding):
                if not only_look and thing.queue not in missing:
                    await declarer.declare(thing)
            elif isinstance(thing, AmqpExchange):
                if not only_look and (different := await declarer.differences(thing)):
                    text = f"exchange {thing.name} is used as it is: {_told(different)}"
                    notes.append(TopologyNote(None, text))
            elif (only_look or not thing.ours) and not await declarer.exists(thing):
                missing.add(thing.name)
                if not only_look:
                    text = "does not exist; it belongs to another application, which must create it"
                    notes.append(TopologyNote(thing.name, text))
            elif thing.ours:
                # Even if an existing queue differs: AMQP does not show what a policy sets.
                result.note_overflow(thing.name, thing.arguments.get(_OVERFLOW))
                if different := await declarer.differences(thing):
                    notes.append(TopologyNote(thing.name, f"is used as it is: {_told(different)}"))
                    if _OVERFLOW in different:
                        result.note_overflow(thing.name, different[_OVERFLOW].theirs)
            elif not only_look:
                result.note_overflow(thing.name, await declarer.overflow(thing))
    finally:
        await declarer.close()
    return result


def _told(differences: Mapping[str, ArgumentDifference]) -> str:
    return "; ".join(map(str, differences.values()))


class _Declarer:
    """Declares objects one after the other, on a new channel after each refusal."""

    def __init__(self, session: AmqpSession) -> None:
        self._session = session
        self._channel: AmqpChannel | None = None

    async def _open(self) -> AmqpChannel:
        if self._channel is None or not self._channel.is_open:
            self._channel = await AmqpChannel.open(self._session.consuming)
        return self._channel

    async def close(self) -> None:
        if self._channel is not None:
            await self._channel.close()

    async def declare(self, thing: AmqpObject) -> None:
        await (await self._open()).declare(thing)

    async def exists(self, queue: AmqpQueue) -> bool:
        try:
            await (await self._open()).count_ready(queue.name)
        except QueueNotFoundError:
            return False
        return True

    async def overflow(self, queue: AmqpQueue) -> str | int | None:
        """Find out what a queue of another application does when full; None: not known.

        The queue is declared with an ``x-overflow`` that does not exist. So nothing is ever
        created, and the broker says how the queue differs.
        """
        asked = replace(queue, arguments={_OVERFLOW: "?"})
        try:
            different = await self.differences(asked, until=_OVERFLOW)
        except NotConnectedError:
            raise
        except MatadorError as error:  # the user may not configure it, or it has been deleted
            log.debug("%s: could not find out its %s: %s", queue.name, _OVERFLOW, error)
            return None
        return different[_OVERFLOW].theirs if _OVERFLOW in different else None

    async def differences(
        self, thing: AmqpExchange | AmqpQueue, until: str | None = None
    ) -> dict[str, ArgumentDifference]:
        """Declare an object and return how the existing one differs.

        The broker reports one difference at a time: adopt it, and declare the object again.

        ``until``: stop at this argument.
        """
        found: dict[str, ArgumentDifference] = {}
        while len(found) < _MOST_DIFFERENCES:
            try:
                await self.declare(thing)
                break
            except MatadorError as error:
                difference = _difference(error)
                if difference is None:
                    raise
            name = difference.name
            if name in found:
                break
            found[name] = difference
            if name in _FIXED or name == until:
                break
            arguments = {key: value for key, value in thing.arguments.items() if key != name}
            if difference.theirs is not None:
                arguments[name] = difference.theirs
            thing = replace(thing, arguments=arguments)
        return found


def _difference(error: MatadorError) -> ArgumentDifference | None:
    cause = error.__cause__
    if (
        isinstance(cause, pika_errors.ChannelClosedByBroker)
        and cause.reply_code == PRECONDITION_FAILED
    ):
        return difference_in(str(cause.reply_text))
    return None


def _value(text: str) -> str | int | None:
    found = _VALUE.match(text.strip())
    if found is None:
        return None
    value = found["value"]
    numeric = found["type"] not in (None, "longstr")
    return int(value) if numeric and value.lstrip("-").isdecimal() else value
