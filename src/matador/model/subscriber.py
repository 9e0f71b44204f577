"""Subscribers: who reacts to an event, and what may be assumed of them.

Running a subscriber is the runtime's job; here it is only described.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from types import UnionType
from typing import (
    Any,
    Generic,
    Literal,
    TypeAlias,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    overload,
)

from matador.errors import ConfigurationError
from matador.model.capabilities import DeliveryMode
from matador.model.envelope import Envelope, Importance
from matador.model.options import suggestion

T = TypeVar("T")

Idempotency: TypeAlias = Literal["yes", "no", "unknown", "resumable"]
"""May a subscriber run again for the same message? ``resumable`` ones remember their steps."""

Enabled: TypeAlias = Callable[[], bool | Awaitable[bool]]
Callback: TypeAlias = Callable[..., Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriberStub:
    """A subscriber whose code lives in another service: dispatched to from here, never run here.

    Example:
        >>> ship = SubscriberStub("ship", description="Ship the parcel.", queue="warehouse")
    """

    name: str
    description: str
    idempotent: Idempotency = "unknown"
    importance: Importance = "should-investigate"
    queue: str | None = None
    enabled: Enabled | None = field(default=None, compare=False)
    delivery: DeliveryMode | None = None

    def __init__(
        self,
        name: str,
        *,
        description: str,
        queue: str | None = None,
        idempotent: Idempotency = "unknown",
        importance: Importance = "should-investigate",
        enabled: Enabled | None = None,
        delivery: DeliveryMode | None = None,
    ) -> None:
        _check_texts(name, description, queue)
        _check_choices(name, idempotent, importance, delivery)
        _check_enabled(name, enabled)
        for attribute, value in (
            ("name", name),
            ("description", description),
            ("queue", queue),
            ("idempotent", idempotent),
            ("importance", importance),
            ("enabled", enabled),
            ("delivery", delivery),
        ):
            object.__setattr__(self, attribute, value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscriber(Generic[T]):
    """A subscriber with its callback. Made by ``@subscriber``; call it to call the function.

    ``takes_context``, ``is_async`` and ``is_plain`` (an ``async def`` of the envelope alone, so
    that calling it runs nothing yet) are read off the callback once, here.
    """

    name: str
    description: str
    callback: Callback = field(compare=False)
    idempotent: Idempotency = "unknown"
    importance: Importance = "should-investigate"
    queue: str | None = None
    enabled: Enabled | None = field(default=None, compare=False)
    delivery: DeliveryMode | None = None
    takes_context: bool = field(init=False)
    is_async: bool = field(init=False)
    is_plain: bool = field(init=False)

    def __post_init__(self) -> None:
        _check_texts(self.name, self.description, self.queue)
        _check_choices(self.name, self.idempotent, self.importance, self.delivery)
        _check_enabled(self.name, self.enabled)
        if not callable(self.callback):
            raise ConfigurationError(
                f"subscriber {self.name!r}: the callback must be callable, got {self.callback!r}"
            )
        _check_no_generator(self.name, self.callback)
        object.__setattr__(self, "takes_context", _takes_context(self.name, self.callback))
        object.__setattr__(self, "is_async", _is_async(self.callback))
        plain = not self.takes_context and _is_async_def(self.callback)
        object.__setattr__(self, "is_plain", plain)

    def __call__(self, envelope: Envelope[T], *context: Any) -> Any:
        """Call the callback directly, as a unit test would."""
        return self.callback(envelope, *context)


AnySubscriber: TypeAlias = Subscriber[Any] | SubscriberStub


@overload
def subscriber(
    *,
    description: str,
    name: str | None = None,
    idempotent: Idempotency = "unknown",
    importance: Importance = "should-investigate",
    queue: str | None = None,
    enabled: Enabled | None = None,
    delivery: DeliveryMode | None = None,
) -> Callable[[Callable[..., Any]], Subscriber[Any]]: ...
@overload
def subscriber(callback: Callable[..., Any], /, *, description: str) -> Subscriber[Any]: ...
def subscriber(
    callback: Callable[..., Any] | None = None,
    /,
    *,
    description: str,
    name: str | None = None,
    idempotent: Idempotency = "unknown",
    importance: Importance = "should-investigate",
    queue: str | None = None,
    enabled: Enabled | None = None,
    delivery: DeliveryMode | None = None,
) -> Callable[[Callable[..., Any]], Subscriber[Any]] | Subscriber[Any]:
    """Declare a function to be a subscriber.

    The function takes ``(envelope)`` or ``(envelope, ctx)`` and may be sync or async; a sync one
    runs in a thread and never blocks the event loop. Its name, with dashes, names the subscriber.

    Example:
        >>> @subscriber(description="Email the receipt.", idempotent="yes")
        ... async def email_receipt(envelope: Envelope[dict]) -> None: ...
        >>> email_receipt.name
        'email-receipt'
    """

    def declare(function: Callable[..., Any]) -> Subscriber[Any]:
        return Subscriber(
            name=name if name is not None else _dashed(function),
            description=description,
            callback=function,
            idempotent=idempotent,
            importance=importance,
            queue=queue,
            enabled=enabled,
            delivery=delivery,
        )

    return declare if callback is None else declare(callback)


def _dashed(function: Callable[..., Any]) -> str:
    inner = _without_partial(function)
    name = getattr(inner, "__name__", type(inner).__name__)
    return re.sub(r"_+", "-", name.strip("_"))


def _without_partial(function: Callable[..., Any]) -> Callable[..., Any]:
    while isinstance(function, functools.partial):
        function = function.func
    return function


def _check_texts(name: object, description: object, queue: object) -> None:
    if not isinstance(name, str):
        raise ConfigurationError(f"a subscriber's name must be a string, got {name!r}")
    if not isinstance(description, str):
        raise ConfigurationError(
            f"subscriber {name!r}: the description must be a string, got {description!r}"
        )
    if queue is not None and not isinstance(queue, str):
        raise ConfigurationError(
            f"subscriber {name!r}: queue must be the name of a queue, got {queue!r}"
        )


def _check_enabled(name: str, enabled: object) -> None:
    if enabled is not None and not callable(enabled):
        raise ConfigurationError(
            f"subscriber {name!r}: enabled must be a function, got {enabled!r}; "
            f"write enabled=lambda: {enabled!r}"
        )


def _check_choices(name: str, idempotent: object, importance: object, delivery: object) -> None:
    for option, value, choices in (
        ("idempotent", idempotent, get_args(Idempotency)),
        ("importance", importance, get_args(Importance)),
        ("delivery", delivery, (*get_args(DeliveryMode), None)),
    ):
        if value not in choices:
            allowed = ", ".join(repr(choice) for choice in choices)
            raise ConfigurationError(
                f"subscriber {name!r}: {option}={value!r} is not one of {allowed}"
                f"{suggestion(str(value), [str(choice) for choice in choices])}"
            )


def _takes_context(name: str, callback: Callback) -> bool:
    try:
        parameters = inspect.signature(callback).parameters.values()
    except (TypeError, ValueError):  # a builtin without a signature: the envelope alone
        return False
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    required = [p for p in positional if p.default is p.empty]
    any_number = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    missed = any(p.kind is p.KEYWORD_ONLY and p.default is p.empty for p in parameters)
    if missed or len(required) > 2 or not (positional or any_number):
        raise ConfigurationError(
            f"subscriber {name!r}: the callback must take (envelope) or (envelope, ctx), "
            f"but its signature is {inspect.signature(callback)}{place_of(callback)}"
        )
    if len(required) == 2 or any_number:
        return True
    return len(positional) >= 2 and positional[1].name in ("ctx", "context")


def _is_async(callback: Callback) -> bool:
    function = _without_partial(callback)
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004 - an object with an async __call__
    )


def _is_async_def(callback: Callback) -> bool:
    return inspect.isfunction(callback) and bool(callback.__code__.co_flags & inspect.CO_COROUTINE)


def _check_no_generator(name: str, callback: Callback) -> None:
    function = _without_partial(callback)
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ConfigurationError(
            f"subscriber {name!r}: the callback has a `yield`, so calling it would run nothing"
            f"{place_of(callback)}"
        )


def place_of(defined: Any) -> str:
    """Where a function or a class is defined, as `` (file.py:12)``; empty if that is unknown."""
    function = defined if isinstance(defined, type) else _without_partial(defined)
    code = getattr(inspect.unwrap(function), "__code__", None)
    if code is not None:
        return f" ({code.co_filename}:{code.co_firstlineno})"
    try:
        target = function if isinstance(function, type) else type(function)
        _, line = inspect.getsourcelines(target)
        return f" ({inspect.getsourcefile(target)}:{line})"
    except (OSError, TypeError):
        return ""


def envelope_types(callback: Callback) -> tuple[Any, ...]:
    """What the callback says its envelopes hold: ``Envelope[A | B]`` gives A and B.

    Empty if it says nothing, or nothing that can be looked up now.
    """
    function = _without_partial(callback)
    if not inspect.isroutine(function):
        function = type(function).__call__
    try:
        hints = get_type_hints(function)
        first = next(
            one
            for one in inspect.signature(function).parameters.values()
            if one.name in hints and one.name != "self"
        )
    except Exception:  # noqa: BLE001 - names that are not there at run time, whatever they raise
        return ()
    hint = hints[first.name]
    if get_origin(hint) is not Envelope:
        return ()
    (held,) = get_args(hint)
    return get_args(held) if get_origin(held) in (Union, UnionType) else (held,)
