"""Alerts: posts to a webhook when a problem begins and when it ends."""

from __future__ import annotations

import asyncio
import http.client
import json
import logging
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from typing import Any

from matador.dashboard.desk import Desk
from matador.dashboard.problems import Problem, find_problems

log = logging.getLogger("matador.dashboard")

STEADY = 20.0
"""Seconds that a problem must last, or be gone, before an alert is sent."""

_PATIENCE = 10.0  # seconds for the webhook to answer
_FIRST_PAUSE = 5.0
_LONGEST_PAUSE = 300.0


class ProblemChanges:
    """Tracks problems that have begun and ended, ignoring short ones."""

    def __init__(self, steady: float | None = None) -> None:
        self._steady = STEADY if steady is None else steady
        self._since: dict[str, float] = {}  # changes that may be short
        self._told: dict[str, Problem] = {}

    def seen(
        self, problems: Sequence[Problem], now: float
    ) -> tuple[dict[str, Problem], dict[str, Problem]]:
        """The problems that have begun and ended, by key, and were not reported yet."""
        there = {one.key: one for one in problems}
        changed = there.keys() ^ self._told.keys()
        self._since = {key: self._since.get(key, now) for key in changed}
        steady = [key for key in sorted(changed) if now - self._since[key] >= self._steady]
        begun = {key: there[key] for key in steady if key in there}
        return begun, {key: self._told[key] for key in steady if key not in there}

    def told(self, begun: dict[str, Problem], ended: dict[str, Problem]) -> None:
        """Record that these were reported."""
        self._told |= begun
        for key in ended:
            del self._told[key]
        for key in (*begun, *ended):
            del self._since[key]


class Alerts:
    """Posts to a webhook. A failed post is repeated later, with the state at that time."""

    def __init__(self, desk: Desk, url: str) -> None:
        self._desk = desk
        self._url = url
        self._changes = ProblemChanges()

    async def keep_telling(self) -> None:
        """Check for changes after each poll of the dashboard, until canceled."""
        pause = _FIRST_PAUSE
        while True:
            await self._desk.monitor.changed(60.0)
            try:
                failure = await self._tell()
            except Exception as error:
                log.exception("the dashboard could not check for problems")
                failure = type(error).__name__
            if failure is None:
                pause = _FIRST_PAUSE
                continue
            log.warning("the webhook for alerts failed: %s; trying again in %g s", failure, pause)
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    async def _tell(self) -> str | None:
        """Report changes, if any; return the error text of a failure."""
        problems = await find_problems(self._desk, await self._desk.stats("1h"))
        begun, ended = self._changes.seen(problems, time.monotonic())
        if not begun and not ended:
            return None
        body = self._body(begun, ended, len(problems))
        failure = await asyncio.to_thread(_post, self._url, body)
        if failure is None:
            self._changes.told(begun, ended)
        return failure

    def _body(
        self, begun: dict[str, Problem], ended: dict[str, Problem], problems: int
    ) -> dict[str, Any]:
        title = self._desk.sources.title
        said = [f"⚠ {one.text}" for one in begun.values()]
        said += [f"✓ over: {one.text}" for one in ended.values()]
        return {
            "text": "\n".join([f"{title}:", *said]),  # the field that chat programs show
            "source": title,
            "begun": [_plain(one) for one in begun.values()],
            "ended": [_plain(one) for one in ended.values()],
            "problems": problems,
        }


def _plain(problem: Problem) -> dict[str, Any]:
    return {"text": problem.text, "since": problem.since, "link": problem.link}


def _post(url: str, body: dict[str, Any]) -> str | None:
    """Post to the webhook; return the error text without the address, which may be a secret.
    Blocks."""
    headers = {"content-type": "application/json", "user-agent": "matador-dashboard"}
    data = json.dumps(body).encode()
    try:
        request = urllib.request.Request(url, data, headers, method="POST")
        with urllib.request.urlopen(request, timeout=_PATIENCE):
            return None
    except urllib.error.HTTPError as error:
        with error:
            return f"it answered {error.code}"
    except (OSError, ValueError, http.client.HTTPException) as error:
        return type(getattr(error, "reason", error)).__name__
