"""Subscribers: the functions that handle events, and their options.

Running them is left to the runtime.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Generic, Literal, Protocol, TypeAlias, TypeVar, get_args, overload

from matador.errors import ConfigurationError
from matador.model.capabilities import DeliveryMode
from matador.model.envelope import Envelope, Importance
from matador.model.options import Seconds, optional_seconds, suggestion
from matador.model.signature import Signature, place_of, read_signature, unwrapped

T = TypeVar("T")

Idempotency: TypeAlias = Literal["yes", "no", "unknown", "resumable"]
"""Whether a subscriber may run again for the same message; ``resumable`` ones store their steps."""

Enabled: TypeAlias = Callable[[], bool | Awaitable[bool]]
Callback: TypeAlias = Callable[..., Any]


class Decider(Protocol):
    """A retry policy, as ``StandardRetryPolicy``; ``policy`` says more about it."""

    def decide(self, context: Any) -> Any:
        """Decide what to do with a message whose handler failed."""
        ...

    @property
    def max_deliveries(self) -> int:
        """How often a message may be delivered before it counts as poisoned."""
        ...


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
    timeout: float | None = None
    retry: Decider | None = field(default=None, compare=False)

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

    ``signature`` says what the callback takes. A plain one is an ``async def`` that takes only the
    envelope (``is_plain``), or only the payload (``is_bare``): calling it runs nothing yet.

    ``matador.pubsub.Subscriber`` is another class: the service that receives published messages.
    """

    callback: Callback = field(compare=False)
    signature: Signature = field(init=False, compare=False, repr=False)
    is_plain: bool = field(init=False)
    is_bare: bool = field(init=False)

    def __post_init__(self) -> None:
        _check_options(self)
        if not callable(self.callback):
            raise ConfigurationError(
                f"subscriber {self.name!r}: the callback must be callable, got {self.callback!r}"
            )
        read = _read(self.name, self.callback)
        only = read.only if read.is_coroutine_function else None
        object.__setattr__(self, "signature", read)
        object.__setattr__(self, "is_plain", only is not None and only.kind is Envelope)
        object.__setattr__(self, "is_bare", only is not None and only.kind is None)

    @property
    def takes_context(self) -> bool:
        """Whether the callback takes a context."""
        return self.signature.takes_context

    @property
    def is_async(self) -> bool:
        """Whether the callback is awaited. Others run in threads."""
        return self.signature.is_async

    def __call__(self, *arguments: Any) -> Any:
        """Call the callback directly, for example in a unit test."""
        return self.callback(*arguments)


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
    timeout: Seconds | None = None,
    retry: Decider | None = None,
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
    timeout: Seconds | None = None,
    retry: Decider | None = None,
) -> Callable[[Callable[..., Any]], Subscriber[Any]] | Subscriber[Any]:
    """Declare a function as a subscriber.

    The function takes the payload of the event (``order: OrderPlaced``) or its envelope
    (``envelope: Envelope[OrderPlaced]``), and a ``Context`` if it needs one, in any order; without
    types ``(envelope)`` or ``(envelope, ctx)``. It may be sync or async; a sync one runs in a
    thread and never blocks the event loop. The default name of the subscriber is that of the
    function, with dashes.

    Args:
        timeout: seconds that it may take; None: as its queue or the application says.
        retry: its own retry policy; None: that of the application.

    Example:
        >>> @subscriber(description="Email the receipt.", idempotent="yes")
        ... async def email_receipt(envelope: Envelope[dict]) -> None: ...
        >>> email_receipt.name
        'email-receipt'
    """

    def declare(function: Callable[..., Any]) -> Subscriber[Any]:
        named = name if name is not None else _dashed(function)
        return Subscriber(
            name=named,
            description=description,
            callback=function,
            idempotent=idempotent,
            importance=importance,
            queue=queue,
            enabled=enabled,
            delivery=delivery,
            timeout=optional_seconds(timeout, f"subscriber {named!r}: timeout", minimum=0.001),
            retry=retry,
        )

    return declare if callback is None else declare(callback)


def _dashed(function: Callable[..., Any]) -> str:
    inner = unwrapped(function)
    name = getattr(inner, "__name__", type(inner).__name__)
    return re.sub(r"_+", "-", name.strip("_"))


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


_TAKES = (
    "a subscriber takes the payload of its event or its Envelope[...], and a Context if it needs "
    "one, in any order: `async def handle(order: OrderPlaced, ctx: Context)`"
)


def _read(name: str, callback: Callback) -> Signature:
    where = f"subscriber {name!r}"
    read = read_signature(
        callback,
        where,
        way="events",
        takes=_TAKES,
        known=(Envelope,),
        carrier=Envelope,
        first=Envelope,
        resolved=False,  # the event says how its payload is read
    )
    if not read.parameters:
        raise ConfigurationError(
            f"{where}: its callback takes nothing; {_TAKES}{place_of(callback)}"
        )
    return read
