"""Hides the values of sensitive payload fields."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, cast

from matador.errors import ConfigurationError

MASK: Final = "••••••"
"""The replacement for a value."""

_DEEPEST = 100


class Masking:
    """Masks fields by their names, at any depth; upper and lower case are the same.

    Example:
        >>> Masking(["card_number"]).shown({"amount": 5, "card_number": "4111"})
        {'amount': 5, 'card_number': '••••••'}
    """

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._names = frozenset(name.strip().casefold() for name in names if name.strip())

    def __bool__(self) -> bool:
        return bool(self._names)

    def covers(self, name: str) -> bool:
        """Whether a field of this name is masked."""
        return name.casefold() in self._names

    def check_search(self, names: Iterable[str]) -> None:
        """Refuse a search by a masked field, which would reveal its value.

        Raises:
            ConfigurationError: one of the names is masked.
        """
        for name in names:
            if self.covers(name):
                raise ConfigurationError(f"the field {name!r} is masked: it cannot be searched")

    def shown(self, value: Any) -> Any:
        """The value with masked fields replaced."""
        return self._walk(value, 0) if self._names else value

    def restored(self, edited: Any, original: Any) -> Any:
        """An edited value in which fields that still show the mask get their original values."""
        if edited == MASK:
            return original
        if isinstance(edited, dict) and isinstance(original, Mapping):
            before = cast("Mapping[str, Any]", original)
            return {
                key: self.restored(one, before[key])
                if key in before and (self.covers(key) or isinstance(one, dict | list))
                else one
                for key, one in cast("dict[str, Any]", edited).items()
            }
        if isinstance(edited, list) and isinstance(original, list):
            pairs = cast("list[Any]", edited), cast("list[Any]", original)
            if len(pairs[0]) == len(pairs[1]):
                return [self.restored(one, other) for one, other in zip(*pairs, strict=True)]
        return cast("Any", edited)

    def is_left(self, value: Any) -> bool:
        """Whether a mask in the value could not be replaced."""
        if isinstance(value, Mapping):
            return any(map(self.is_left, cast("Mapping[Any, Any]", value).values()))
        if isinstance(value, list):
            return any(map(self.is_left, cast("list[Any]", value)))
        return value == MASK

    def _walk(self, value: Any, depth: int) -> Any:
        if depth > _DEEPEST:
            return MASK
        if isinstance(value, Mapping):
            items = cast("Mapping[Any, Any]", value).items()
            return {
                key: MASK if self.covers(str(key)) else self._walk(one, depth + 1)
                for key, one in items
            }
        if isinstance(value, list | tuple):
            return [self._walk(one, depth + 1) for one in cast("list[Any]", value)]
        return value
