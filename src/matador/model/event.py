"""Event types: what happened, under which key, and the type of its payload.

An event type is a description; the payload class stays an ordinary class of the user's. Decoding
and encoding payloads is left to ``matador.codec``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from matador.errors import ConfigurationError, InvalidEventError

T = TypeVar("T")

_MARK = "__matador_event__"


@dataclass(frozen=True, slots=True)
class EventType:
    """One kind of event: its key, what it means, other keys it is known by, its payload type.

    ``metadata`` goes with every envelope of it, over universal metadata and under that of a send.
    """

    key: str
    description: str
    payload: type[Any]
    aliases: tuple[str, ...] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict[str, Any], compare=False)

    @property
    def keys(self) -> tuple[str, ...]:
        """The key and all aliases."""
        return (self.key, *self.aliases)


def event(
    key: str,
    *,
    description: str,
    aliases: Iterable[str] = (),
    metadata: Mapping[str, Any] | None = None,
) -> Callable[[type[T]], type[T]]:
    """Declare a payload class to be an event.

    The class may be a dataclass, a ``msgspec.Struct``, a pydantic model, an attrs class or a
    ``TypedDict``; it is returned unchanged but for a mark.

    Example:
        >>> from dataclasses import dataclass
        >>> from matador import event
        >>> @event("order.placed", description="A customer placed an order.")
        ... @dataclass(frozen=True)
        ... class OrderPlaced:
        ...     order_id: str
    """
    for what, text in (("key", key), ("description", description)):
        if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance] - users
            raise ConfigurationError(f"@event: the {what} must be a string, got {text!r}")
    if isinstance(aliases, str):
        raise ConfigurationError(
            f"event {key!r}: aliases must be a list of keys, not one string; "
            f"write aliases=[{aliases!r}]"
        )
    alias_keys = tuple(aliases)
    for alias in alias_keys:
        if not isinstance(alias, str):  # pyright: ignore[reportUnnecessaryIsInstance] - users
            raise ConfigurationError(f"event {key!r}: an alias must be a string, got {alias!r}")

    def mark(payload: type[T]) -> type[T]:
        if not isinstance(payload, type):  # pyright: ignore[reportUnnecessaryIsInstance] - users
            raise ConfigurationError(f"event {key!r}: @event goes on a class, not on {payload!r}")
        declared = EventType(key, description, payload, alias_keys, dict(metadata or {}))
        setattr(payload, _MARK, declared)
        return payload

    return mark


def is_event(payload: type[Any]) -> bool:
    """Has the class an ``@event`` of its own?"""
    return _mark_of(payload) is not None


def _mark_of(payload: type[Any]) -> EventType | None:
    found = vars(payload).get(_MARK) if isinstance(payload, type) else None  # pyright: ignore[reportUnnecessaryIsInstance] - users
    return found if isinstance(found, EventType) else None


def event_type_of(payload: type[Any]) -> EventType:
    """The event type that a payload class was declared with.

    Raises:
        InvalidEventError: the class has no ``@event`` of its own (one of a base class does not
            count: a subclass is another event).
    """
    found = _mark_of(payload)
    if found is not None:
        if found.payload is payload:
            return found
        # A decorator above @event made a new class of it (dataclass(slots=True) does).
        moved = replace(found, payload=payload)
        setattr(payload, _MARK, moved)
        return moved
    name = getattr(payload, "__name__", repr(payload))
    raise InvalidEventError(
        f"{name} is not an event: decorate the class with @event('some.key', description='…')"
    )
