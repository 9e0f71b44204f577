"""The steps of one run of a resumable handler: each runs once, and its result is stored.

Later attempts get the same result, with the same types.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

from matador.errors import (
    ConfigurationError,
    DuplicateStepKeyError,
    UnreadableStepValueError,
    UnstorableStepValueError,
)
from matador.runtime.checkpoints import CheckpointStore
from matador.runtime.countdown import Countdown
from matador.runtime.hooks import CheckpointEvent, HookSet
from matador.runtime.step_values import dump_value, load_value
from matador.runtime.stores import patiently

log = logging.getLogger("matador.worker")

_PATIENCE = 10.0  # seconds until a message goes back to its queue because the store is unavailable
_PERMANENT = (TypeError, ValueError, OverflowError, UnstorableStepValueError)

MISSING: Any = object()
"""The result of ``Steps.recall`` for a step that has not run."""


class Steps:
    """Recalls and records the steps of one run. Used from the event loop."""

    __slots__ = (
        "_envelope_id",
        "_hooks",
        "_known",
        "_prefix",
        "_store",
        "_subscriber",
        "_used",
        "countdown",
    )

    def __init__(
        self, store: CheckpointStore, hooks: HookSet, envelope_id: str, subscriber: str
    ) -> None:
        self._store = store
        self._hooks = hooks
        self._envelope_id = envelope_id
        self._subscriber = subscriber
        self._known: Mapping[str, bytes] = {}
        self._used: set[str] = set()
        self._prefix = ""
        self.countdown: Countdown | None = None
        """The time limit of the handler."""

    def of(self, handler: str) -> Steps:
        """The steps of one of several handlers of a message, after ``load``."""
        found = Steps(self._store, self._hooks, self._envelope_id, handler)
        found._known, found._used, found._prefix = self._known, self._used, f"{handler}:"
        return found

    @property
    def recorded(self) -> bool:
        """Whether the store contains steps of this message."""
        return bool(self._known) or bool(self._used)

    async def load(self) -> None:
        """Load the steps of earlier attempts.

        Raises:
            StoreUnavailableError: the store is unavailable; nothing has run yet.
        """
        self._known = await patiently(
            lambda: self._store.load(self._envelope_id), self._what("load steps"), _PATIENCE
        )
        if self._known and self._hooks.on_checkpoint_loaded is not None:
            await self._hooks.on_checkpoint_loaded(self._event(steps=len(self._known)))

    def claim(self, key: str) -> None:
        """Reserve a key for this run.

        Raises:
            DuplicateStepKeyError: it was already used in this run.
        """
        if not isinstance(key, str) or not key:  # pyright: ignore[reportUnnecessaryIsInstance] - users
            raise ConfigurationError(f"a step's key must be a non-empty string, got {key!r}")
        if self._prefix + key in self._used:
            raise DuplicateStepKeyError(
                f"handler {self._subscriber!r}: duplicate step key {key!r} in one run"
            )
        self._used.add(self._prefix + key)

    async def recall(self, key: str) -> Any:
        """The stored result of a step, or ``MISSING``.

        Raises:
            UnreadableStepValueError: it is damaged, or its class is not loaded here.
        """
        stored = self._known.get(self._prefix + key)
        hooks = self._hooks
        if stored is None:
            if hooks.on_checkpoint_miss is not None:
                await hooks.on_checkpoint_miss(self._event(step=key))
            return MISSING
        try:
            value = load_value(stored)
        except Exception as error:
            raise UnreadableStepValueError(
                f"handler {self._subscriber!r}: cannot read the stored result of step {key!r}: "
                f"{error}"
            ) from error
        if hooks.on_checkpoint_hit is not None:
            await hooks.on_checkpoint_hit(self._event(step=key))
        return value

    async def record(self, key: str, value: Any) -> None:
        """Store the result of a step that has just run.

        Raises:
            UnstorableStepValueError: the result can never be stored; not retried, because the
                step has had its effect.

        Waits for an unavailable store, because the step has had its effect; the handler's timeout
        is paused meanwhile.
        """
        stored, countdown = _dump_value(key, value), self.countdown
        if countdown is not None:
            countdown.pause()
        try:
            await patiently(
                lambda: self._store.save(self._envelope_id, self._prefix + key, stored),
                self._what(f"save the step {key!r}"),
                permanent=_PERMANENT,
            )
        except _PERMANENT as error:
            raise UnstorableStepValueError(
                f"handler {self._subscriber!r}: could not save the step {key!r}: "
                f"{type(error).__name__}: {error}"
            ) from error
        except asyncio.CancelledError:
            log.error(
                "handler %s: the step %r has run, but was canceled before its result was saved; "
                "the next attempt runs it again",
                self._subscriber,
                key,
            )
            raise
        finally:
            if countdown is not None:
                countdown.resume()

    def _what(self, call: str) -> str:
        return f"the checkpoint store, for {self._subscriber!r}: could not {call}"

    def _event(self, *, step: str | None = None, steps: int = 0) -> CheckpointEvent:
        return CheckpointEvent(self._envelope_id, self._subscriber, step, steps)


def _dump_value(key: str, value: Any) -> bytes:
    try:
        return dump_value(value)
    except Exception as error:
        raise UnstorableStepValueError(
            f"step {key!r} returned {type(value).__name__}, which cannot be stored: {error}"
        ) from error
