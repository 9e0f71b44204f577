"""The queue and the provider that a ``matador jobs`` command is about."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from matador.cli.commands import Connecting, option
from matador.cli.connection import connect, missing_storage
from matador.cli.output import CommandError, UsageError, show_logs, wrong_usage
from matador.errors import ConfigurationError, InvalidJobError, QueueNotFoundError
from matador.transports.base import Measuring

if TYPE_CHECKING:
    from matador.jobs import JobProvider, Queue

T = TypeVar("T")

_EXAMPLES = "sqlite:///jobs.db, redis://localhost or amqp://localhost"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobQueueOptions:
    """The arguments that all commands about jobs have."""

    queue: Annotated[
        str,
        typer.Argument(metavar="QUEUE", help="The name of the job queue.", show_default=False),
    ]
    provider: Annotated[
        str | None,
        option("URL", f"Where the jobs are kept, such as {_EXAMPLES}. Required.", "--provider"),
    ] = None

    def run(
        self,
        common: Connecting,
        work: Callable[[Queue], Awaitable[T]],
        *,
        create: bool = False,
    ) -> T:
        """Connect, do the work, and disconnect. A missing queue is created only with ``create``.

        Raises:
            UsageError: the provider is missing, its URL is invalid, or an argument is.
            CommandError: the provider is inside another process, or the queue does not exist.
        """
        from matador.jobs import JobProvider, Queue  # other commands start without it

        show_logs(common.level())
        if self.provider is None:
            raise UsageError(f"--provider is missing: give a URL such as {_EXAMPLES}")
        with wrong_usage(ConfigurationError):
            provider = JobProvider(self.provider)
            queue = Queue(self.queue, provider=provider)
        if provider.transport.capabilities.in_process:
            raise UsageError(
                f"the provider {provider.transport.name!r} keeps jobs inside each process, so "
                f"this command cannot see any: give a URL such as {_EXAMPLES}"
            )
        missing = missing_storage(provider.transport)
        if missing is not None and not create:
            raise CommandError(
                f"{missing} does not exist yet: start a worker, or run `matador jobs add`"
            )

        async def connected() -> T:
            try:
                await connect(provider.transport, common.wait)
                if not create:
                    await _check_exists(provider, self.queue)
                async with queue:
                    return await work(queue)
            finally:
                await provider.transport.disconnect()

        with wrong_usage(InvalidJobError):
            return asyncio.run(connected())


async def _check_exists(provider: JobProvider, queue: str) -> None:
    """Opening a queue creates it, which a command that only looks must not do.

    Raises:
        CommandError: there is no such queue.
    """
    from matador.jobs.provider import MessageJobs, job_topology

    transport, name = provider.transport, queue
    if not transport.capabilities.depth or not isinstance(transport, Measuring):
        return
    if isinstance(provider.store, MessageJobs):
        name = job_topology(queue).full_name(queue)
    try:
        await transport.depth(name)
    except QueueNotFoundError as error:
        raise CommandError(
            f"{transport.name} has no job queue {queue!r}: a worker creates it when it starts, and "
            f"so does `matador jobs add`"
        ) from error
