"""A place on each broker in turn."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from tests.support.pubsub import BROKERS, Place, place_on


@pytest_asyncio.fixture(params=BROKERS)
async def place(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Place]:
    async with place_on(request.param, tmp_path) as found:
        yield found
