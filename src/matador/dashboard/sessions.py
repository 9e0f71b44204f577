"""Tokens, roles and sessions, in memory."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from matador.dashboard.options import DashboardOptions, Role, User

_LONGEST = 12 * 3600.0  # seconds a session lasts
_MOST_SESSIONS = 1000
_MOST_FAILURES = 10  # wrong tokens from one address ...
_FORGIVEN_AFTER = 60.0  # ... in so many seconds
_MOST_ADDRESSES = 10_000


@dataclass(frozen=True, slots=True)
class Session:
    """The session of a user. ``csrf`` must be in every form that is sent."""

    id: str
    role: Role
    csrf: str
    ends_at: float
    name: str = ""

    @property
    def label(self) -> str:
        """The label of the user in the audit log: the name, or a hash of the session."""
        return self.name or hashlib.sha256(self.id.encode()).hexdigest()[:8]


class Sessions:
    """The sessions of this process. They end with the process, on expiry, or on logout."""

    def __init__(
        self, options: DashboardOptions, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._options = options
        self._clock = clock
        self._sessions: OrderedDict[str, Session] = OrderedDict()
        self._failures: OrderedDict[str, list[float]] = OrderedDict()

    def find(self, session_id: str | None) -> Session | None:
        """The session with that id, if it has not expired."""
        found = self._sessions.get(session_id or "")
        if found is not None and found.ends_at <= self._clock():
            del self._sessions[found.id]
            return None
        return found

    def user_of(self, token: str) -> User | None:
        """The owner of a token. Runs in constant time."""
        given, found = _digest(token), None
        for user in self._options.users:
            found = user if hmac.compare_digest(given, _digest(user.token)) else found
        return found

    def begin(self, role: Role, name: str = "") -> Session:
        """Start a session. If there are too many, the oldest ends."""
        id_, csrf = secrets.token_urlsafe(32), secrets.token_urlsafe(32)
        made = Session(id_, role, csrf, self._clock() + _LONGEST, name)
        self._sessions[made.id] = made
        while len(self._sessions) > _MOST_SESSIONS:
            self._sessions.popitem(last=False)
        return made

    def end(self, session: Session) -> None:
        """End a session."""
        self._sessions.pop(session.id, None)

    def is_blocked(self, address: str) -> bool:
        """Whether there were too many wrong tokens from an address."""
        return len(self._recent(address)) >= _MOST_FAILURES

    def failed(self, address: str) -> None:
        """Record a wrong token from an address."""
        self._failures[address] = [*self._recent(address), self._clock()][-_MOST_FAILURES:]
        self._failures.move_to_end(address)
        while len(self._failures) > _MOST_ADDRESSES:
            self._failures.popitem(last=False)

    def _recent(self, address: str) -> list[float]:
        since = self._clock() - _FORGIVEN_AFTER
        return [moment for moment in self._failures.get(address, []) if moment > since]


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "replace")).digest()
