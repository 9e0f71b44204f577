"""Short forms of hooks: what metrics and traces do with nearly every message, in less time.

A hook that only counts does not need the envelope, and a trace that is not sampled needs no span.
Such hooks offer a short form of their calls. It is used where all hooks that would be called have
one, and never for a subclass that overrides the call itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias, TypeVar, cast

CountStored: TypeAlias = Callable[[], None]
"""Counts a message that was stored."""

CountSuccess: TypeAlias = Callable[[float, float], None]
"""Counts a message that was handled, with how long its callback ran, and how long it waited."""

ShortSend: TypeAlias = Callable[[], str | None]
ShortAttempt: TypeAlias = Callable[[Mapping[str, Any]], bool]

F = TypeVar("F", bound=Callable[..., None])
MakeCounter: TypeAlias = Callable[[str, str, str], F]
"""Makes what counts for one queue, event and subscriber."""


class CountsMessages(Protocol):
    """A hook whose ``on_enqueue_success`` and ``on_worker_success`` only count.

    What it returns is called instead of them, and must not fail.
    """

    def stored_counter(self, queue: str, event_key: str, subscriber: str) -> CountStored:
        """What counts the messages that are stored for a subscriber."""
        ...

    def success_counter(self, queue: str, event_key: str, subscriber: str) -> CountSuccess:
        """What counts the messages that a subscriber has handled."""
        ...


class SkipsMessages(Protocol):
    """A hook whose ``…_enter`` and ``…_exit`` have nothing to do with many messages."""

    def short_send(self) -> str | None:
        """The ``traceparent`` for a send that needs nothing else; None: ``on_send_enter`` is due.

        Called in the task of the sender, at the moment of the send.
        """
        ...

    def short_attempt(self, metadata: Mapping[str, Any]) -> bool:
        """Is nothing to be done around the attempt? False: ``on_worker_enter`` is due.

        Called in the context variables of the callback, in which it may set what it has to.
        """
        ...


def counter_maker(hooks: Sequence[object], replaced: str, name: str) -> MakeCounter[Any] | None:
    """What makes counters, if all hooks that override ``replaced`` have the short form ``name``."""
    makers = short_forms(hooks, (replaced,), name)
    if not makers:
        return None
    if len(makers) == 1:
        return makers[0]

    def make(queue: str, event_key: str, subscriber: str) -> Callable[..., None]:
        counters = [make_one(queue, event_key, subscriber) for make_one in makers]

        def count(*numbers: float) -> None:
            for one in counters:
                one(*numbers)

        return count

    return make


def short_forms(
    hooks: Sequence[object], replaced: Sequence[str], name: str
) -> list[Callable[..., Any]]:
    """The short forms of these hooks, all of which override ``replaced``; none if one has none."""
    found: list[Callable[..., Any]] = []
    for hook in hooks:
        home = _home(hook, name)
        if home is None or any(_home(hook, one) is not home for one in replaced):
            return []
        found.append(getattr(hook, name))
    return found


def _home(hook: object, name: str) -> type | None:
    """The class whose method this is; None if there is none, or the object has its own."""
    if name in cast("dict[str, Any]", getattr(hook, "__dict__", {})):
        return None
    return next((one for one in type(hook).__mro__ if name in vars(one)), None)
