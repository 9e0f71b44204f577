"""Exchanges, bindings and temporary queues on the server, which all processes share.

The client matches bindings, and the script that stores a message checks that they have not changed.
This needs a single server: the keys of several queues are not in one slot of a cluster.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import msgspec

from matador.errors import MatadorError, QueueNotFoundError, SendRefusedError, TransportError
from matador.model.message import Message, TopologyNote
from matador.model.topology import Exchange, Topology
from matador.transports.kit.routing import RoutingTable, different_type
from matador.transports.redis.client import RedisClient, script
from matador.transports.redis.send import LARGEST, check_size, cut, refusal, written
from matador.transports.redis.wire import fields_of
from matador.transports.redis_client.connection import Argument, PipelinedConnection
from matador.transports.redis_client.errors import UNWRITABLE, unstorable

_MOST = 500  # messages, or queues, in one call
_TRIES = 20
_GONE = -1
_PLAIN = 6  # names and values of a message with id, body and headers only

_decode_bindings = msgspec.json.Decoder(list[tuple[str, str]]).decode


@dataclass(slots=True)
class _Declared:
    """The declarations of this process, to repeat them if the server loses them."""

    exchanges: dict[str, Exchange] = field(default_factory=dict[str, Exchange])
    bindings: dict[str, dict[tuple[str, str], None]] = field(
        default_factory=dict[str, dict[tuple[str, str], None]]
    )
    """Exchanges and patterns by queue."""
    temporary: dict[str, int] = field(default_factory=dict[str, int])
    """Milliseconds by queue."""


class RedisRoutes:
    """Declares exchanges and bindings, and publishes to them. Queues have their full names here.

    ``is_used``: whether this process consumes a temporary queue, so that it must be kept.
    ``restore``: declares everything again after the server has lost it, queues included.
    ``create_again``: creates the queues that this process has declared, among those given.
    """

    def __init__(
        self,
        client: RedisClient,
        prefix: str,
        key_of: Callable[[str], str],
        *,
        is_used: Callable[[str], bool],
        restore: Callable[[PipelinedConnection], Awaitable[None]],
        create_again: Callable[[Iterable[str]], Awaitable[None]],
    ) -> None:
        self._client = client
        self._key_of = key_of
        self._is_used = is_used
        self._restore = restore
        self._create_again = create_again
        self._routes = f"{prefix}:{{routes}}"
        self._own = _Declared()
        self._table = RoutingTable()
        self._number: bytes | None = None  # of the bindings in the table; None: not loaded

    # -- declaring ---------------------------------------------------------------------------------

    async def apply(self, topology: Topology) -> list[TopologyNote]:
        """Declare the exchanges, bindings and temporary queues of a topology.

        Called before its queues are created, so that a process that dies in between leaves no queue
        behind.
        """
        own = self._own
        own.exchanges.update((exchange.name, exchange) for exchange in topology.exchanges)
        for binding in topology.bindings:
            queue = topology.full_name(binding.queue)
            own.bindings.setdefault(queue, {})[binding.exchange, binding.pattern] = None
        lasting: list[str] = []
        queues: list[str] = []
        for queue in topology.queues:
            name = topology.full_name(queue.name)
            queues.append(name)
            if queue.expires is None:
                own.temporary.pop(name, None)
                lasting.append(name)
            else:
                own.temporary[name] = max(1, round(queue.expires * 1000))
        connection = await self._client.connection()
        names = [exchange.name for exchange in topology.exchanges]
        types = await self._apply(connection, names, queues, lasting)
        return [
            TopologyNote(None, different_type(exchange, type_.decode(errors="replace")))
            for exchange, type_ in zip(topology.exchanges, types, strict=True)
            if type_ != exchange.type.encode()
        ]

    async def restore(self, connection: PipelinedConnection, queue: str | None = None) -> None:
        """Repeat the declarations of this process: all of them, or those of one queue."""
        own = self._own
        if queue is None:
            self._number = None  # this may be another server
        queues = [
            name
            for name in (own.bindings.keys() | own.temporary.keys())
            if name not in own.temporary or self._is_used(name) or name == queue
        ]
        if queue is not None:
            queues = [queue] if queue in queues else []
        if queues or (own.exchanges and queue is None):
            await self._apply(connection, list(own.exchanges), queues)

    async def _apply(
        self,
        connection: PipelinedConnection,
        exchanges: Sequence[str],
        queues: Sequence[str],
        lasting: Sequence[str] = (),
    ) -> list[bytes]:
        own = self._own
        temporary = own.temporary
        kept = [(name, self._key_of(name), temporary[name]) for name in queues if name in temporary]
        lists: list[list[tuple[Argument, ...]]] = [
            [(name, own.exchanges[name].type) for name in exchanges],
            [(name, *binding) for name in queues for binding in own.bindings.get(name, ())],
            [*kept],
            [(name, self._key_of(name)) for name in lasting],
        ]
        arguments: list[Argument] = []
        for rows in lists:
            arguments.append(len(rows))
            for row in rows:
                arguments += row
        if not any(lists):
            return []
        return await self._run_on(connection, "routes_apply", (), arguments)

    async def unbind(self, exchange: str, queue: str, pattern: str) -> None:
        """Remove a binding."""
        connection = await self._client.connection()
        self._own.bindings.get(queue, {}).pop((exchange, pattern), None)
        await self._run_on(connection, "routes_unbind", (), (queue, exchange, pattern))

    async def delete(self, queue: str) -> None:
        """Delete a queue."""
        connection = await self._client.connection()
        self._own.bindings.pop(queue, None)
        self._own.temporary.pop(queue, None)
        await self._run_on(connection, "routes_delete", [queue], ("0", queue))

    # -- temporary queues --------------------------------------------------------------------------

    @property
    def temporary(self) -> dict[str, int]:
        """The temporary queues that were declared or consumed here, and their milliseconds."""
        return self._own.temporary

    async def learn(self, queue: str) -> None:
        """Read whether a queue declared by another process is temporary."""
        if queue not in self._own.temporary:
            found: bytes | None = await self._client.call("HGET", self._key_of(queue), "expires")
            if found is not None and found.isdigit():
                self._own.temporary[queue] = max(1, int(found))

    async def touch(self, queue: str) -> None:
        """Extend the lifetime of a temporary queue. Does not recreate a deleted one."""
        expires, key = self._own.temporary[queue], f"{self._key_of(queue)}:used"
        await self._client.call("SET", key, "1", "PX", expires, "XX")

    async def sweep(self) -> None:
        """Delete expired temporary queues of all processes."""
        found: list[bytes] = await self._client.call("HKEYS", f"{self._routes}:temporary")
        connection = await self._client.connection()
        for start in range(0, len(found), _MOST):
            # A name that is not UTF-8 cannot be the name of a queue.
            some = [name.decode(errors="replace") for name in found[start : start + _MOST]]
            await self._run_on(connection, "routes_delete", some, ("1", *some))

    # -- publishing --------------------------------------------------------------------------------

    async def publish(self, exchange: str, messages: Sequence[Message]) -> list[int | MatadorError]:
        """See ``Routing.publish``. One script stores up to 500 messages in all of their queues."""
        connection = await self._client.connection()
        outcomes: list[int | MatadorError] = [0] * len(messages)
        for some in cut(range(len(messages)), messages, _MOST):
            try:
                found = await self._publish(connection, exchange, [messages[at] for at in some])
            except (QueueNotFoundError, TransportError) as error:
                found = [error] * len(some)
            for place, outcome in zip(some, found, strict=True):
                outcomes[place] = outcome
        return outcomes

    async def _publish(
        self, connection: PipelinedConnection, exchange: str, messages: Sequence[Message]
    ) -> list[int | MatadorError]:
        restored, whole = False, "1"
        for _ in range(_TRIES):
            if self._number is None:
                await self._load(connection)
            number = self._number
            try:
                chosen = [self._table.queues(exchange, _key(message)) for message in messages]
            except QueueNotFoundError:
                self._number = None  # another process may be declaring it now
                if restored or exchange not in self._own.exchanges:
                    raise
                await self._restore(connection)  # the server has lost it
                restored = True
                continue
            outcomes, places, arguments = _written(messages, chosen)
            numbered = (number or b"", *places, whole, *arguments)
            reply: Any = await self._run_on(connection, "publish", places, numbered)
            if reply is None:
                self._number = None if self._number == number else self._number
            elif reply and reply[0] == _GONE:
                whole = "0"  # the queue of another process is not recreated
                queues = list(places)
                await self._create_again(queues[int(place) - 1] for place in reply[1:])
            else:
                rest = iter(reply)
                return [
                    self._read(connection, next(rest)) if one is None else one for one in outcomes
                ]
        raise SendRefusedError(
            f"{self._client.where}: not stored, because the bindings keep changing"
        )

    def _read(self, connection: PipelinedConnection, outcome: int | bytes) -> int | MatadorError:
        if isinstance(outcome, int):
            return outcome
        return refusal(outcome, self._client, connection)

    async def _load(self, connection: PipelinedConnection) -> None:
        number, exchanges, bindings = await self._run_on(connection, "routes_load")
        table = RoutingTable()
        for name, type_ in _pairs(exchanges):
            if type_ in ("topic", "direct", "fanout"):
                table.declare(Exchange(name, cast("Any", type_)))
        for queue, stored in _pairs(bindings):
            try:
                found = _decode_bindings(stored)
            except msgspec.MsgspecError:  # a foreign entry
                continue
            for exchange, pattern in found:
                table.bind(exchange, queue, pattern)
        self._table, self._number = table, number

    async def _run_on(
        self,
        connection: PipelinedConnection,
        name: str,
        queues: Iterable[str] = (),
        arguments: Sequence[Argument] = (),
    ) -> Any:
        keys = [self._routes, *map(self._key_of, queues)]
        return await self._client.run_on(connection, script(name), keys, arguments)


def _written(
    messages: Sequence[Message], chosen: Sequence[Sequence[str]]
) -> tuple[list[int | MatadorError | None], dict[str, int], list[Argument]]:
    """Match messages against the bindings.

    For each message: 0 if no queue matches, an error if it cannot be encoded, or None. Also the
    numbers of all queues, and the messages for the script, grouped into runs with the same queues
    and form.
    """
    places: dict[str, int] = {}
    outcomes: list[int | MatadorError | None] = []
    arguments: list[Argument] = []
    run: tuple[Sequence[str], bool] | None = None
    size, size_at = 0, 0  # of the run, and where it is written
    for message, queues in zip(messages, chosen, strict=True):
        try:
            if len(message.body) > LARGEST:
                check_size(message)
            if not queues:
                outcomes.append(0)
                continue
            fields = fields_of(message)
            plain = message.delay <= 0 and len(fields) == _PLAIN and fields[4] == "h"
            form = fields[1::2] if plain else written(message, fields)
        except UNWRITABLE as error:
            outcomes.append(unstorable(f"message {message.id!r}", error))
            continue
        if run != (queues, plain):
            run, size = (queues, plain), 0
            arguments.append(len(queues))
            arguments += [places.setdefault(queue, len(places) + 1) for queue in queues]
            size_at = len(arguments) + 1
            arguments += (int(plain), 0)
        size += 1
        arguments[size_at] = size
        arguments += form
        outcomes.append(None)
    return outcomes, places, arguments


def _key(message: Message) -> str:
    given = message.properties
    return "" if given is None else given.routing_key or ""


def _pairs(flat: Sequence[bytes]) -> Iterable[tuple[str, str]]:
    """The pairs of names and values that are UTF-8; others are foreign."""
    for name, value in zip(flat[::2], flat[1::2], strict=False):
        try:
            yield name.decode(), value.decode()
        except UnicodeDecodeError:
            continue
