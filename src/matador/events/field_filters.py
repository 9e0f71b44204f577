"""Filters on single payload fields, such as ``amount>100`` or ``customer.country=NL``.

``--field`` of the command line and the search of the dashboard. Deliberately not a language: there
is no AND, OR or grouping. ``--where`` is SQL, and only for the lake.
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from matador.errors import ConfigurationError
from matador.model.options import suggestion

_FILTER = re.compile(r"\s*([^=!<>~]+?)\s*(!=|<=|>=|[=<>~])\s*(.*)", re.DOTALL)
_SECOND = re.compile(r"=|[<>~]\s*-?[\d.]")
_ORDER: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


@dataclass(frozen=True, slots=True)
class FieldFilter:
    """One filter. ``text`` is the value as given, ``value`` the same read as JSON if it is JSON."""

    path: tuple[str, ...]
    sign: str
    text: str
    value: Any

    @classmethod
    def parse(cls, given: str) -> FieldFilter:
        """Parse a filter as typed by a user.

        Raises:
            ConfigurationError: it has no field or no operator, or two.
        """
        found = _FILTER.fullmatch(given)
        if found is None:
            raise ConfigurationError(
                f"{given!r}: expected a field, one of = != < <= > >= ~ (contains) and a "
                f"value, such as 'amount>100', country=NL or note=null"
            )
        path, sign, text = (part.strip() for part in found.groups())
        if _SECOND.match(text):  # such as amount==5 or amount>>5
            raise ConfigurationError(
                f"{given!r}: {text[0]!r} follows the operator {sign!r}; use one of = != < <= > >= "
                f"~, and put a value that begins like this in double quotes"
            )
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            value = text
        steps = re.sub(r"\[(\d+)\]", r".\1", path).split(".")
        return cls(tuple(steps), sign, value if isinstance(value, str) else text, value)

    def __call__(self, payload: Any) -> bool:
        """Whether the filter matches. A missing field is null; values of different types have no
        order."""
        found = payload
        for step in self.path:
            if isinstance(found, Mapping):
                found = cast("Mapping[str, Any]", found).get(step)
            elif isinstance(found, list) and step.isdigit():
                found = dict(enumerate(cast("list[Any]", found))).get(int(step))
            else:
                found = None
        match self.sign:
            case "=":
                return self._equals(found)
            case "!=":
                return not self._equals(found)
            case "~" if isinstance(found, list):
                return any(map(self._equals, cast("list[Any]", found)))
            case "~":
                return isinstance(found, str) and self.text in found
            case _:
                wanted = self._wanted(found)
                ordered = isinstance(found, int | float | str) and not isinstance(found, bool)
                return ordered and wanted is not None and _ORDER[self.sign](found, wanted)

    def _equals(self, found: Any) -> bool:
        wanted = self._wanted(found)
        return found == wanted and (found is None) == (self.value is None)

    def _wanted(self, found: Any) -> Any:
        """The value in the type of the field; None if it cannot be converted."""
        if isinstance(found, str):
            return self.text
        numbers = isinstance(found, int | float) and isinstance(self.value, int | float)
        alike = numbers and isinstance(found, bool) == isinstance(self.value, bool)
        return self.value if alike else None


class FieldFilters:
    """Several filters that must all hold, as ``Selection.where``; remembers the fields it saw."""

    def __init__(self, given: Sequence[str]) -> None:
        self._filters = [FieldFilter.parse(one) for one in given]
        self._known: set[str] = set()

    def __call__(self, payload: Any) -> bool:
        if isinstance(payload, Mapping):
            self._known |= {str(name) for name in cast("Mapping[Any, Any]", payload)}
        return all(one(payload) for one in self._filters)

    @property
    def names(self) -> frozenset[str]:
        """The names in their paths."""
        return frozenset(step for one in self._filters for step in one.path)

    def doubts(self) -> list[str]:
        """Errors about fields that no payload had so far, which may be misspelled."""
        first = dict.fromkeys(one.path[0] for one in self._filters)
        return [
            f"no payload has a field {name!r}{suggestion(name, self._known)}"
            for name in first
            if self._known and name not in self._known
        ]
