"""The handlers of a subscriber, and which of them a message is for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from matador.errors import ConfigurationError
from matador.messages.functions import MessageFunction, read_function
from matador.model.text import lone_surrogate
from matador.model.topology import Exchange
from matador.pubsub.context import MessageContext, Received
from matador.transports.kit.routing import RoutingTable

_LONGEST = 255  # bytes of a pattern, in AMQP


def _context_of(received: Received) -> MessageContext:
    return received.context


def read_handler(function: Callable[..., Any], where: str) -> MessageFunction:
    """Read the signature of a handler of messages.

    Raises:
        ConfigurationError: it cannot be called with a message.
    """
    return read_function(
        function, where, context=MessageContext, inject={MessageContext: _context_of}
    )


@dataclass(frozen=True, slots=True)
class Registered:
    """A handler under its name, which identifies it among the handlers of the subscriber.

    The name is in the headers of a message whose handlers have failed, so that only these run
    again.
    """

    name: str
    function: MessageFunction


class Registry:
    """Handlers by their patterns. The patterns mean what the type of the exchange says."""

    def __init__(self, exchange: Exchange, where: str) -> None:
        self._exchange = exchange
        self._where = where
        self._table = RoutingTable()
        self._table.declare(exchange)
        self._handlers: dict[str, Registered] = {}
        self._names: dict[int, str] = {}
        self._patterns: dict[str, dict[str, None]] = {}
        self._found: dict[str, tuple[Registered, ...]] = {}

    @property
    def patterns(self) -> Sequence[str]:
        """All patterns, each once, in the order of their registration."""
        return list(self._patterns)

    @property
    def bindings(self) -> Sequence[tuple[str, Registered]]:
        """Each pattern with each of its handlers, in the order of their registration."""
        return [
            (pattern, self._handlers[name])
            for pattern, names in self._patterns.items()
            for name in names
        ]

    @property
    def handlers(self) -> Sequence[Registered]:
        """All handlers, each once, in the order of their registration."""
        return list(self._handlers.values())

    def add(self, pattern: str, function: Callable[..., Any]) -> None:
        """Have a function called for messages that match. One that is added twice is one handler.

        Raises:
            ConfigurationError: the pattern or the function is not valid.
        """
        self._check(pattern)
        name = self._names.get(id(function))
        if name is None:
            read = read_handler(function, f"{self._where}, handler of {pattern!r}")
            name = self._free_name(read.name)
            self._handlers[name] = Registered(name, read)
            self._names[id(function)] = name  # the handler keeps the function, so the id stays
        self._patterns.setdefault(pattern, {})[name] = None
        self._table.bind(self._exchange.name, name, pattern)
        self._found.clear()

    def matching(self, routing_key: str) -> tuple[Registered, ...]:
        """The handlers of a message, in the order of their registration."""
        found = self._found.get(routing_key)
        if found is None:
            names = set(self._table.queues(self._exchange.name, routing_key))
            found = tuple(one for name, one in self._handlers.items() if name in names)
            if len(self._found) >= 10_000:
                self._found.clear()
            self._found[routing_key] = found
        return found

    def _free_name(self, name: str) -> str:
        name = name.replace(",", ";")  # commas separate names in the header
        number = 1
        while (free := name if number == 1 else f"{name}#{number}") in self._handlers:
            number += 1
        return free

    def _check(self, pattern: object) -> None:
        if not isinstance(pattern, str) or not pattern:
            raise ConfigurationError(
                f"{self._where}: a pattern must be a text like 'orders.*', got {pattern!r}"
            )
        odd = lone_surrogate(pattern)
        if odd is not None or len(pattern.encode()) > _LONGEST:
            raise ConfigurationError(
                f"{self._where}: the pattern {pattern[:40]!r} "
                f"{odd or f'is longer than {_LONGEST} bytes'}"
            )
