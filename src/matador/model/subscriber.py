"""Subscribers: the functions that handle events, and their options.

Running them is left to the runtime.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Awaitable, Callable
from dataclasses import KW_ONLY, dataclass, field
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
"""May a subscriber run again for the same message? ``resumable`` ones store their steps."""

Enabled: TypeAlias = Callable[[], bool | Awaitable[bool]]
Callback: TypeAlias = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class _Declared:
    """The options that subscribers and stubs share."""

    name: str
    _: KW_ONLY
    description: str
    idempotent: Idempotency = "unknown"
    importance: Importance = "should-investigate"
    queue: str | None = None
    enabled: Enabled | None = field(default=None, compare=False)
    delivery: DeliveryMode | None = None

    def __post_init__(self) -> None:
        _check_options(self)


@dataclass(frozen=True, slots=True)
class SubscriberStub(_Declared):
    """A subscriber whose code is in another service: events are sent to it, but not handled here.

    Example:
        >>> ship = SubscriberStub("ship", description="Ship the parcel.", queue="warehouse")
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscriber(_Declared, Generic[T]):
    """A subscriber with its callback, created by ``@subscriber``. Calling it calls the callback.

    ``takes_context``, ``is_async`` and ``is_plain`` describe the callback; a plain one is an
    ``async def`` that takes only the envelope, so that calling it runs nothing yet.
    """

    callback: Callback = field(compare=False)
    takes_context: bool = field(init=False)
    is_async: bool = field(init=False)
    is_plain: bool = field(init=False)

    def __post_init__(self) -> None:
        _check_options(self)
        if not callable(self.callback):
            raise ConfigurationError(
                f"subscriber {self.name!r}: the callback must be callable, got {self.callback!r}"
            )
        _check_no_generator(self.name, self.callback)
        takes_context = _takes_context(self.name, self.callback)
        object.__setattr__(self, "takes_context", takes_context)
        object.__setattr__(self, "is_async", _is_async(self.callback))
        object.__setattr__(self, "is_plain", not takes_context and _is_async_def(self.callback))

    def __call__(self, envelope: Envelope[T], *context: Any) -> Any:
        """Call the callback directly, for example in a unit test."""
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
    """Declare a function as a subscriber.

    The function takes ``(envelope)`` or ``(envelope, ctx)`` and may be sync or async; a sync one
    runs in a thread and never blocks the event loop. The default name of the subscriber is that of
    the function, with dashes.

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


def _check_options(one: _Declared) -> None:
    where = f"subscriber {one.name!r}"
    texts = {"a subscriber's name": one.name, f"{where}: the description": one.description}
    if one.queue is not None:
        texts[f"{where}: queue"] = one.queue
    for what, text in texts.items():
        if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance] - users
            raise ConfigurationError(f"{what} must be a string, got {text!r}")
    if one.enabled is not None and not callable(one.enabled):
        raise ConfigurationError(
            f"{where}: enabled must be a function, got {one.enabled!r}; "
            f"write enabled=lambda: {one.enabled!r}"
        )
    for option, value, choices in (
        ("idempotent", one.idempotent, get_args(Idempotency)),
        ("importance", one.importance, get_args(Importance)),
        ("delivery", one.delivery, (*get_args(DeliveryMode), None)),
    ):
        if value not in choices:
            allowed = ", ".join(repr(choice) for choice in choices)
            raise ConfigurationError(
                f"{where}: {option}={value!r} is not one of {allowed}"
                f"{suggestion(str(value), [str(choice) for choice in choices])}"
            )


def _takes_context(name: str, callback: Callback) -> bool:
    try:
        parameters = inspect.signature(callback).parameters.values()
    except (TypeError, ValueError):  # a builtin without a signature: takes the envelope
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
            f"subscriber {name!r}: the callback contains `yield`, so calling it would not run it"
            f"{place_of(callback)}"
        )


def place_of(defined: Any) -> str:
    """Where a function or class is defined, as `` (file.py:12)``; empty if unknown."""
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
    """The payload types in the callback's annotation: A and B for ``Envelope[A | B]``.

    Empty if there is no annotation, or if it cannot be resolved.
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
    except Exception:  # noqa: BLE001 - unresolvable names may raise anything
        return ()
    hint = hints[first.name]
    if get_origin(hint) is not Envelope:
        return ()
    (held,) = get_args(hint)
    return get_args(held) if get_origin(held) in (Union, UnionType) else (held,)
