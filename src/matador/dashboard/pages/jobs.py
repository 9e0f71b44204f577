"""Job queues: counts, jobs by state, schedules; retry, remove, run now, pause and end."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any
from urllib.parse import urlencode

from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from matador.dashboard.desk import Desk, desk_of, within
from matador.dashboard.guard import field, form_of, read_number
from matador.dashboard.pages.errors import confirmed, not_found, said
from matador.dashboard.pages.messages import attempts_of
from matador.dashboard.render import query
from matador.errors import JobNotFoundError, JobStateError, MatadorError
from matador.jobs import Queue, Schedule
from matador.jobs.queue import QueueStats
from matador.model.job import JOB_STATUSES

PAGE = 50


@dataclass(frozen=True, slots=True)
class View:
    """A job queue, or the reason why it cannot be shown."""

    queue: Queue
    name: str
    provider: str
    stats: QueueStats | None = None
    schedules: Sequence[Schedule] = ()
    problem: str | None = None
    notes: tuple[str, ...] = ()


async def jobs(request: Request) -> Response:
    """All job queues."""
    desk = desk_of(request)
    return desk.renderer.page(request, "jobs.html", **await jobs_values(desk, {}))


async def jobs_values(desk: Desk, params: dict[str, str]) -> dict[str, Any]:
    """The values of the page of job queues."""
    names = [one.name for one in desk.sources.queues if one.source.jobs is not None]
    views = await asyncio.gather(*(_view(desk, name) for name in names))
    return {"views": views, "statuses": JOB_STATUSES}


async def _view(desk: Desk, name: str) -> View:
    """A queue as it is now. Never raises an error of a provider."""
    watched = desk.sources.of_jobs(name)
    queue = None if watched is None else watched.source.jobs
    assert watched is not None
    assert queue is not None
    provider, can = watched.source.transport.name, queue.capabilities
    if watched.source.missing is not None:
        return View(queue, name, provider, problem=watched.source.missing)
    notes: list[str] = []
    try:
        stats = await within(queue.stats()) if can.counts else None
        if stats is None:
            notes.append(f"{provider} cannot count jobs.")
        elif stats.unknown:
            notes.append(f"{provider} does not report how many are {', '.join(stats.unknown)}.")
        schedules = await within(queue.schedules()) if can.schedules else ()
    except (MatadorError, TimeoutError) as error:
        text = str(error) or f"{provider} did not answer in time"
        return View(queue, name, provider, problem=text)
    abilities = {
        "keep recurring jobs": can.schedules,
        "list jobs that have not failed": can.list,
        "pause a queue for all workers": can.pause,
        "remove a job": can.remove,
    }
    lacking = [what for what, able in abilities.items() if not able]
    if lacking:
        *others, last = lacking
        notes.append(f"{provider} cannot {', '.join(others)}{' or ' if others else ''}{last}.")
    return View(queue, name, provider, stats, schedules, None, tuple(notes))


async def job_queue(request: Request) -> Response:
    """The jobs of one queue in one state. Failed ones are dead letters."""
    desk = desk_of(request)
    name = request.query_params.get("queue", "")
    if desk.sources.of_jobs(name) is None:
        return not_found(request, f"There is no job queue {name!r} in this dashboard.")
    status = request.query_params.get("status", "waiting")
    if status not in JOB_STATUSES:
        return not_found(request, f"There is no state {status!r}.")
    if status == "failed":
        return RedirectResponse(f"/dead-letters?{urlencode({'queue': name})}", HTTPStatus.SEE_OTHER)
    skip = min(read_number(request.query_params.get("skip", "")) or 0, 10**9)
    view = await _view(desk, name)
    listed = view.problem is None and view.queue.capabilities.list
    found = await within(view.queue.list(status, PAGE + 1, skip=skip)) if listed else []
    return desk.renderer.page(
        request,
        "job_queue.html",
        view=view,
        statuses=JOB_STATUSES,
        status=status,
        jobs=[replace(one, progress=desk.masking.shown(one.progress)) for one in found[:PAGE]],
        more=skip + PAGE if len(found) > PAGE else None,
    )


async def job(request: Request) -> Response:
    """One job in full, with its attempts."""
    desk = desk_of(request)
    queue = _queue(request)
    if queue is None or not queue.capabilities.find:
        return not_found(request, "Jobs of this queue cannot be found by their id.")
    found = await within(queue.get(_id(request)))
    if found is None:
        return not_found(request, "This job is gone.")
    mask = desk.masking.shown
    parts = [("data", mask(found.data)), ("result", mask(found.result))]
    parts += [("metadata", mask(dict(found.metadata)) or None), ("progress", mask(found.progress))]
    entries = await asyncio.to_thread(desk.index.find, found.id)
    return desk.renderer.page(
        request,
        "job.html",
        job=found,
        view=await _view(desk, request.query_params.get("queue", "")),
        parts=[(name, value) for name, value in parts if value is not None],
        number=next((one.number for one in entries if one.id == found.id), None),
        attempts=await attempts_of(desk, found.id),
    )


async def change_job(request: Request) -> Response:
    """Retry or remove one job. Before it removes one, it asks."""
    desk, form = desk_of(request), form_of(request)
    queue, id_ = _queue(request), _id(request)
    action = field(form, "action")
    if queue is None or action not in ("retry", "remove"):
        return not_found(request)
    name, status = request.query_params["queue"], field(form, "status")
    if status not in JOB_STATUSES:
        status = "waiting"
    if action == "remove" and field(form, "sure") != "yes":
        job = await within(queue.get(id_)) if queue.capabilities.find else None
        if job is None and queue.capabilities.find:
            return not_found(request, "This job is gone.")
        what = "" if job is None else f" ({job.name}, {job.status})"
        return confirmed(
            request,
            "Remove this job",
            f"The job {id_}{what} of {name} would be removed for good",
            f"/jobs/job?{query({'queue': name, 'id': id_})}",
            [("action", "remove"), ("status", status)],
            f"/jobs/queue?{query({'queue': name, 'status': status})}",
        )
    await desk.record(request, f"{action} job", queue=queue.name, id=id_)
    try:
        await within(queue.retry(id_) if action == "retry" else queue.remove(id_))
    except JobNotFoundError:
        return not_found(request, "This job is gone.")
    except JobStateError as error:
        return said(request, str(error), HTTPStatus.CONFLICT)
    desk.monitor.look_soon()
    where = urlencode({"queue": name, "status": status})
    return RedirectResponse(f"/jobs/queue?{where}", HTTPStatus.SEE_OTHER)


async def change_schedule(request: Request) -> Response:
    """Run a recurring job now, pause or resume it, or end it. Before it ends one, it asks."""
    desk, form = desk_of(request), form_of(request)
    queue, key = _queue(request), request.query_params.get("key", "")
    action = field(form, "action")
    if queue is None or action not in ("run", "pause", "resume", "remove"):
        return not_found(request)
    name = request.query_params["queue"]
    if action == "remove" and field(form, "sure") != "yes":
        return confirmed(
            request,
            "Remove this schedule",
            f"The recurring job {key} of {name} would not run any more; jobs that it added stay",
            f"/jobs/schedule?{query({'queue': name, 'key': key})}",
            [("action", "remove")],
            "/jobs",
        )
    await desk.record(request, f"{action} schedule", queue=queue.name, key=key)
    try:
        match action:
            case "run":
                await within(queue.run_schedule(key))
            case "remove":
                if not await within(queue.unschedule(key)):
                    return not_found(request, "This schedule is gone.")
            case _:
                await within(queue.pause_schedule(key, paused=action == "pause"))
    except JobNotFoundError:
        return not_found(request, "This schedule is gone.")
    return RedirectResponse("/jobs", HTTPStatus.SEE_OTHER)


def _queue(request: Request) -> Queue | None:
    found = desk_of(request).sources.of_jobs(request.query_params.get("queue", ""))
    return None if found is None else found.source.jobs


def _id(request: Request) -> str:
    return request.query_params.get("id", "")
