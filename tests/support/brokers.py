"""Real brokers for tests: where one is, or what becomes of its tests when there is none.

``script/brokers`` runs them. Without a broker its tests skip and say so in pytest's summary; in CI
(``CI=true``) they fail, so that a run cannot be green for want of a server.
"""

from __future__ import annotations

import os
import subprocess
from functools import cache
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "script" / "brokers"


def broker_url(name: str) -> str:
    """The URL of a broker: ``MATADOR_{NAME}_URL``, else that of ``script/brokers``.

    Skips the test, or fails it in CI, if it does not run.
    """
    url = find_broker(name)
    if url is not None:
        return url
    reason = f"{name} is not running: script/brokers up {name}"
    if os.environ.get("CI", "").lower() in ("1", "true"):
        pytest.fail(reason)
    pytest.skip(reason)


def find_broker(name: str) -> str | None:
    """The URL of a broker; None if it does not run."""
    return os.environ.get(f"MATADOR_{name.upper()}_URL") or _url_of_script(name)


def broker_ctl(name: str, *arguments: str, timeout: float = 60) -> str:
    """What a broker's own tool prints. Only for brokers that ``script/brokers`` runs."""
    return _run("ctl", name, *arguments, timeout=timeout).stdout


@cache
def _url_of_script(name: str) -> str | None:
    if _run("status", name, check=False).returncode != 0:
        return None
    return _run("url", name).stdout.strip()


def _run(
    *arguments: str, check: bool = True, timeout: float = 60
) -> subprocess.CompletedProcess[str]:
    command = [str(SCRIPT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=check, timeout=timeout)
