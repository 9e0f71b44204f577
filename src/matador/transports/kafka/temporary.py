"""Deletes temporary queues that nobody uses. Whoever has applied them looks after them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from matador.errors import MatadorError
from matador.model.topology import Topology
from matador.transports.kafka.client import KafkaClient
from matador.transports.kafka.names import topic_name

_LOG = logging.getLogger(__name__)
_SHORTEST, _LONGEST = 0.2, 10.0  # seconds between two looks


class TemporaryQueues:
    """Those of the applied topologies, and since when each is not used."""

    def __init__(
        self,
        client: KafkaClient,
        in_use: Callable[[str], bool],
        group: Callable[[str], str],
        delete: Callable[[str], Awaitable[None]],
    ) -> None:
        self._client = client
        self._in_use = in_use
        self._group = group
        self._delete = delete
        self._expires: dict[str, float] = {}
        self._used: dict[str, float] = {}
        self._task: asyncio.Task[None] | None = None

    def apply(self, topology: Topology) -> None:
        """They are used now."""
        for queue in topology.queues:
            if queue.expires is not None:
                name = topology.full_name(queue.name)
                self._expires[name] = queue.expires
                self._used[name] = time.monotonic()
        if self._expires and (self._task is None or self._task.done()):
            self._task = asyncio.create_task(self._look_after())

    def forget(self, queue: str) -> None:
        """It is deleted."""
        self._expires.pop(queue, None)

    async def close(self) -> None:
        """Look no more."""
        task, self._task = self._task, None
        if task is not None and not task.done():
            task.cancel()
            await asyncio.wait([task])

    async def _look_after(self) -> None:
        while self._expires:
            wait = min(self._expires.values()) / 4
            await asyncio.sleep(min(_LONGEST, max(_SHORTEST, wait)))
            for queue in list(self._expires):
                try:
                    await self._look_at(queue)
                except MatadorError as error:
                    _LOG.info("the temporary queue %s is looked at again later: %s", queue, error)

    async def _look_at(self, queue: str) -> None:
        if self._in_use(queue):
            self._used[queue] = time.monotonic()
            return
        if time.monotonic() < self._used[queue] + self._expires[queue]:
            return
        group = self._group(topic_name(queue))
        answers = await self._client.ask(lambda admin: admin.describe_consumer_groups([group]))
        for answer in answers.values():
            if not isinstance(answer, MatadorError) and answer.members:
                self._used[queue] = time.monotonic()  # another process does
        if time.monotonic() >= self._used[queue] + self._expires.get(queue, float("inf")):
            await self._delete(queue)
