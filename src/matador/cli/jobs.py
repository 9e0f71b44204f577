"""``matador jobs``: adds, lists and changes background jobs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar, cast

import msgspec
import typer

from matador.cli.commands import All, Commands, Connecting, Limit, Yes, choice, option
from matador.cli.connection import connect, missing_storage
from matador.cli.event_input import read_data
from matador.cli.output import (
    CommandError,
    UsageError,
    counting_progress,
    plural,
    show_logs,
    working,
    wrong_usage,
)
from matador.cli.resources import (
    JOBS,
    LISTED,
    REMOVE,
    RETRY,
    Verb,
    failures_json,
    show_paused,
)
from matador.cli.views import schedules_table, stats_json, stats_table
from matador.errors import ConfigurationError, InvalidJobError, JobNotFoundError, JobStateError
from matador.jobs import Job, JobOptions, JobProvider, Queue, Schedule
from matador.model.job import JOB_STATUSES, JobStatus
from matador.model.options import suggestion
from matador.observe.sources import Source

T = TypeVar("T")

_MOST_AT_ONCE = 10_000
_REMOVABLE = [one for one in JOB_STATUSES if one != "active"]
_EXAMPLES = "sqlite:///jobs.db, redis://localhost or amqp://localhost"

_ID = option("ID", "The id of a job. Can be repeated.", "--id")
JobIds = Annotated[list[str] | None, _ID]
RequiredJobIds = Annotated[list[str], _ID]

jobs = Commands("Add background jobs, list them, retry or remove them, and pause queues.")


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
        self, common: Connecting, work: Callable[[Queue], Awaitable[T]], *, create: bool = False
    ) -> T:
        """Connect, do the work, and disconnect. A missing queue is created only with ``create``.

        Raises:
            UsageError: the provider is missing, its URL is invalid, or an argument is.
            CommandError: the provider is inside another process, or the queue does not exist.
        """
        show_logs(common.level())
        if self.provider is None:
            raise UsageError(f"--provider is missing: give a URL such as {_EXAMPLES}")
        with wrong_usage(ConfigurationError):
            provider = JobProvider(self.provider)
            queue = Queue(self.queue, provider=provider)
        transport = provider.transport
        if transport.capabilities.in_process:
            raise UsageError(
                f"the provider {transport.name!r} keeps jobs inside each process, so "
                f"this command cannot see any: give a URL such as {_EXAMPLES}"
            )
        missing = missing_storage(transport)
        if missing is not None and not create:
            raise CommandError(
                f"{missing} does not exist yet: start a worker, or run `matador jobs add`"
            )

        async def connected() -> T:
            try:
                await connect(transport, common.wait)
                # Opening a queue creates it, which a command that only looks must not do.
                if not create and not await Source(self.queue, queue, queue).exists():
                    raise CommandError(
                        f"{transport.name} has no job queue {self.queue!r}: a worker creates it "
                        f"when it starts, and so does `matador jobs add`"
                    )
                async with queue:
                    return await work(queue)
            finally:
                await transport.disconnect()

        with wrong_usage(InvalidJobError):
            return asyncio.run(connected())


# -- looking --------------------------------------------------------------------------------------


@jobs.add("matador jobs stats emails --provider redis://localhost")
def stats(*, target: JobQueueOptions, common: Connecting) -> None:
    """Show how many jobs are in each state."""
    found = target.run(common, lambda queue: queue.stats())
    common.show(stats_json(target.queue, found), stats_table(target.queue, found))


@jobs.add(
    "matador jobs list emails --provider redis://localhost",
    "matador jobs list emails --provider sqlite:///jobs.db --status failed --limit 10",
    name="list",
)
def list_jobs(
    *,
    target: JobQueueOptions,
    status: Annotated[
        str,
        choice("STATUS", f"The state: {', '.join(JOB_STATUSES)}.", "--status", JOB_STATUSES),
    ] = "waiting",
    limit: Limit = LISTED,
    common: Connecting,
) -> None:
    """List the jobs in one state, by default those that are waiting.

    Finished ones are listed latest first, others in the order in which they will run.
    """
    limit = limit or LISTED

    async def look(queue: Queue) -> tuple[list[Job[Any]], str]:
        found = await queue.list(cast("JobStatus", status), limit + 1)
        return found, "" if found else await _elsewhere(queue)

    found, elsewhere = target.run(common, look)
    JOBS.list(common, found, limit, state=status, none=elsewhere, queue=target.queue)


async def _elsewhere(queue: Queue) -> str:
    """Which states have jobs, if the provider counts them."""
    if not queue.capabilities.counts:
        return ""
    numbers = await queue.stats()
    some = [f"{number:,} {one}" for one in JOB_STATUSES if (number := getattr(numbers, one))]
    return f" ({', '.join(some)}; see --status)" if some else ""


@jobs.add("matador jobs show emails --provider redis://localhost --id 3f2a9c")
def show(*, target: JobQueueOptions, ids: RequiredJobIds, common: Connecting) -> None:
    """Show everything about jobs: data, state, times, error and result."""

    async def look(queue: Queue) -> list[Job[Any]]:
        found: list[Job[Any]] = []
        for one in ids:
            job = await queue.get(one)
            if job is None:
                raise CommandError(f"queue {target.queue!r} has no job {one!r}")
            found.append(job)
        return found

    JOBS.show(common, target.run(common, look))


# -- changing -------------------------------------------------------------------------------------


@jobs.add(
    "matador jobs retry emails --provider redis://localhost --id 3f2a9c",
    "matador jobs retry emails --provider redis://localhost --all",
)
def retry(
    *,
    target: JobQueueOptions,
    ids: JobIds = None,
    all_: All = False,
    yes: Yes = False,
    common: Connecting,
) -> None:
    """Run failed jobs again, with all their attempts."""
    if bool(ids) == all_:
        raise UsageError("choose which failed jobs to retry: give --id or --all")
    _change(RETRY, target, common, ids, "failed" if all_ else None, yes or not all_)


@jobs.add(
    "matador jobs remove emails --provider redis://localhost --id 3f2a9c",
    "matador jobs remove emails --provider redis://localhost --status completed --yes",
)
def remove(
    *,
    target: JobQueueOptions,
    ids: JobIds = None,
    status: Annotated[
        str | None, choice("STATUS", "All jobs in this state.", "--status", _REMOVABLE)
    ] = None,
    yes: Yes = False,
    common: Connecting,
) -> None:
    """Remove jobs for good. Running jobs cannot be removed."""
    REMOVE.require_choice(bool(ids) != (status is not None), "--id or --status")
    _change(REMOVE, target, common, ids, cast("JobStatus | None", status), yes)


def _change(
    verb: Verb,
    target: JobQueueOptions,
    common: Connecting,
    ids: Sequence[str] | None,
    status: JobStatus | None,
    yes: bool,
) -> None:
    """Retry or remove the jobs with these ids, or all in a state.

    Raises:
        typer.Exit: some of them could not be changed.
    """
    failed: list[tuple[str, str]] = []

    async def work(queue: Queue) -> list[str]:
        chosen = list(dict.fromkeys(ids or ()))
        if status is not None:
            with working("searching…"):
                chosen = [job.id for job in await queue.list(status, _MOST_AT_ONCE)]
        # If the provider cannot, the first job says so, without a question.
        if chosen and not yes and getattr(queue.capabilities, verb.name):
            verb.confirm(len(chosen), JOBS.noun)
        change = queue.retry if verb is RETRY else queue.remove
        with counting_progress(verb.name) as show_progress:
            for number, one in enumerate(chosen, 1):
                try:
                    await change(one)
                except (JobNotFoundError, JobStateError) as error:
                    if len(chosen) == 1:
                        raise
                    failed.append((one, str(error)))
                show_progress(number, len(chosen))
        return chosen

    chosen = target.run(common, work)
    unchanged = {id_ for id_, _ in failed}
    changed = [one for one in chosen if one not in unchanged]
    value = {"queue": target.queue, verb.done: changed, "failed": failures_json(failed)}
    more = len(chosen) == _MOST_AT_ONCE
    remark = f"there may be more than {_MOST_AT_ONCE:,}: run this again" if more else ""
    if chosen:
        common.show(value, f"{plural(len(changed), 'job')} {verb.done}", remark=remark)
    else:
        common.show(value, remark=f"no {status} jobs")
    verb.report(failed)


@jobs.add("matador jobs pause emails --provider redis://localhost")
def pause(*, target: JobQueueOptions, common: Connecting) -> None:
    """Stop all workers from getting jobs of a queue. Running jobs finish."""
    target.run(common, lambda queue: queue.pause())
    show_paused(common, target.queue, True)


@jobs.add("matador jobs resume emails --provider redis://localhost")
def resume(*, target: JobQueueOptions, common: Connecting) -> None:
    """Let workers get jobs of a paused queue again."""
    target.run(common, lambda queue: queue.resume())
    show_paused(common, target.queue, False)


@jobs.add(
    "matador jobs schedules emails --provider redis://localhost",
    "matador jobs schedules emails --provider redis://localhost --remove daily-report",
)
def schedules(
    *,
    target: JobQueueOptions,
    removed: Annotated[
        str | None, option("KEY", "End the recurring job with this key.", "--remove")
    ] = None,
    common: Connecting,
) -> None:
    """List recurring jobs, the next one first, or end one with --remove.

    Jobs that a schedule has added stay when it is removed.
    """
    if removed is not None:
        target.run(common, lambda queue: _unschedule(queue, removed))
        common.show({"queue": target.queue, "removed": removed}, f"schedule {removed} removed")
        return
    found: list[Schedule] = target.run(common, lambda queue: queue.schedules())
    remark = plural(len(found), "schedule") if found else "no schedules"
    value = {"queue": target.queue, "schedules": [_plain(one) for one in found]}
    common.show(value, *([schedules_table(found)] if found else []), remark=remark)


async def _unschedule(queue: Queue, key: str) -> None:
    if await queue.unschedule(key):
        return
    known = [one.key for one in await queue.schedules()]
    raise CommandError(f"queue {queue.name!r} has no schedule {key!r}{suggestion(key, known)}")


@jobs.add(
    'matador jobs add emails welcome \'{"to": "ada@example.com"}\' --provider redis://localhost'
)
def add(
    *,
    target: JobQueueOptions,
    name: Annotated[
        str,
        typer.Argument(metavar="NAME", help="The name of the job.", show_default=False),
    ],
    data: Annotated[
        str | None,
        typer.Argument(metavar="JSON", help="The data as JSON (- for stdin).", show_default=False),
    ] = None,
    job_id: Annotated[str | None, option("ID", "An id of your own.", "--id")] = None,
    delay: Annotated[float | None, option("SECONDS", "Run it after this many seconds.")] = None,
    attempts: Annotated[int | None, option("N", "How often it is tried.", min=1)] = None,
    priority: Annotated[int | None, option("N", "Higher runs first.")] = None,
    concurrency_key: Annotated[
        str | None, option("KEY", "Workers may limit how many jobs with one key run at once.")
    ] = None,
    common: Connecting,
) -> None:
    """Add a job, and create the queue if it does not exist."""
    value = None if data is None else read_data(data, "the data")
    options: JobOptions = {}
    if delay is not None:
        options["delay"] = delay
    if attempts is not None:
        options["attempts"] = attempts
    if priority is not None:
        options["priority"] = priority
    if concurrency_key is not None:
        options["concurrency_key"] = concurrency_key
    added = target.run(
        common, lambda queue: queue.add(name, value, job_id=job_id, **options), create=True
    )
    common.show(_plain(added), f"job {added.id} added to {target.queue}")


def _plain(value: Job[Any] | Schedule) -> dict[str, Any]:
    return msgspec.to_builtins(value)
