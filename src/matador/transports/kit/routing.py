"""Exchanges and bindings for brokers that have none: which queues receive a published message.

The rules are AMQP's: words are separated by dots, ``*`` matches exactly one word, ``#`` any number
of words, including none. ``orders.#`` matches ``orders``.
"""

from __future__ import annotations

from collections.abc import Iterator

from matador.errors import QueueNotFoundError
from matador.model.message import TopologyNote
from matador.model.options import suggestion
from matador.model.topology import Exchange, Topology

_MOST_KEYS = 10_000


def topic_matches(pattern: str, key: str) -> bool:
    """Whether a routing key matches the pattern of a binding.

    Example:
        >>> topic_matches("orders.*", "orders.paid"), topic_matches("orders.#", "orders")
        (True, True)
    """
    table = TopicTable()
    table.bind(pattern, "")
    return "" in table.queues(key)


class TopicTable:
    """Patterns and their queues as a trie of words: a look-up does not try every binding."""

    __slots__ = ("_next", "_queues")

    def __init__(self) -> None:
        self._next: dict[str, TopicTable] = {}
        self._queues: dict[str, None] = {}

    def bind(self, pattern: str, queue: str) -> None:
        """``queue`` gets what matches ``pattern``. Idempotent."""
        node = self
        for word in _words(pattern):
            node = node._next.setdefault(word, TopicTable())
        node._queues[queue] = None

    def unbind(self, pattern: str, queue: str) -> None:
        """``queue`` no longer gets what matches ``pattern``. Idempotent."""
        path: list[tuple[TopicTable, str]] = []
        node = self
        for word in _words(pattern):
            below = node._next.get(word)
            if below is None:
                return
            path.append((node, word))
            node = below
        node._queues.pop(queue, None)
        for above, word in reversed(path):
            below = above._next[word]
            if below._next or below._queues:
                return
            del above._next[word]

    def queues(self, key: str) -> dict[str, None]:
        """The queues of all patterns that match, each once."""
        found: dict[str, None] = {}
        words = _words(key)
        seen: set[tuple[int, int]] = set()  # several '#' reach the same node in many ways
        pending: list[tuple[TopicTable, int]] = [(self, 0)]
        while pending:
            node, at = pending.pop()
            if (id(node), at) in seen:
                continue
            seen.add((id(node), at))
            if at == len(words):
                found.update(node._queues)
            pending += node._steps(words, at)
        return found

    def _steps(self, words: list[str], at: int) -> Iterator[tuple[TopicTable, int]]:
        any_number = self._next.get("#")
        if any_number is not None:
            for end in range(at, len(words) + 1):
                yield any_number, end
        if at < len(words):
            word = words[at]  # '*' and '#' are no wildcards in a routing key
            exact = None if word in ("*", "#") else self._next.get(word)
            for node in (exact, self._next.get("*")):
                if node is not None:
                    yield node, at + 1


def _words(text: str) -> list[str]:
    return text.split(".") if text else []  # RabbitMQ sees no word in an empty key


class RoutingTable:
    """Exchanges and what is bound to them. Queues have their full names here."""

    def __init__(self) -> None:
        self._exchanges: dict[str, tuple[Exchange, TopicTable]] = {}
        self._bindings: dict[str, set[tuple[str, str]]] = {}  # of each queue: exchange and pattern
        self._found: dict[tuple[str, str], list[str]] = {}

    def apply(self, topology: Topology) -> list[TopologyNote]:
        """Add the exchanges and bindings of a topology; none is removed or changed."""
        notes: list[TopologyNote] = []
        for exchange in topology.exchanges:
            type_ = self.declare(exchange)
            if type_ != exchange.type:
                notes.append(TopologyNote(None, different_type(exchange, type_)))
        for binding in topology.bindings:
            self.bind(binding.exchange, topology.full_name(binding.queue), binding.pattern)
        return notes

    def declare(self, exchange: Exchange) -> str:
        """Add an exchange unless it is there. Returns its type."""
        present = self._exchanges.setdefault(exchange.name, (exchange, TopicTable()))
        return present[0].type

    def bind(self, exchange: str, queue: str, pattern: str) -> None:
        """Add a binding. It has no effect if the exchange does not exist."""
        found = self._exchanges.get(exchange)
        if found is not None:
            found[1].bind(_pattern(found[0], pattern), queue)
            self._bindings.setdefault(queue, set()).add((exchange, pattern))
            self._found.clear()

    def unbind(self, exchange: str, queue: str, pattern: str) -> None:
        """Remove a binding. Idempotent."""
        bindings = self._bindings.get(queue, set())
        if (exchange, pattern) not in bindings:
            return
        bindings.discard((exchange, pattern))
        kind, table = self._exchanges[exchange]
        if kind.type != "fanout" or all(one != exchange for one, _ in bindings):
            table.unbind(_pattern(kind, pattern), queue)
        self._found.clear()

    def remove_queue(self, queue: str) -> None:
        """Remove all bindings of a queue. Idempotent."""
        for exchange, pattern in list(self._bindings.get(queue, ())):
            self.unbind(exchange, queue, pattern)
        self._bindings.pop(queue, None)

    def queues(self, exchange: str, key: str) -> list[str]:
        """The full names of the queues that get a message.

        Raises:
            QueueNotFoundError: there is no such exchange.
        """
        found = self._found.get((exchange, key))
        if found is None:
            present = self._exchanges.get(exchange)
            if present is None:
                raise QueueNotFoundError(
                    f"there is no exchange {exchange!r}; declare it in Topology(exchanges=[...])"
                    f"{suggestion(exchange, self._exchanges)}"
                )
            kind, table = present
            found = list(table.queues(_pattern(kind, key)))
            if len(self._found) >= _MOST_KEYS:
                self._found.clear()
            self._found[exchange, key] = found
        return found


def different_type(exchange: Exchange, type_: str) -> str:
    """The text of a note about an exchange that exists with another type."""
    return (
        f"exchange {exchange.name} is used as it is: type is {type_!r}, "
        f"ours would be {exchange.type!r}"
    )


def _pattern(exchange: Exchange, text: str) -> str:
    """Direct and fanout exchanges compare whole texts: as one word without a wildcard."""
    if exchange.type == "topic":
        return text
    return "" if exchange.type == "fanout" else "=" + text.replace(".", "\0")
