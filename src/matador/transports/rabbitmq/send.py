"""What is published for a message or a settlement: to which exchange, with which properties.

A queue of an applied topology is reached through the exchange of its namespace, as the wire format
says. Any other queue is reached directly, through the default exchange.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from matador.errors import (
    DelaysNotSupportedError,
    MatadorError,
    MessageTooLargeError,
    QueueNotFoundError,
    UnstorableError,
)
from matador.model.message import (
    DeadLetter,
    Headers,
    Message,
    Properties,
    Release,
    Retry,
    Settlement,
)
from matador.model.topology import Topology, dead_letter_name
from matador.transports.clock import Clock
from matador.transports.kit.dead_letters import dead_letter_of
from matador.transports.rabbitmq import delays, wire
from matador.transports.rabbitmq.delays import Hop
from matador.transports.rabbitmq.deliveries import AmqpHold
from matador.transports.rabbitmq.options import RabbitMQAddress
from matador.transports.rabbitmq.publisher import DIRECT_REPLY, Publication
from matador.transports.rabbitmq.topology import INTERNAL_SUFFIXES, AmqpRoute, route_of

_NO_PROPERTIES = Properties()
_LONGEST_NAME = 255
_PLUGIN_MAX = (1 << 32) - 1  # milliseconds
_UNTIL_ROOM = 1.0  # seconds until a message that was given back may be in its full queue


_DIRECT = AmqpRoute()


class OutgoingMessages:
    """Makes publications of messages and settlements, using the applied topologies."""

    def __init__(self, address: RabbitMQAddress, clock: Clock) -> None:
        self._limit = address.max_message_size
        self._prefix = address.delay_prefix
        self._user = address.user
        self._clock = clock
        self._routes: dict[str, AmqpRoute] = {}
        self._exchanges: set[str] = set()
        self._internal: dict[bytes, bool] = {}
        self._delays_missing: MatadorError | None = None
        self._refusing: dict[str, str] = {}
        self.made: set[Hop] = set()
        """Hops whose queues exist."""
        self.refused: dict[Hop, MatadorError] = {}
        """Hops whose queues could not be created, and why."""
        self.frame_max = 131072

    def learn(
        self,
        topology: Topology,
        *,
        plugin: bool,
        delays_missing: MatadorError | None,
        refusing: Mapping[str, str],
    ) -> None:
        """Reach the queues of this topology through its exchanges from now on.

        ``refusing``: the ``x-overflow`` of those that refuse messages while they are full.
        """
        self._delays_missing = delays_missing
        self._internal.clear()
        self.made.clear()  # somebody may have deleted them
        self.refused.clear()
        for queue in topology.queues:
            full = topology.full_name(queue.name)
            self._routes[full] = route_of(topology, queue, plugin=plugin)
            self._refusing.pop(full, None)
        self._refusing.update(refusing)

    def declared(self, topology: Topology) -> None:
        """The exchanges of this topology carry what users publish."""
        self._exchanges.update(exchange.name for exchange in topology.exchanges)
        self._internal.clear()

    def is_internal(self, exchange: bytes) -> bool:
        """Does this exchange reach queues by their names, rather than by users' routing keys?

        Also those of topologies that were not applied here, by their names: tools read any queue.
        """
        known = self._internal.get(exchange)  # asked for nearly every delivery
        if known is None:
            known = self._internal[exchange] = self._reaches_by_name(exchange)
        return known

    def _reaches_by_name(self, exchange: bytes) -> bool:
        name = str(exchange, "utf-8", "replace")
        if name in self._exchanges:
            return False
        if name.endswith(INTERNAL_SUFFIXES) or name in ("dlx", delays.due_exchange(self._prefix)):
            return True
        return any(
            name in (route.main, route.dead, route.delayed)
            or any(name == letters.exchange for letters in route.letters.values())
            for route in self._routes.values()
        )

    def refuses(self, queue: str) -> bool:
        """Does this queue refuse messages while it is full?"""
        return queue in self._refusing

    def forget(self, queue: str) -> None:
        """Reach a queue directly again: it no longer belongs to a topology."""
        self._routes.pop(queue, None)
        self._internal.clear()

    def publication(self, message: Message, reserve: int = wire.RESERVE) -> Publication:
        """What to publish for a message; ``reserve`` bytes are left for its retries.

        Raises:
            MatadorError: the message is too large, or cannot be delayed.
        """
        if len(message.body) > self._limit:
            raise MessageTooLargeError(len(message.body), self._limit)
        if message.delay > 0:
            return self._delayed(message, reserve)
        queue = message.queue
        route = self._routes.get(queue)
        if route is None:
            _check_name(queue)
            route = _DIRECT
        # RabbitMQ reports a reply as unroutable even if it arrives. One without an id is a reply
        # to a queue: if that is gone, so is whoever asked.
        mandatory = bool(message.id) and not queue.startswith(DIRECT_REPLY)
        return self._made(message, route.main, queue, None, reserve, mandatory)

    def routed(self, exchange: str, message: Message) -> Publication:
        """What to publish for every queue whose binding matches the message's routing key.

        Raises:
            MatadorError: the message is too large or delayed, or its key is too long.
        """
        if len(message.body) > self._limit:
            raise MessageTooLargeError(len(message.body), self._limit)
        if message.delay > 0:
            raise DelaysNotSupportedError("RabbitMQ cannot delay what is published to an exchange")
        given = message.properties or _NO_PROPERTIES
        key = given.routing_key or ""
        if len(key) * 4 > _LONGEST_NAME and len(key.encode("utf-8", "replace")) > _LONGEST_NAME:
            raise UnstorableError(f"the routing key {key[:80]!r}… has more than 255 bytes")
        if message.properties is None:
            message = msgspec.structs.replace(message, properties=given)
        return self._made(message, exchange, key, None, wire.RESERVE, routed=True)

    def successor(self, settlement: Settlement, hold: AmqpHold) -> Publication:
        """What must be stored before a delivery is acknowledged.

        Raises:
            MatadorError: it cannot be stored.
        """
        match settlement:
            case Retry():
                return self.publication(settlement.message, 0)
            case DeadLetter():
                return self._dead_letter(settlement, hold)
            case Release():
                # The message as it was delivered, with its delivery count in a header.
                properties = wire.copy_of(
                    hold.properties, hold.deliveries, self.frame_max, self._user, hold.routing_key
                )
                id_ = wire.id_of(properties)
                queue = settlement.receipt.queue
                return Publication("", queue, id_, properties, hold.body, released=True)
            case _:
                raise AssertionError("a completed delivery has no successor")

    def later(self, publication: Publication) -> tuple[Publication, Hop]:
        """The same for a queue that is full: it waits for a second in a hop of the queue's own.

        Raises:
            MatadorError: it cannot be delayed.
        """
        queue = publication.key
        self._route(queue)
        self._check_hops()
        if self._refusing.get(queue) == "reject-publish-dlx":
            raise DelaysNotSupportedError(f"{queue} makes dead letters of what it refuses")
        (hop,) = delays.with_own_end(self._prefix, delays.path(_UNTIL_ROOM), queue)
        properties = wire.marked(publication.properties, delays.marks([hop]), self.frame_max)
        properties = wire.expiring(properties, hop.ttl)
        exchange = delays.hop_exchange(self._prefix, hop.left)
        return publication._replace(exchange=exchange, properties=properties, delayed=True), hop

    def _dead_letter(self, settlement: DeadLetter, hold: AmqpHold) -> Publication:
        source, reason = settlement.receipt.queue, settlement.reason
        target = dead_letter_name(source, settlement.kind)
        route = self._routes.get(source, _DIRECT)
        exchange, key = route.letters.get(settlement.kind) or (route.dead, target)
        if not exchange and len(target.encode()) > _LONGEST_NAME:
            raise UnstorableError(f"the name of the dead-letter queue is too long: {target[:80]}…")
        if settlement.message is not None and not settlement.bare:
            return self._made(dead_letter_of(settlement, settlement.message), exchange, key)
        if settlement.bare:
            properties = wire.bare_letter(hold.properties, reason, self._now())
        else:
            properties = wire.raw_letter(
                hold.properties, reason, self._now(), self.frame_max, self._user, hold.routing_key
            )
        return Publication(exchange, key, wire.id_of(properties), properties, hold.body)

    def _made(
        self,
        message: Message,
        exchange: str,
        key: str,
        marks: Headers | None = None,
        reserve: int = 0,
        mandatory: bool = True,
        routed: bool = False,
    ) -> Publication:
        id_ = wire.id_property(message.id)
        most = self.frame_max - reserve
        properties = wire.properties_of(message, id_, self._now(), most, marks, routed=routed)
        return Publication(exchange, key, id_, properties, message.body, mandatory, routed)

    def _now(self) -> int:
        return round(self._clock.time() * 1000)

    # -- delays -----------------------------------------------------------------------------------

    def unmade(self, messages: Iterable[Message]) -> list[Hop]:
        """The hops of these messages whose queues this process has not declared yet."""
        hops: set[Hop] = set()
        for message in messages:
            try:
                hops.update(self._hops(message))
            except MatadorError:  # reported when it is published
                continue
        return list(hops - self.made)

    def _hops(self, message: Message) -> list[Hop]:
        """The hops of a delayed message; none if the plugin delays it.

        Raises:
            MatadorError: the message cannot be delayed.
        """
        queue, delay = message.queue, message.delay
        route = self._route(queue)
        if route.delayed and delay * 1000 <= _PLUGIN_MAX:
            return []
        self._check_hops()
        if delay > delays.MAX_DELAY:
            raise DelaysNotSupportedError(
                f"the longest delay is {delays.MAX_DELAY:.0f} s, got {delay:g} s"
            )
        hops = delays.path(delay)
        if queue in self._refusing:
            return delays.with_own_end(self._prefix, hops, queue)
        return hops

    def _route(self, queue: str) -> AmqpRoute:
        route = self._routes.get(queue)
        if route is None:
            raise QueueNotFoundError(
                f"{queue!r} is not in a topology that was applied here, so its messages "
                f"cannot be delayed"
            )
        return route

    def _check_hops(self) -> None:
        if self._delays_missing is not None:
            raise DelaysNotSupportedError(
                f"the queues for delays could not be created: {self._delays_missing}"
            ) from self._delays_missing

    def _delayed(self, message: Message, reserve: int) -> Publication:
        queue, delay = message.queue, message.delay
        hops = self._hops(message)
        if not hops:
            # The plugin stores the message itself. No queue has it yet, so it is not mandatory.
            marks = {"x-delay": max(1, -int(-delay * 1000 // 1))}
            exchange = self._routes[queue].delayed
            return self._made(message, exchange, queue, marks, reserve, mandatory=False)
        refused = next((self.refused[hop] for hop in hops if hop in self.refused), None)
        if refused is not None:
            raise DelaysNotSupportedError(
                f"the queues for a delay of {delay:g} s could not be created: {refused}"
            ) from refused
        exchange = delays.hop_exchange(self._prefix, hops[0].left)
        made = self._made(message, exchange, queue, delays.marks(hops), reserve)
        properties = wire.expiring(made.properties, hops[0].ttl)
        return made._replace(delayed=True, properties=properties)


def _check_name(queue: str) -> None:
    try:
        size = len(queue.encode())
    except UnicodeEncodeError:
        size = 0
    if not 0 < size <= _LONGEST_NAME:
        raise QueueNotFoundError(f"there is no queue {queue[:80]!r}: invalid name")
