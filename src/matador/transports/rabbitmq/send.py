"""What is published for a message or a settlement: to which exchange, with which properties.

A queue of an applied topology is reached through its namespace's exchange, as the format says. Any
other queue is reached directly, through the default exchange, which knows every queue by its name.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from matador.errors import (
    DelaysNotSupportedError,
    MatadorError,
    QueueNotFoundError,
    UnstorableError,
)
from matador.model.message import (
    DeadLetter,
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
from matador.transports.rabbitmq.topology import (
    dead_letter_exchange,
    delayed_exchange,
    main_exchange,
)

_NO_PROPERTIES = Properties()
_LONGEST_NAME = 255
_PLUGIN_MAX = (1 << 32) - 1  # milliseconds


class OutgoingMessages:
    """Makes publications of messages and settlements, by the topologies that were applied."""

    def __init__(self, address: RabbitMQAddress, clock: Clock) -> None:
        self._limit = address.max_message_size
        self._prefix = address.delay_prefix
        self._user = address.user
        self._clock = clock
        self._exchanges: dict[str, str] = {}
        self._dead: dict[str, str] = {}
        self._delayed: dict[str, str] = {}
        self._delays_missing: MatadorError | None = None
        self.made: set[Hop] = set()
        """Hops whose queues are there."""
        self.refused: dict[Hop, MatadorError] = {}
        """Hops whose queues could not be made, and why."""
        self.frame_max = 131072

    def learn(
        self, topology: Topology, *, plugin: bool, delays_missing: MatadorError | None
    ) -> None:
        """Reach the queues of this topology through its exchanges from now on."""
        namespace = topology.namespace
        self._delays_missing = delays_missing
        self.made.clear()  # what others have deleted meanwhile is not known
        self.refused.clear()
        for queue in topology.queues:
            name = topology.full_name(queue.name)
            self._exchanges[name] = main_exchange(namespace)
            if topology.dead_letters.enabled_kinds:
                self._dead[name] = dead_letter_exchange(namespace)
            if plugin:
                self._delayed[name] = delayed_exchange(namespace)

    def knows(self, queue: str) -> bool:
        """Is it a work queue of an applied topology?"""
        return queue in self._exchanges

    def publication(self, message: Message, reserve: int = wire.RESERVE) -> Publication:
        """A message, ready to be published, with ``reserve`` bytes left for its successors.

        Raises:
            MatadorError: it cannot be: too large, a delay for a queue that is not known.
        """
        queue = message.queue
        exchange = self._exchanges.get(queue)
        problem = wire.check_size(message, self._limit)
        if problem is not None:
            raise problem
        if message.delay > 0:
            return self._delayed_publication(message, reserve)
        if exchange is None:
            _check_name(queue)
            exchange = ""
        properties = wire.properties_of(message, self._now(), self.frame_max, reserve=reserve)
        # RabbitMQ counts an answer as not routed, even if it arrives.
        mandatory = not queue.startswith(DIRECT_REPLY)
        id_ = wire.id_property(message.id)
        return Publication(exchange, queue, id_, properties, message.body, mandatory)

    def routed(self, exchange: str, message: Message) -> Publication:
        """A message for all queues whose binding matches its routing key.

        Raises:
            MatadorError: it cannot be published: too large, delayed, a key that is too long.
        """
        problem = wire.check_size(message, self._limit)
        if problem is not None:
            raise problem
        if message.delay > 0:
            raise DelaysNotSupportedError("RabbitMQ cannot delay what is published to an exchange")
        given = message.properties or _NO_PROPERTIES
        key = given.routing_key or ""
        if len(key.encode("utf-8", "replace")) > _LONGEST_NAME:
            raise UnstorableError(f"the routing key {key[:80]!r}… has more than 255 bytes")
        plain = msgspec.structs.replace(
            message, properties=msgspec.structs.replace(given, routing_key=None)
        )
        properties = wire.properties_of(plain, self._now(), self.frame_max, reserve=wire.RESERVE)
        id_ = wire.id_property(message.id)
        return Publication(exchange, key, id_, properties, message.body, routed=True)

    def successor(self, settlement: Settlement, hold: AmqpHold) -> Publication:
        """What has to be stored before a delivery is acknowledged."""
        match settlement:
            case Retry():
                return self.publication(settlement.message, 0)
            case DeadLetter():
                return self._dead_letter(settlement, hold)
            case Release():
                return self.copy(hold, settlement.receipt.queue)
            case _:
                raise AssertionError("a completed delivery has no successor")

    def copy(self, hold: AmqpHold, queue: str) -> Publication:
        """A delivery as it was before it was delivered, with how often it was in a header."""
        properties = wire.copy_of(
            hold.properties, hold.deliveries, self.frame_max, self._user, hold.routing_key
        )
        return Publication("", queue, wire.id_of(properties), properties, hold.body)

    def _dead_letter(self, settlement: DeadLetter, hold: AmqpHold) -> Publication:
        source = settlement.receipt.queue
        target = dead_letter_name(source, settlement.kind)
        exchange = self._dead.get(source, "")
        if not exchange and len(target.encode()) > _LONGEST_NAME:
            raise UnstorableError(f"the name of the dead-letter queue is too long: {target[:80]}…")
        message, reason = settlement.message, settlement.reason
        if message is not None and not settlement.bare:
            letter = dead_letter_of(settlement, message)
            properties = wire.properties_of(letter, self._now(), self.frame_max)
            return Publication(
                exchange, target, wire.id_property(message.id), properties, message.body
            )
        if settlement.bare:
            properties = wire.bare_letter(hold.properties, reason, self._now())
        else:
            now, most = self._now(), self.frame_max
            properties = wire.raw_letter(
                hold.properties, reason, now, most, self._user, hold.routing_key
            )
        return Publication(exchange, target, wire.id_of(properties), properties, hold.body)

    # -- delays -----------------------------------------------------------------------------------

    def unmade(self, messages: Iterable[Message]) -> list[Hop]:
        """The hops of these messages whose queues this process has not seen to yet."""
        taken = (delays.path(one.delay) for one in messages if self._takes_hops(one))
        return list({hop for hops in taken for hop in hops if hop not in self.made})

    def _takes_hops(self, message: Message) -> bool:
        queue, delay = message.queue, message.delay
        if queue not in self._exchanges or self._delays_missing is not None:
            return False
        by_plugin = queue in self._delayed and delay * 1000 <= _PLUGIN_MAX
        return 0 < delay <= delays.MAX_DELAY and not by_plugin

    def _delayed_publication(self, message: Message, reserve: int) -> Publication:
        queue, id_ = message.queue, wire.id_property(message.id)
        if queue not in self._exchanges:
            raise QueueNotFoundError(
                f"{queue!r} is not in a topology that was applied here, so its messages "
                f"cannot be delayed"
            )
        now, most = self._now(), self.frame_max
        plugin = self._delayed.get(queue)
        if plugin is not None and message.delay * 1000 <= _PLUGIN_MAX:
            marks = {"x-delay": max(1, -int(-message.delay * 1000 // 1))}
            properties = wire.properties_of(message, now, most, marks, reserve=reserve)
            # The plugin stores the message itself: no queue takes it now, so none is demanded.
            return Publication(plugin, queue, id_, properties, message.body, False)
        if self._delays_missing is not None:
            raise DelaysNotSupportedError(
                f"the queues for delays could not be created: {self._delays_missing}"
            ) from self._delays_missing
        if message.delay > delays.MAX_DELAY:
            raise DelaysNotSupportedError(
                f"the longest delay is {delays.MAX_DELAY:.0f} s, requested were {message.delay:g} s"
            )
        hops = delays.path(message.delay)
        refused = next((self.refused[hop] for hop in hops if hop in self.refused), None)
        if refused is not None:
            raise DelaysNotSupportedError(
                f"the queues for a delay of {message.delay:g} s could not be created: {refused}"
            ) from refused
        properties = wire.properties_of(message, now, most, delays.marks(hops), reserve=reserve)
        exchange = delays.hop_exchange(self._prefix, hops[0].left)
        return Publication(exchange, queue, id_, properties, message.body)

    def _now(self) -> int:
        return round(self._clock.time() * 1000)


def _check_name(queue: str) -> None:
    try:
        size = len(queue.encode())
    except UnicodeEncodeError:
        size = 0
    if not 0 < size <= _LONGEST_NAME:
        raise QueueNotFoundError(f"there is no queue {queue[:80]!r}: invalid name")
