"""``provider_options`` of brokers of messages, which are the same for all of them."""

from __future__ import annotations

from typing import Any

import pytest

from matador.errors import InvalidJobError
from matador.jobs import ActiveJob, Fixed, Queue, Worker
from matador.testing import wait_for


async def check_own_headers(queue: Queue) -> None:
    """They arrive with each attempt of the job; those for other providers, and odd ones, do not."""
    seen: list[dict[str, Any]] = []

    async def handle(job: ActiveJob[Any]) -> None:
        seen.append({name: one for name, one in job.headers.items() if "job." not in name})
        if job.attempt == 1:
            raise ValueError("again")

    mine = {"headers": {"tenant": "a", "job.id": "other"}}
    provider = queue.provider.transport.name
    async with Worker(queue, handle, concurrency=1):
        for options in (mine, {provider: mine, "redis": {"lifo": True}}, {"redis": {"lifo": True}}):
            number = len(seen) + 2
            await queue.add("one", backoff=Fixed(0.01), provider_options=options)
            await wait_for(lambda: len(seen) == number, timeout=60)  # noqa: B023
    assert seen == [{"tenant": "a"}] * 4 + [{}] * 2
    with pytest.raises(InvalidJobError, match=f"'lifo' is not one of {provider}"):
        await queue.add("one", provider_options={"lifo": True})
    with pytest.raises(InvalidJobError, match="'headers' must be a mapping of text and whole"):
        await queue.add("one", provider_options={"headers": {"tenant": [1]}})
