"""How jobs and schedules look, in tables and in full."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from matador.cli.message_views import Details, iso, when
from matador.cli.output import table
from matador.cli.safe_text import one_line
from matador.model.job import JOB_STATUSES, JobStatus

if TYPE_CHECKING:
    from matador.jobs import Job, QueueStats, Schedule

_LONGEST = 500  # characters of a value in a table, which cuts it to the width of the terminal
# By status: the column with a time, the field it shows, and the field in the last column.
_COLUMNS: dict[JobStatus, tuple[str, str, str]] = {
    "waiting": ("added", "created_at", "data"),
    "delayed": ("due", "scheduled_for", "data"),
    "active": ("started", "processed_at", "progress"),
    "completed": ("completed", "completed_at", "result"),
    "failed": ("failed", "failed_at", "error"),
}


def jobs_table(jobs: Sequence[Job[Any]], status: JobStatus) -> Table:
    """Jobs in one state, one per line."""
    time, field, last = _COLUMNS[status]
    made = table("id", "name", "attempts", time, last, right=("attempts",))
    for column in (made.columns[0], made.columns[3]):
        column.no_wrap = True
    for job in jobs:
        made.add_row(
            Text(one_line(job.id), "bold"),
            one_line(job.name),
            f"{job.attempts}/{job.max_attempts}",
            when(getattr(job, field)),
            Text(_short(getattr(job, last)), overflow="ellipsis", no_wrap=True),
        )
    return made


def _short(value: Any) -> str:
    if value is None:
        return ""
    text = value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)
    return one_line(text.strip().partition("\n")[0][:_LONGEST])


def job_in_full(job: Job[Any]) -> RenderableType:
    """Everything about a job."""
    details = Details(job.id)
    details.fact("name", job.name)
    details.fact("queue", job.queue)
    details.fact("status", job.status)
    details.fact("attempts", f"{job.attempts} of {job.max_attempts}")
    details.fact("priority", job.priority)
    details.fact("added", iso(job.created_at))
    details.fact("due", iso(job.scheduled_for))
    details.fact("last attempt", iso(job.processed_at))
    details.fact("completed", iso(job.completed_at))
    details.fact("failed", iso(job.failed_at))
    if job.error:
        details.part("error", job.error.rstrip())
    details.json("progress", job.progress)
    details.json("metadata", dict(job.metadata) or None)
    details.json("data", job.data)
    details.json("result", job.result)
    return details.rendered


def stats_table(queue: str, stats: QueueStats) -> Table:
    """How many jobs are in each state; – if the provider does not tell."""
    made = table("queue", *JOB_STATUSES, right=JOB_STATUSES)
    numbers: list[Text] = []
    for status in JOB_STATUSES:
        number: int = getattr(stats, status)
        if status in stats.unknown:
            numbers.append(Text("–", "dim"))
        else:
            style = "bold red" if status == "failed" else ""
            numbers.append(Text(f"{number:,}", style if number else "dim"))
    made.add_row(Text(queue + (" (paused)" if stats.paused else ""), "bold"), *numbers)
    return made


def stats_json(queue: str, stats: QueueStats) -> dict[str, Any]:
    """The numbers as ``--json`` prints them; null if the provider does not tell."""
    numbers = {
        status: None if status in stats.unknown else getattr(stats, status)
        for status in JOB_STATUSES
    }
    return {"queue": queue, **numbers, "paused": stats.paused}


def schedules_table(schedules: Sequence[Schedule]) -> Table:
    """Recurring jobs, one per line."""
    made = table("key", "name", "when", "next", "data")
    for column in (made.columns[0], made.columns[3]):
        column.no_wrap = True
    for one in schedules:
        made.add_row(
            Text(one_line(one.key), "bold"),
            one_line(one.name),
            one_line(_recurrence(one)),
            when(one.next_at),
            Text(_short(one.data), overflow="ellipsis", no_wrap=True),
        )
    return made


def _recurrence(schedule: Schedule) -> str:
    if schedule.cron is not None:
        return f"{schedule.cron} ({schedule.timezone})"
    return "" if schedule.every is None else f"every {schedule.every:g} s"
