"""Long lists: searched, sorted, and shown in parts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from matador.dashboard.guard import read_number
from matador.dashboard.render import query

T = TypeVar("T")

PAGE = 100


@dataclass(frozen=True, slots=True)
class Listing(Generic[T]):
    """The requested rows of a list. ``params``: the query parameters."""

    params: dict[str, str]
    sorts: tuple[str, ...]
    rows: list[T]
    found: int
    start: int
    more: int | None

    @property
    def query(self) -> str:
        """The search and the order, for an address."""
        return query(self.params)

    @property
    def here(self) -> str:
        """The same, with the position in the list."""
        return query({**self.params, "from": str(self.start)})


def listing(
    rows: Iterable[T],
    params: dict[str, str],
    text: Callable[[T], str],
    sorts: Mapping[str, Callable[[T], Any]],
) -> Listing[T]:
    """The rows whose text contains the search term, in the chosen order.

    The first of ``sorts`` is the order of the rows themselves; the others put the largest first.
    """
    wanted, sort = params.get("q", "").strip(), params.get("sort", "")
    found = [one for one in rows if wanted.casefold() in text(one).casefold()]
    if sort in list(sorts)[1:]:
        found.sort(key=sorts[sort], reverse=True)
    start = min(read_number(params.get("from", "")) or 0, len(found))
    given = {"q": wanted, "sort": sort if sort in sorts else "", "period": params.get("period", "")}
    return Listing(
        {name: value for name, value in given.items() if value},
        tuple(sorts),
        found[start : start + PAGE],
        len(found),
        start,
        start + PAGE if len(found) > start + PAGE else None,
    )
