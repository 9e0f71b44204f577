"""Exchanges and bindings for brokers that have none: which queues get what is published.

The rules are AMQP's: words are separated by dots, ``*`` is exactly one word, ``#`` any number of
them, none included. ``orders.#`` matches ``orders``.
"""

from __future__ import annotations

from collections.abc import Iterator

from matador.errors import QueueNotFoundError
from matador.model.options import suggestion
from matador.model.topology import Exchange, Topology


def topic_matches(pattern: str, key: str) -> bool:
    """Does a routing key match the pattern of a binding?

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
    """The exchanges of all applied topologies, and what is bound to them."""

    def __init__(self) -> None:
        self._exchanges: dict[str, tuple[Exchange, TopicTable]] = {}

    def apply(self, topology: Topology) -> None:
        """Add the exchanges and bindings of a topology; none is removed."""
        for exchange in topology.exchanges:
            present = self._exchanges.get(exchange.name)
            table = TopicTable() if present is None else present[1]
            self._exchanges[exchange.name] = exchange, table
        for binding in topology.bindings:
            exchange, table = self._exchanges[binding.exchange]
            table.bind(_pattern(exchange, binding.pattern), topology.full_name(binding.queue))

    def queues(self, exchange: str, key: str) -> list[str]:
        """The full names of the queues that get a message.

        Raises:
            QueueNotFoundError: there is no such exchange.
        """
        found = self._exchanges.get(exchange)
        if found is None:
            raise QueueNotFoundError(
                f"there is no exchange {exchange!r}; declare it in Topology(exchanges=[...])"
                f"{suggestion(exchange, self._exchanges)}"
            )
        kind, table = found
        return list(table.queues(_pattern(kind, key)))


def _pattern(exchange: Exchange, text: str) -> str:
    """Direct and fanout exchanges compare whole texts: as one word without a wildcard."""
    if exchange.type == "topic":
        return text
    return "" if exchange.type == "fanout" else "=" + text.replace(".", "\0")
