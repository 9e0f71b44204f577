"""The steps of one run of a resumable subscriber: each runs once, and its result is stored.

Later attempts get the result back with its type: plain JSON data, or an object of a user's class
(dataclass, msgspec, attrs, pydantic), which is found by its name. Write access to the store must
not allow running code here, so only classes that are already loaded are found; nothing is imported.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any, cast

import msgspec

from matador.codec.plain import not_finite
from matador.errors import (
    CheckpointStoreError,
    ConfigurationError,
    DuplicateStepKeyError,
    UnreadableStepValueError,
    UnstorableStepValueError,
)
from matador.events.checkpoints import CheckpointStore
from matador.events.hooks import CheckpointEvent, HookSet

MISSING: Any = object()
"""The result of ``Steps.recall`` for a step that has not run."""


class _Stored(msgspec.Struct, frozen=True, omit_defaults=True):
    value: msgspec.Raw
    type: str | None = None


class Steps:
    """Recalls and records the steps of one run. Used from the event loop."""

    __slots__ = ("_envelope_id", "_hooks", "_known", "_store", "_subscriber", "_used")

    def __init__(
        self, store: CheckpointStore, hooks: HookSet, envelope_id: str, subscriber: str
    ) -> None:
        self._store = store
        self._hooks = hooks
        self._envelope_id = envelope_id
        self._subscriber = subscriber
        self._known: Mapping[str, bytes] = {}
        self._used: set[str] = set()

    @property
    def recorded(self) -> bool:
        """Does the store contain steps of this message?"""
        return bool(self._known) or bool(self._used)

    async def load(self) -> None:
        """Load the steps of earlier attempts.

        Raises:
            CheckpointStoreError: the store failed.
        """
        try:
            self._known = await self._store.load(self._envelope_id)
        except Exception as error:
            raise self._failure("load", error) from error
        if self._known and self._hooks.on_checkpoint_loaded is not None:
            await self._hooks.on_checkpoint_loaded(self._event(steps=len(self._known)))

    def claim(self, key: str) -> None:
        """Reserve a key for this run.

        Raises:
            DuplicateStepKeyError: it was already used in this run.
        """
        if not isinstance(key, str) or not key:  # pyright: ignore[reportUnnecessaryIsInstance] - users
            raise ConfigurationError(f"a step's key must be a non-empty string, got {key!r}")
        if key in self._used:
            raise DuplicateStepKeyError(
                f"subscriber {self._subscriber!r}: duplicate step key {key!r} in one run"
            )
        self._used.add(key)

    async def recall(self, key: str) -> Any:
        """The stored result of a step, or ``MISSING``.

        Raises:
            UnreadableStepValueError: it is damaged, or its class is not loaded here.
        """
        stored = self._known.get(key)
        hooks = self._hooks
        if stored is None:
            if hooks.on_checkpoint_miss is not None:
                await hooks.on_checkpoint_miss(self._event(step=key))
            return MISSING
        try:
            value = _load_value(stored)
        except Exception as error:
            raise UnreadableStepValueError(
                f"subscriber {self._subscriber!r}: cannot read the stored result of step {key!r}: "
                f"{error}"
            ) from error
        if hooks.on_checkpoint_hit is not None:
            await hooks.on_checkpoint_hit(self._event(step=key))
        return value

    async def record(self, key: str, value: Any) -> None:
        """Store the result of a step that has just run.

        Raises:
            UnstorableStepValueError: the result cannot be stored.
            CheckpointStoreError: the store failed.
        """
        stored = _dump_value(key, value)
        try:
            await self._store.save(self._envelope_id, key, stored)
        except Exception as error:
            raise self._failure(f"save the step {key!r}", error) from error

    def _event(self, *, step: str | None = None, steps: int = 0) -> CheckpointEvent:
        return CheckpointEvent(self._envelope_id, self._subscriber, step, steps)

    def _failure(self, what: str, error: Exception) -> CheckpointStoreError:
        if isinstance(error, CheckpointStoreError):
            return error
        return CheckpointStoreError(
            f"subscriber {self._subscriber!r}: could not {what}: {type(error).__name__}: {error}"
        )


def _dump_value(key: str, value: Any) -> bytes:
    try:
        if hasattr(value, "__pydantic_serializer__"):
            raw = value.__pydantic_serializer__.to_json(value)
        else:
            raw = msgspec.json.encode(value)
            if (lost := not_finite(value)) is not None:
                raise ValueError(lost)
        stored = msgspec.json.encode(_Stored(msgspec.Raw(raw), _type_name(value)))
        _load_value(stored)
    except (TypeError, ValueError, OverflowError, RecursionError, LookupError) as error:
        raise UnstorableStepValueError(
            f"step {key!r} returned {type(value).__name__}, which cannot be stored: {error}"
        ) from error
    return stored


def _load_value(stored: bytes) -> Any:
    found = msgspec.json.decode(stored, type=_Stored)
    if found.type is None:
        return msgspec.json.decode(found.value)
    type_ = _find_type(found.type)
    validator = getattr(type_, "__pydantic_validator__", None)
    if validator is not None:
        return validator.validate_json(bytes(found.value))
    return msgspec.json.decode(found.value, type=type_)


def _type_name(value: Any) -> str | None:
    """The full name of an object's class; None for plain data."""
    type_ = cast("type[Any]", type(value))
    return _full_name(type_) if _is_record(type_) else None


def _find_type(name: str) -> type[Any]:
    """The loaded class with that name. Runs no code: no import, no ``__getattr__``.

    Raises:
        LookupError: no loaded module has such a class.
    """
    module_name, _, path = name.partition(":")
    found: Any = sys.modules.get(module_name)
    for part in path.split("."):
        home = isinstance(found, ModuleType | type)
        found = object.__getattribute__(found, "__dict__").get(part) if home else None
    if not isinstance(found, type) or not _is_record(found) or _full_name(found) != name:
        raise LookupError(
            f"class {name} is not loaded; define it at the top of a module that is imported with "
            f"the subscriber"
        )
    return cast("type[Any]", found)


def _is_record(type_: type[Any]) -> bool:
    """Is it a dataclass, or a class of msgspec, attrs or pydantic?"""
    return (
        dataclasses.is_dataclass(type_)
        or issubclass(type_, msgspec.Struct)
        or hasattr(type_, "__attrs_attrs__")
        or hasattr(type_, "__pydantic_validator__")
    )


def _full_name(type_: type[Any]) -> str:
    return f"{type_.__module__}:{type_.__qualname__}"
