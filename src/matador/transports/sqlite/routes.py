"""Exchanges, bindings and temporary queues in the file, which all processes share.

A counter in the file says whether another process has changed exchanges or bindings. It is read in
the transaction that publishes.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from matador.model.message import TopologyNote
from matador.model.topology import Binding, Exchange, Topology
from matador.transports.kit.routing import RoutingTable, different_type

_COUNTER = "SELECT routes FROM meta"
_COUNT = (
    "INSERT INTO meta (id, routes) VALUES (1, 1) ON CONFLICT (id) DO UPDATE SET routes = routes + 1"
)
_BIND = "INSERT INTO bindings (queue, exchange, pattern) VALUES (?, ?, ?) ON CONFLICT DO NOTHING"
_KEEP = (
    "INSERT INTO temporary_queues (name, expires, used_at) VALUES (?, ?, ?) "
    "ON CONFLICT (name) DO UPDATE SET expires = excluded.expires, used_at = excluded.used_at"
)
_TOUCH = (
    "UPDATE temporary_queues SET used_at = ?1 "
    "WHERE name = ?2 AND (?3 OR used_at < ?1 - expires / 4)"
)
_MOST_EXPIRED = 100
_DELETED_FOR = 3_600_000  # ms


@dataclass(frozen=True, slots=True)
class TemporaryQueue:
    """What it takes to create a temporary queue again. ``expires`` is in milliseconds."""

    name: str
    expires: int
    bindings: tuple[Binding, ...] = ()


def temporary_in(topology: Topology) -> list[TemporaryQueue]:
    """The temporary queues of a topology, with full names."""
    return [
        TemporaryQueue(
            topology.full_name(queue.name),
            max(1, round(queue.expires * 1000)),
            tuple(binding for binding in topology.bindings if binding.queue == queue.name),
        )
        for queue in topology.queues
        if queue.expires is not None
    ]


class FileRoutes:
    """Used by the writer's thread only, within its transactions."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._table = RoutingTable()
        self._counter: Any = None
        self._checked = False

    def changed_elsewhere(self) -> None:
        """Another process has written to the file."""
        self._checked = False

    def forget(self) -> None:
        """A transaction was undone, which may have counted: the same number may come again."""
        self._counter, self._checked = (), False

    @property
    def table(self) -> RoutingTable:
        """The exchanges and bindings as they are in this transaction."""
        if not self._checked:
            found = self._connection.execute(_COUNTER).fetchone()
            if found != self._counter:
                self._table = self._load()
                self._counter = found
            self._checked = True
        return self._table

    def _load(self) -> RoutingTable:
        table = RoutingTable()
        execute = self._connection.execute
        for name, type_ in execute("SELECT name, type FROM exchanges"):
            table.declare(Exchange(name, type_))
        for row in execute("SELECT exchange, queue, pattern FROM bindings"):
            table.bind(*row)
        return table

    def apply(self, topology: Topology, now: int) -> list[TopologyNote]:
        """Add the exchanges and bindings of a topology, and note which queues are temporary."""
        names = [(topology.full_name(queue.name),) for queue in topology.queues]
        temporary = temporary_in(topology)
        execute_many = self._connection.executemany
        lasting = set(names) - {(queue.name,) for queue in temporary}
        execute_many("DELETE FROM temporary_queues WHERE name = ?", lasting)
        rows = [(exchange.name, exchange.type) for exchange in topology.exchanges]
        insert = "INSERT INTO exchanges (name, type) VALUES (?, ?) ON CONFLICT DO NOTHING"
        changed = execute_many(insert, rows).rowcount
        bindings = [
            (topology.full_name(binding.queue), binding.exchange, binding.pattern)
            for binding in topology.bindings
        ]
        self._changed(max(changed, execute_many(_BIND, bindings).rowcount))
        for queue in temporary:
            self.keep(queue, now)
        return [
            TopologyNote(None, different_type(exchange, type_))
            for exchange in topology.exchanges
            if (type_ := self.table.declare(exchange)) != exchange.type
        ]

    def _changed(self, rows: int) -> None:
        if rows > 0:
            self._connection.execute(_COUNT)
            self._checked = False

    def unbind(self, exchange: str, queue: str, pattern: str) -> None:
        """Remove a binding."""
        delete = "DELETE FROM bindings WHERE queue = ? AND exchange = ? AND pattern = ?"
        self._changed(self._connection.execute(delete, (queue, exchange, pattern)).rowcount)

    def remove_queue(self, queue: str, *, lasting: bool, now: int) -> None:
        """Remove the bindings of a queue; it is not temporary any more.

        A ``lasting`` queue is noted as temporary for an hour, so that other processes that have
        declared it see that it was deleted on purpose, and do not create it again.
        """
        execute = self._connection.execute
        execute("DELETE FROM temporary_queues WHERE name = ?", (queue,))
        self._changed(execute("DELETE FROM bindings WHERE queue = ?", (queue,)).rowcount)
        if lasting:
            execute(_KEEP, (queue, _DELETED_FOR, now))

    # -- temporary queues -------------------------------------------------------------------------

    def keep(self, queue: TemporaryQueue, now: int) -> None:
        """A temporary queue is used now; it is noted, with its bindings, if it was not."""
        self._connection.execute(_KEEP, (queue.name, queue.expires, now))
        rows = [(queue.name, binding.exchange, binding.pattern) for binding in queue.bindings]
        self._changed(self._connection.executemany(_BIND, rows).rowcount)

    def expiry_of(self, queue: str) -> int | None:
        """After how many milliseconds without use a queue is deleted; None: never."""
        select = "SELECT expires FROM temporary_queues WHERE name = ?"
        found = self._connection.execute(select, (queue,)).fetchone()
        return None if found is None else found[0]

    def touch(self, queues: Collection[str], now: int, *, always: bool = False) -> None:
        """Queues are used now. Written only if it was not a moment ago, unless ``always``."""
        rows = [(now, queue, always) for queue in queues]
        self._connection.executemany(_TOUCH, rows)

    def expired(self, now: int) -> list[str]:
        """Some of the temporary queues that no process has used within their time."""
        select = "SELECT name FROM temporary_queues WHERE used_at + expires <= ? LIMIT ?"
        rows = self._connection.execute(select, (now, _MOST_EXPIRED)).fetchall()
        return [name for (name,) in rows]
