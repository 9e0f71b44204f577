"""What contestants on Redis streams share."""

# pyright: basic, reportMissingImports=false
from __future__ import annotations

import redis.asyncio as redis


async def flush(url: str) -> None:
    """Empty the database."""
    async with redis.from_url(url) as client:
        await client.flushdb()


async def left(url: str, stream: str, group: str) -> int:
    """Entries that the group has not read yet, or not acknowledged."""
    async with redis.from_url(url) as client:
        total = await client.xlen(stream)
        for found in await client.xinfo_groups(stream):
            if found["name"] == group.encode():
                return total - (found["entries-read"] or 0) + found["pending"]
        return total
