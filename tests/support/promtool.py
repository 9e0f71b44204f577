"""Runs promtool, which checks metrics and alert rules."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

_SCRIPT = Path(__file__).parents[2] / "script" / "promtool"
_UNAVAILABLE = 69


def promtool(*arguments: str, text: bytes = b"") -> str:
    """What promtool says. Fails the test if it objects; skips it where there is no promtool."""
    ran = subprocess.run(
        [_SCRIPT, *arguments], input=text, capture_output=True, check=False, timeout=120
    )
    said = (ran.stdout + ran.stderr).decode()
    if ran.returncode == _UNAVAILABLE and not os.environ.get("CI"):
        pytest.skip(f"NOT CHECKED, there is no promtool: {said}")
    assert ran.returncode == 0, said
    return said
