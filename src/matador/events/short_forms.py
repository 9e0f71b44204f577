"""Short forms of hooks: what metrics, traces and the journal do with nearly every message, in less
time.

A hook that counts or records does not need the objects that other hooks are called with, and a
trace that is not sampled needs no span. Such hooks offer a short form of their calls. It is used
where all hooks that would be called have one, and never for a subclass that overrides the call
itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import Context
from typing import Any, Protocol, TypeAlias, TypeVar, cast

from matador.events.plain import Plain
from matador.model.envelope import Docket, Envelope

TellStored: TypeAlias = Callable[[Envelope[Any] | Plain], None]
"""Told of a message that was stored."""

Success: TypeAlias = tuple[Docket, float, float, str, int]
"""A message that was handled: its docket, when its callback began, how long that ran, the id of the
envelope, and how often the message was delivered."""

TellSuccesses: TypeAlias = Callable[[Sequence[Success]], None]
"""Told of messages that were handled, once they are settled: of those of a batch at once."""

ShortSend: TypeAlias = Callable[[str | None, str], "str | Surrounding | None"]
ShortAttempt: TypeAlias = Callable[[Context, str, Docket, str, str], "Surrounding | bool"]

F = TypeVar("F", bound=Callable[..., None])
MakeShort: TypeAlias = Callable[[str, str, str, str], F]
"""Makes the short form for one queue, event, subscriber and transport."""


class TakesFacts(Protocol):
    """A hook whose ``on_enqueue_success`` and ``on_worker_success`` need only a few facts.

    What it returns is called instead of them, and must not fail.
    """

    def short_stored(
        self, queue: str, event_key: str, subscriber: str, transport: str
    ) -> TellStored:
        """What is told of the messages that are stored for a subscriber."""
        ...

    def short_success(
        self, queue: str, event_key: str, subscriber: str, transport: str
    ) -> TellSuccesses:
        """What is told of the messages that a subscriber has handled."""
        ...


class Surrounding(Protocol):
    """Something that has begun with a send or an attempt, and ends with it."""

    @property
    def traceparent(self) -> str:
        """What the messages of a send carry; of no use to an attempt."""
        ...

    def finish(self, error: BaseException | None, /) -> None:
        """The send or the attempt has ended, with ``error`` if it failed. Called once."""
        ...


class SkipsMessages(Protocol):
    """A hook whose ``…_enter`` and ``…_exit`` have little to do with many messages."""

    def short_send(self, event_key: str | None, transport: str) -> str | Surrounding | None:
        """The ``traceparent`` for a send that needs nothing else, or what is finished with the
        send; None: ``on_send_enter`` is due.

        ``event_key`` is None for a batch, which is never surrounded. Called in the task of the
        sender, at the moment of the send, as ``finish`` is at its end.
        """
        ...

    def short_attempt(
        self, variables: Context, message_id: str, docket: Docket, queue: str, transport: str
    ) -> Surrounding | bool:
        """True if nothing is to be done around the attempt, or what is finished with it; False:
        ``on_worker_enter`` is due.

        ``variables`` are those of the callback: what has to be set is set in them.
        """
        ...


def short_maker(hooks: Sequence[object], replaced: str, name: str) -> MakeShort[Any] | None:
    """What makes the short form ``name``, if all hooks that override ``replaced`` have one."""
    makers = short_forms(hooks, (replaced,), name)
    if not makers:
        return None
    if len(makers) == 1:
        return makers[0]

    def make(queue: str, event_key: str, subscriber: str, transport: str) -> Callable[[Any], None]:
        told = [make_one(queue, event_key, subscriber, transport) for make_one in makers]

        def tell(facts: Any) -> None:
            for one in told:
                one(facts)

        return tell

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
