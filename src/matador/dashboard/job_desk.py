"""The job queues that the dashboard shows."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, TypeVar

from matador.errors import MatadorError
from matador.jobs import Job, Queue, Schedule
from matador.jobs.queue import QueueStats
from matador.transports.base import LocalStorage

T = TypeVar("T")

_PATIENCE = 10.0  # seconds to wait for a provider
PAGE = 50


@dataclass(frozen=True, slots=True)
class JobQueueView:
    """A job queue, or why it cannot be shown."""

    name: str
    provider: str
    stats: QueueStats | None = None
    schedules: Sequence[Schedule] | None = None
    can_pause: bool = False
    can_list: bool = False
    can_retry: bool = False
    can_remove: bool = False
    problem: str | None = None
    notes: tuple[str, ...] = ()


class JobDesk:
    """Looks at job queues, and changes them. Opened on first use."""

    def __init__(self, queues: Iterable[Queue] = ()) -> None:
        self._queues = {queue.name: queue for queue in queues}

    @property
    def names(self) -> list[str]:
        """The names of the queues."""
        return list(self._queues)

    def queue(self, name: str) -> Queue | None:
        """The queue of a name."""
        return self._queues.get(name)

    async def close(self) -> None:
        """Let go of the providers."""
        for queue in self._queues.values():
            await queue.close()

    async def view(self, name: str) -> JobQueueView:
        """A queue as it is now. Never raises an error of a provider."""
        queue = self._queues[name]
        provider = queue.provider.transport.name
        can = queue.capabilities
        transport = queue.provider.transport
        if isinstance(transport, LocalStorage) and transport.missing_storage is not None:
            missing = f"{transport.missing_storage} does not exist yet: start a worker"
            return JobQueueView(name, provider, problem=missing)
        notes: list[str] = []
        try:
            stats = await within(queue.stats()) if can.counts else None
            if stats is None:
                notes.append(f"{provider} cannot count jobs.")
            elif stats.unknown:
                notes.append(f"{provider} does not report how many are {', '.join(stats.unknown)}.")
            schedules = await within(queue.schedules()) if can.schedules else None
        except (MatadorError, TimeoutError) as error:
            said = str(error) or f"{provider} did not answer within {_PATIENCE:g} seconds"
            return JobQueueView(name, provider, problem=said)
        if schedules is None:
            notes.append(f"{provider} keeps no recurring jobs.")
        for able, what in (
            (can.list, "list jobs"),
            (can.pause, "pause a queue"),
            (can.retry, "retry a job"),
            (can.remove, "remove a job"),
        ):
            if not able:
                notes.append(f"{provider} cannot {what}.")
        return JobQueueView(
            name,
            provider,
            stats,
            schedules,
            can.pause,
            can.list,
            can.retry,
            can.remove,
            None,
            tuple(notes),
        )

    async def page(self, name: str, status: Any, skip: int) -> list[Job[Any]]:
        """Jobs in one state, one more than a page."""
        return await within(self._queues[name].list(status, PAGE + 1, skip=skip))


async def within(call: Awaitable[T]) -> T:
    """Wait for a provider, but not for ever."""
    async with asyncio.timeout(_PATIENCE):
        return await call


def job_queues_in(module: ModuleType) -> list[Queue]:
    """The job queues that a module has, unless their jobs are inside each process."""
    found = {one.name: one for one in vars(module).values() if isinstance(one, Queue)}
    return [
        queue for queue in found.values() if not queue.provider.transport.capabilities.in_process
    ]
