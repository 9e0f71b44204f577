"""The schema: which subscribers receive which event. Immutable; checked as a whole."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias, is_typeddict

from matador.errors import (
    ConfigurationError,
    EventNotRegisteredError,
    InvalidSchemaError,
    SubscriberIsStubError,
    SubscriberNotRegisteredError,
)
from matador.model.event import EventType, event_type_of, is_event
from matador.model.options import suggestion
from matador.model.signature import is_anything, place_of
from matador.model.subscriber import AnySubscriber, Subscriber, SubscriberStub
from matador.model.topology import Topology

EventRef: TypeAlias = "type[Any] | str | EventType"


class Schema:
    """Maps event types to their subscribers.

    Look-ups take a payload class, a key or an alias. ``validate`` lists every problem;
    ``check`` raises them.

    Example:
        >>> schema = Schema({OrderPlaced: [email_receipt, charge]})
        >>> schema = schema.with_plugin(audit, exclude=[ChatMessageSent])
        >>> [s.name for s in schema.subscribers("order.placed")]
        ['email-receipt', 'charge', 'audit']
    """

    __slots__ = ("_by_key", "_entries")

    def __init__(self, events: Mapping[type[Any], Sequence[AnySubscriber]] | None = None) -> None:
        self._entries: tuple[tuple[EventType, tuple[AnySubscriber, ...]], ...] = tuple(
            (event_type_of(payload), _subscribers(payload.__name__, given))
            for payload, given in (events or {}).items()
        )
        self._index()

    def with_event(
        self, payload: type[Any], subscribers: Sequence[AnySubscriber], *, override: bool = False
    ) -> Schema:
        """A schema with one more event. With ``override``, it replaces one with the same key.

        Raises:
            InvalidSchemaError: the key is already used and ``override`` is not set.
        """
        added = event_type_of(payload)
        taken = added.key in self._by_key
        if taken and not override:
            raise InvalidSchemaError(
                [f"event key {added.key!r} is already registered (override=True replaces it)"]
            )
        kept = tuple(entry for entry in self._entries if entry[0].key != added.key)
        return self._made((*kept, (added, _subscribers(payload.__name__, subscribers))))

    def with_plugin(self, plugin: AnySubscriber, *, exclude: Iterable[EventRef] = ()) -> Schema:
        """A schema with one more subscriber for every event except those excluded.

        Raises:
            EventNotRegisteredError: an excluded event is not in the schema.
            InvalidSchemaError: the plugin is not a subscriber.
        """
        if isinstance(exclude, str | type | EventType):
            raise ConfigurationError(f"with_plugin: exclude must be a list; write [{exclude!r}]")
        _subscribers("with_plugin", [plugin])
        left_out = {self.event(event).key for event in exclude}
        return self._made(
            tuple(
                (event, subscribers if event.key in left_out else (*subscribers, plugin))
                for event, subscribers in self._entries
            )
        )

    @property
    def events(self) -> tuple[EventType, ...]:
        """All event types, in the given order."""
        return tuple(event for event, _ in self._entries)

    def __iter__(self) -> Iterator[tuple[EventType, tuple[AnySubscriber, ...]]]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, event: EventRef) -> bool:
        return self.find(event) is not None

    def __repr__(self) -> str:
        return f"Schema({', '.join(event.key for event in self.events)})"

    def find(self, event: EventRef) -> EventType | None:
        """The event type by payload class, key or alias, or None."""
        if isinstance(event, type) and not is_event(event):
            return None
        entry = self._by_key.get(_key(event))
        return entry[0] if entry else None

    def event(self, event: EventRef) -> EventType:
        """The event type by payload class, key or alias.

        Raises:
            EventNotRegisteredError: there is none; the message suggests a similar one.
            InvalidEventError: the class is not an event.
        """
        found = self.find(event)
        if found is None:
            key = _key(event)
            raise EventNotRegisteredError(
                f"event {key!r} is not in the schema{suggestion(key, self._by_key)}"
            )
        return found

    def subscribers(self, event: EventRef) -> tuple[AnySubscriber, ...]:
        """The subscribers of an event, stubs included; empty if the event is unknown."""
        entry = self._by_key.get(_key(event))
        return entry[1] if entry else ()

    def find_subscriber(self, event: EventRef, name: str) -> AnySubscriber | None:
        """One subscriber, stub or not, or None."""
        return next((one for one in self.subscribers(event) if one.name == name), None)

    def subscriber(self, event: EventRef, name: str) -> Subscriber[Any]:
        """One subscriber that can run here.

        Raises:
            EventNotRegisteredError: the schema has no such event.
            SubscriberNotRegisteredError: the event has no such subscriber.
            SubscriberIsStubError: its code is in another service.
        """
        known = self.event(event)
        found = self.find_subscriber(known, name)
        if found is None:
            names = [candidate.name for candidate in self.subscribers(known)]
            raise SubscriberNotRegisteredError(
                f"event {known.key!r} has no subscriber {name!r}{suggestion(name, names)}"
            )
        if isinstance(found, SubscriberStub):
            raise SubscriberIsStubError(
                f"subscriber {name!r} of {known.key!r} is a stub and cannot be run here"
            )
        return found

    def validate(self, topology: Topology | None = None) -> list[str]:
        """A list of all problems; empty if the schema is valid."""
        problems: list[str] = []
        problems.extend(_key_problems(self.events))
        for event, subscribers in self._entries:
            where = f"event {event.key!r}"
            if not event.description.strip():
                problems.append(f"{where}: the description is empty")
            for what, kind in (("", event.payload), ("metadata: ", event.metadata_type)):
                if kind is not None and not _is_payload(kind):
                    problems.append(
                        f"{where}: {what}{kind.__name__} is a plain class{place_of(kind)}; make it "
                        f"a dataclass, a msgspec.Struct, a pydantic model, an attrs class or a "
                        f"TypedDict"
                    )
            problems.extend(_payload_problems(where, event, subscribers))
            problems.extend(_subscriber_problems(where, subscribers, topology))
        return problems

    def warnings(self) -> list[str]:
        """A list of possible mistakes: events that have no subscriber, or only stubs."""
        found: list[str] = []
        for event, subscribers in self._entries:
            if not subscribers:
                found.append(f"event {event.key!r} has no subscribers")
            elif all(isinstance(one, SubscriberStub) for one in subscribers):
                found.append(f"event {event.key!r} has only stubs")
        return found

    def check(self, topology: Topology | None = None) -> None:
        """Raise an error if there are problems.

        Raises:
            InvalidSchemaError: lists every problem.
        """
        problems = self.validate(topology)
        if problems:
            raise InvalidSchemaError(problems)

    def _made(self, entries: tuple[tuple[EventType, tuple[AnySubscriber, ...]], ...]) -> Schema:
        schema = Schema()
        schema._entries = entries
        schema._index()
        return schema

    def _index(self) -> None:
        self._by_key: dict[str, tuple[EventType, tuple[AnySubscriber, ...]]] = {}
        for entry in self._entries:  # keys first: an alias never hides a key
            self._by_key.setdefault(entry[0].key, entry)
        for entry in self._entries:
            for alias in entry[0].aliases:
                self._by_key.setdefault(alias, entry)


def _key(event: EventRef) -> str:
    if isinstance(event, str):
        return event
    return event.key if isinstance(event, EventType) else event_type_of(event).key


def _subscribers(where: str, given: Sequence[AnySubscriber]) -> tuple[AnySubscriber, ...]:
    if isinstance(given, Subscriber | SubscriberStub):
        raise InvalidSchemaError([f"{where}: subscribers must be a list; write [{given.name}]"])
    wrong = [one for one in given if not isinstance(one, Subscriber | SubscriberStub)]  # pyright: ignore[reportUnnecessaryIsInstance] - users
    if wrong:
        raise InvalidSchemaError(
            [
                f"{where}: {getattr(one, '__name__', repr(one))} is not a subscriber; decorate it "
                f"with @subscriber(description='…')"
                for one in wrong
            ]
        )
    return tuple(given)


def _key_problems(events: Sequence[EventType]) -> Iterator[str]:
    keys = Counter(event.key for event in events)
    for key, times in keys.items():
        if not key.strip():
            yield "an event has an empty key"
        if times > 1:
            yield f"event key {key!r} is used by {times} events"
    owner: dict[str, str] = {}
    for event in events:
        for alias in event.aliases:
            where = f"event {event.key!r}: alias {alias!r}"
            if not alias.strip():
                yield f"event {event.key!r}: an alias is empty"
            elif alias in keys:
                own = alias == event.key
                yield f"{where} " + ("repeats its own key" if own else "is the key of an event")
            elif (other := owner.get(alias)) == event.key:
                yield f"duplicate alias {alias!r} of event {event.key!r}"
            elif other is not None:
                yield f"{where} is also an alias of event {other!r}"
            owner.setdefault(alias, event.key)


def _is_payload(payload: type[Any]) -> bool:
    marks = (
        "__dataclass_fields__",
        "__struct_fields__",
        "__attrs_attrs__",
        "__pydantic_validator__",
    )
    return is_typeddict(payload) or any(hasattr(payload, mark) for mark in marks)


def _payload_problems(
    where: str, event: EventType, subscribers: Sequence[AnySubscriber]
) -> Iterator[str]:
    """Subscribers whose callback takes another event."""
    for one in subscribers:
        if isinstance(one, SubscriberStub):
            continue
        payload, signature = event.payload, one.signature
        if not signature.types or any(_holds(kind, payload) for kind in signature.types):
            continue
        names = " | ".join(getattr(kind, "__name__", str(kind)) for kind in signature.types)
        takes, wanted = names, payload.__name__
        if all(parameter.kind is not None for parameter in signature.parameters):
            takes, wanted = f"Envelope[{names}]", f"Envelope[{wanted}]"
        yield (
            f"{where}, subscriber {one.name!r}: its callback takes {takes}, not {wanted}"
            f"{place_of(one.callback)}"
        )


def _holds(kind: Any, payload: type[Any]) -> bool:
    """Whether a parameter of a type accepts a payload. True for types that cannot be compared."""
    if kind is payload or is_anything(kind):
        return True
    if not isinstance(kind, type) or getattr(kind, "_is_protocol", False):
        return True
    if is_typeddict(kind):
        return not is_event(kind) and is_typeddict(payload)
    try:
        return issubclass(payload, kind)
    except TypeError:
        return True


def _subscriber_problems(
    where: str, subscribers: Sequence[AnySubscriber], topology: Topology | None
) -> Iterator[str]:
    for name, times in Counter(one.name for one in subscribers).items():
        if times > 1:
            yield f"{where}: {times} subscribers are called {name!r}"
    for one in subscribers:
        for option, text in (("name", one.name), ("description", one.description)):
            if not text.strip():
                yield f"{where}, subscriber {one.name!r}: the {option} is empty"
        if topology is not None and one.queue is not None and not topology.has_queue(one.queue):
            known = [queue.name for queue in topology.queues]
            yield (
                f"{where}, subscriber {one.name!r}: queue {one.queue!r} is not in the topology "
                f"({', '.join(known)}){suggestion(one.queue, known)}"
            )
