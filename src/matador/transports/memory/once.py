"""Notes which ids were stored, for senders that may send twice."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from matador.errors import MatadorError
from matador.model.message import Message, Once


class Notes:
    """The ids of every scope whose parts are not sealed, and how far each scope is sealed."""

    def __init__(self) -> None:
        self._stored: dict[Once, set[str]] = {}
        self._sealed: dict[str, int] = {}

    def put(
        self,
        store: Callable[[Sequence[Message]], Sequence[MatadorError | None]],
        messages: Sequence[Message],
        once: Once,
    ) -> list[MatadorError | None]:
        """Store what was not stored yet; for each None, or why not."""
        if once.batch <= self._sealed.get(once.scope, -1):
            return [None] * len(messages)
        stored = self._stored.setdefault(once, set())
        outcomes: list[MatadorError | None] = []
        for message in messages:
            error = None
            if message.id not in stored:
                (error,) = store([message])
                if error is None:
                    stored.add(message.id)
            outcomes.append(error)
        return outcomes

    def seal(self, once: Once) -> None:
        """Forget the ids of a part and of those before it."""
        self._sealed[once.scope] = max(once.batch, self._sealed.get(once.scope, -1))
        for part in [one for one in self._stored if one.scope == once.scope]:
            if part.batch <= once.batch:
                del self._stored[part]
