"""Runs a coroutine in a context of its own without making a task of it.

Slots live long and run one message after the other; what a callback sets in a context variable
(a tenant, a log binding) must not be there for the next message.
"""

from __future__ import annotations

from collections.abc import Coroutine, Generator
from contextvars import copy_context
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class InOwnContext(Generic[T]):
    """``await InOwnContext(coroutine)``: as ``await coroutine``, its context variables its own."""

    __slots__ = ("_coroutine",)

    def __init__(self, coroutine: Coroutine[Any, Any, T]) -> None:
        self._coroutine = coroutine

    def __await__(self) -> Generator[Any, Any, T]:
        coroutine = self._coroutine
        run = copy_context().run
        try:
            step = run(coroutine.send, None)
            while True:
                try:
                    received = yield step
                except BaseException as error:  # noqa: BLE001 - GeneratorExit, too: see below
                    # It may be ours (closed), or what an awaited future has as its exception.
                    step = run(coroutine.throw, error)
                else:
                    step = run(coroutine.send, received)
        except StopIteration as done:
            return done.value
