"""Debian's Chromium, driven by Playwright."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest
from playwright.async_api import Browser, async_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome")


def chromium() -> str | None:
    """Where Chromium is, if it is installed."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


def require_chromium() -> None:
    """Skip the test, or fail it in CI, if there is no Chromium."""
    if chromium() is not None:
        return
    reason = "NOT CHECKED, there is no Chromium: script/browser installs it"
    if os.environ.get("CI", "").lower() in ("1", "true"):
        pytest.fail(reason)
    pytest.skip(reason)


@asynccontextmanager
async def browser() -> AsyncGenerator[Browser]:
    """A browser without a screen."""
    async with async_playwright() as playwright:
        # Root cannot use the sandbox, and containers have little shared memory.
        options = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]
        found = await playwright.chromium.launch(executable_path=chromium(), args=options)
        try:
            yield found
        finally:
            await found.close()
