"""A plain client of the Redis that tests use, and tidying up behind them."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import redis.asyncio


@asynccontextmanager
async def plain_client(url: str) -> AsyncGenerator[Any]:
    """A client of redis-py: what anybody else would see of the server."""
    client: Any = redis.asyncio.Redis.from_url(url, protocol=2)  # pyright: ignore[reportUnknownMemberType]
    try:
        yield client
    finally:
        await client.aclose()


async def forget_keys(url: str, prefix: str) -> int:
    """Delete all keys that begin with a prefix; says how many there were."""
    number = 0
    async with plain_client(url) as client:
        async for key in client.scan_iter(match=f"{prefix}:*", count=1000):
            number += await client.unlink(key)
    return number
