"""Who is looking: tokens, roles, and sessions in memory."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from matador.dashboard.options import DashboardOptions

Role: TypeAlias = Literal["read-only", "operator"]

_LONGEST = 12 * 3600.0  # seconds a session lasts
_MOST_SESSIONS = 1000
_MOST_FAILURES = 10  # wrong tokens from one address ...
_FORGIVEN_AFTER = 60.0  # ... in so many seconds
_MOST_ADDRESSES = 10_000


@dataclass(frozen=True, slots=True)
class Session:
    """Somebody who may use the dashboard. ``csrf`` must be in every form that is sent."""

    id: str
    role: Role
    csrf: str
    ends_at: float

    @property
    def label(self) -> str:
        """What tells sessions apart in the audit log, without giving them away."""
        return hashlib.sha256(self.id.encode()).hexdigest()[:8]


class Sessions:
    """The sessions of this process. They end with it, with their time, or with a logout."""

    def __init__(
        self, options: DashboardOptions, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._options = options
        self._clock = clock
        self._sessions: OrderedDict[str, Session] = OrderedDict()
        self._failures: OrderedDict[str, list[float]] = OrderedDict()

    def find(self, session_id: str | None) -> Session | None:
        """The session with that id, if it lasts."""
        found = self._sessions.get(session_id or "")
        if found is not None and found.ends_at <= self._clock():
            del self._sessions[found.id]
            return None
        return found

    def role_of(self, token: str) -> Role | None:
        """What the owner of a token may do. Takes as long for every token."""
        operator = _same(token, self._options.token)
        reader = _same(token, self._options.read_token)
        return "operator" if operator else "read-only" if reader else None

    def begin(self, role: Role) -> Session:
        """A new session. The oldest of very many ends."""
        made = Session(
            secrets.token_urlsafe(32), role, secrets.token_urlsafe(32), self._clock() + _LONGEST
        )
        self._sessions[made.id] = made
        while len(self._sessions) > _MOST_SESSIONS:
            self._sessions.popitem(last=False)
        return made

    def end(self, session: Session) -> None:
        """Log somebody out."""
        self._sessions.pop(session.id, None)

    def is_blocked(self, address: str) -> bool:
        """Have there been too many wrong tokens from there?"""
        return len(self._recent(address)) >= _MOST_FAILURES

    def failed(self, address: str) -> None:
        """There was a wrong token from there."""
        self._failures[address] = [*self._recent(address), self._clock()][-_MOST_FAILURES:]
        self._failures.move_to_end(address)
        while len(self._failures) > _MOST_ADDRESSES:
            self._failures.popitem(last=False)

    def _recent(self, address: str) -> list[float]:
        since = self._clock() - _FORGIVEN_AFTER
        return [moment for moment in self._failures.get(address, []) if moment > since]


def _same(given: str, token: str | None) -> bool:
    wanted = secrets.token_bytes(32) if token is None else _digest(token)
    return hmac.compare_digest(_digest(given), wanted)


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "replace")).digest()
