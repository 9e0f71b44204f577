"""Job queues: counts, jobs by state, schedules; pause, resume, retry, remove."""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Any
from urllib.parse import urlencode

from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from matador.dashboard.desk import Desk, desk_of
from matador.dashboard.guard import field, form_of, read_number
from matador.dashboard.job_desk import PAGE, within
from matador.dashboard.pages.errors import not_found, said
from matador.errors import JobError, JobNotFoundError, JobStateError
from matador.jobs import Queue
from matador.model.job import JOB_STATUSES

_ALL_LIMIT = 1000


async def jobs(request: Request) -> Response:
    """All job queues."""
    desk = desk_of(request)
    return desk.renderer.page(request, "jobs.html", **await jobs_values(desk, {}))


async def jobs_values(desk: Desk, params: dict[str, str]) -> dict[str, Any]:
    """What the page of job queues shows."""
    views = await asyncio.gather(*(desk.jobs.view(name) for name in desk.jobs.names))
    return {"views": views, "statuses": JOB_STATUSES}


async def job_queue(request: Request) -> Response:
    """The jobs of one queue in one state."""
    desk = desk_of(request)
    name = request.query_params.get("queue", "")
    if desk.jobs.queue(name) is None:
        return not_found(request, f"There is no job queue {name!r} in this dashboard.")
    status = request.query_params.get("status", "failed")
    if status not in JOB_STATUSES:
        return not_found(request, f"There is no state {status!r}.")
    skip = min(read_number(request.query_params.get("skip", "")) or 0, 10**9)
    view = await desk.jobs.view(name)
    found = await desk.jobs.page(name, status, skip) if view.can_list else []
    return desk.renderer.page(
        request,
        "job_queue.html",
        view=view,
        statuses=JOB_STATUSES,
        status=status,
        jobs=[replace(one, progress=desk.masking.shown(one.progress)) for one in found[:PAGE]],
        more=skip + PAGE if len(found) > PAGE else None,
        skip=skip,
    )


async def job(request: Request) -> Response:
    """One job in full."""
    desk = desk_of(request)
    queue = _queue(request)
    if queue is None or not queue.capabilities.find:
        return not_found(request, "Jobs of this queue cannot be found by their id.")
    found = await within(queue.get(_id(request)))
    if found is None:
        return not_found(request, "This job is gone.")
    view = await desk.jobs.view(queue.name)
    mask = desk.masking.shown
    parts = [("data", mask(found.data)), ("result", mask(found.result))]
    parts += [("metadata", mask(dict(found.metadata)) or None), ("progress", mask(found.progress))]
    return desk.renderer.page(
        request,
        "job.html",
        job=found,
        view=view,
        parts=[(name, value) for name, value in parts if value is not None],
    )


async def change_queue(request: Request) -> Response:
    """Pause or resume a queue, or retry all of its failed jobs."""
    desk = desk_of(request)
    queue = _queue(request)
    if queue is None:
        return not_found(request)
    action = field(form_of(request), "action")
    if action in ("pause", "resume"):
        await desk.record(request, f"{action} jobs", queue=queue.name)
        await within(queue.pause() if action == "pause" else queue.resume())
        return RedirectResponse("/jobs", HTTPStatus.SEE_OTHER)
    if action == "retry-all":
        await desk.record(request, "retry all jobs", queue=queue.name)
        done = 0
        for one in await within(queue.list("failed", _ALL_LIMIT)):
            try:
                await within(queue.retry(one.id))
                done += 1
            except JobError:
                continue  # somebody else was quicker
        await desk.record(request, "retry all jobs done", queue=queue.name, jobs=done)
        return _back(queue, "failed")
    return said(request, "Choose what to do.", HTTPStatus.BAD_REQUEST)


async def change_job(request: Request) -> Response:
    """Retry or remove one job. Before it removes one, it asks."""
    desk, form = desk_of(request), form_of(request)
    queue, id_ = _queue(request), _id(request)
    action = field(form, "action")
    if queue is None or action not in ("retry", "remove"):
        return not_found(request)
    status = field(form, "status")
    if status not in JOB_STATUSES:
        status = "failed"
    if action == "remove" and field(form, "sure") != "yes":
        job = await within(queue.get(id_)) if queue.capabilities.find else None
        if job is None and queue.capabilities.find:
            return not_found(request, "This job is gone.")
        return desk.renderer.page(
            request, "job_remove.html", queue=queue.name, id=id_, job=job, status=status
        )
    await desk.record(request, f"{action} job", queue=queue.name, id=id_)
    try:
        await within(queue.retry(id_) if action == "retry" else queue.remove(id_))
    except JobNotFoundError:
        return not_found(request, "This job is gone.")
    except JobStateError as error:
        return said(request, str(error), HTTPStatus.CONFLICT)
    return _back(queue, status)


def _queue(request: Request) -> Queue | None:
    return desk_of(request).jobs.queue(request.query_params.get("queue", ""))


def _id(request: Request) -> str:
    return request.query_params.get("id", "")


def _back(queue: Queue, status: str) -> Response:
    where = urlencode({"queue": queue.name, "status": status})
    return RedirectResponse(f"/jobs/queue?{where}", HTTPStatus.SEE_OTHER)
