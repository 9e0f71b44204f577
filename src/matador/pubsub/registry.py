"""The handlers of a subscriber, by pattern."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from matador.errors import ConfigurationError
from matador.model.message import Delivery
from matador.model.text import lone_surrogate
from matador.model.topology import Exchange
from matador.runtime.functions import MessageFunction, read_function
from matador.runtime.messages import (
    FAILED_HANDLERS,
    MessageContext,
    MessageRoute,
    routing_key_of,
)
from matador.runtime.way import Route
from matador.transports.kit.routing import RoutingTable

_LONGEST = 255  # bytes of a pattern, in AMQP
_MOST_KEYS = 10_000


class SeveralRoute(Route, frozen=True, kw_only=True):
    """The route to several handlers of one message."""

    handlers: tuple[MessageRoute, ...]


class Registry:
    """Handlers by pattern. The type of the exchange defines how patterns match.

    The name of a handler identifies it among the handlers of the subscriber. It is in the headers
    of a message whose handlers have failed, so that only these run again. ``together``: call a
    single handler in the same way as several.
    """

    def __init__(self, exchange: Exchange, where: str, *, together: bool) -> None:
        self._exchange = exchange
        self._where = where
        self._together = together
        self._table = RoutingTable()
        self._table.declare(exchange)
        self._handlers: dict[str, MessageRoute] = {}
        self._names: dict[int, str] = {}
        self._patterns: dict[str, dict[str, None]] = {}
        self._found: dict[str, MessageRoute | SeveralRoute | None] = {}

    @property
    def patterns(self) -> Sequence[str]:
        """All patterns, each once, in the order of their registration."""
        return list(self._patterns)

    @property
    def bindings(self) -> Sequence[tuple[str, MessageRoute]]:
        """Each pattern with each of its handlers, in the order of their registration."""
        return [
            (pattern, self._handlers[name])
            for pattern, names in self._patterns.items()
            for name in names
        ]

    @property
    def handlers(self) -> Sequence[MessageRoute]:
        """All handlers, each once, in the order of their registration."""
        return list(self._handlers.values())

    def add(
        self,
        pattern: str,
        function: Callable[..., Any],
        route: Callable[[MessageFunction], MessageRoute],
    ) -> None:
        """Register a function for matching messages. A function that is added twice is one handler.

        ``route`` makes its route.

        Raises:
            ConfigurationError: the pattern or the function is not valid.
        """
        self._check(pattern)
        name = self._names.get(id(function))
        if name is None:
            where = f"{self._where}, handler of {pattern!r}"
            made = route(read_function(function, where, context=MessageContext))
            name = self._free_name(made.handler)
            self._handlers[name] = msgspec.structs.replace(made, handler=name)
            self._names[id(function)] = name  # the handler keeps the function, so the id stays
        self._patterns.setdefault(pattern, {})[name] = None
        self._table.bind(self._exchange.name, name, pattern)
        self._found.clear()

    def route(self, routing_key: str) -> MessageRoute | SeveralRoute | None:
        """The route of a message; None: no handler matches."""
        try:
            return self._found[routing_key]
        except KeyError:
            pass
        names = set(self._table.queues(self._exchange.name, routing_key))
        matching = tuple(one for name, one in self._handlers.items() if name in names)
        found = None
        if len(matching) == 1 and not self._together:
            found = matching[0]
        elif matching:
            found = _several(matching)
        if len(self._found) >= _MOST_KEYS:
            self._found.clear()
        self._found[routing_key] = found
        return found

    def routes_of(self, delivery: Delivery) -> Sequence[MessageRoute]:
        """The handlers to run for a message: all that match, or those that failed before."""
        found = self.route(routing_key_of(delivery))
        if not isinstance(found, SeveralRoute):
            return () if found is None else (found,)
        failed = str(delivery.headers.get(FAILED_HANDLERS, "")).split(",")
        return [one for one in found.handlers if one.handler in failed] or found.handlers

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


def _several(handlers: tuple[MessageRoute, ...]) -> SeveralRoute:
    """The message may run again if one handler may; the others are refused individually."""
    kinds = {one.idempotent for one in handlers}
    return SeveralRoute(
        handler=", ".join(one.handler for one in handlers),
        idempotent=next(kind for kind in ("resumable", "yes", "unknown", "no") if kind in kinds),
        at_most_once=any(one.at_most_once for one in handlers),
        takes_context=any(one.takes_context for one in handlers),
        handlers=handlers,
    )
