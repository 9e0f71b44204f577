"""Event types: the key, description and payload type of an event.

The payload class remains an ordinary class. ``matador.codec`` encodes and decodes payloads.
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
    """A type of event: its key, description, payload type and aliases.

    ``metadata`` is added to every envelope. It overrides universal metadata; a send overrides it.
    With a ``metadata_type``, the merged metadata is checked against that type.
    """

    key: str
    description: str
    payload: type[Any]
    aliases: tuple[str, ...] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict[str, Any], compare=False)
    metadata_type: type[Any] | None = None

    @property
    def keys(self) -> tuple[str, ...]:
        """The key and all aliases."""
        return (self.key, *self.aliases)

    @property
    def typed_metadata(self) -> EventType | None:
        """The same event with its metadata as the payload, for a codec; None without a type."""
        kind = self.metadata_type
        return None if kind is None else EventType(self.key, self.description, kind)


def event(
    key: str,
    *,
    description: str,
    aliases: Iterable[str] = (),
    metadata: Mapping[str, Any] | type[Any] | None = None,
) -> Callable[[type[T]], type[T]]:
    """Declare a payload class as an event.

    The class may be a dataclass, a ``msgspec.Struct``, a pydantic model, an attrs class or a
    ``TypedDict``. It is marked and otherwise unchanged.

    Args:
        key: the name of the event on the wire, unique in a schema.
        description: what has happened.
        aliases: other keys that route to the event.
        metadata: a mapping that is added to every envelope; or a type, any that a payload may have,
            against which the metadata of each send is checked after merging. Keys that the type
            does not know, such as ``traceparent``, pass unless the type forbids them.

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

    type_ = metadata if isinstance(metadata, type) else None
    values: Mapping[str, Any] = {} if metadata is None or isinstance(metadata, type) else metadata
    if not isinstance(values, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance] - users
        raise ConfigurationError(
            f"event {key!r}: metadata must be a mapping or a type, got {metadata!r}"
        )

    def mark(payload: type[T]) -> type[T]:
        if not isinstance(payload, type):  # pyright: ignore[reportUnnecessaryIsInstance] - users
            raise ConfigurationError(
                f"event {key!r}: @event must decorate a class, got {payload!r}"
            )
        declared = EventType(key, description, payload, alias_keys, dict(values), type_)
        setattr(payload, _MARK, declared)
        return payload

    return mark


def is_event(payload: type[Any]) -> bool:
    """Whether the class itself is decorated with ``@event``."""
    return _mark_of(payload) is not None


def _mark_of(payload: type[Any]) -> EventType | None:
    found = vars(payload).get(_MARK) if isinstance(payload, type) else None  # pyright: ignore[reportUnnecessaryIsInstance] - users
    return found if isinstance(found, EventType) else None


def event_type_of(payload: type[Any]) -> EventType:
    """The event type of a payload class.

    Raises:
        InvalidEventError: the class itself is not decorated with ``@event``. A decorated base class
            does not count, because a subclass is another event.
    """
    found = _mark_of(payload)
    if found is not None:
        if found.payload is payload:
            return found
        # A decorator above @event, such as dataclass(slots=True), created a new class.
        moved = replace(found, payload=payload)
        setattr(payload, _MARK, moved)
        return moved
    name = getattr(payload, "__name__", repr(payload))
    raise InvalidEventError(
        f"{name} is not an event: decorate the class with @event('some.key', description='…')"
    )
