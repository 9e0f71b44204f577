"""Chains and groups: jobs that run when others are done, with their results handed on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar, cast
from uuid import uuid4

import msgspec

from matador.errors import InvalidJobError, JobError, JobsUnsupportedError
from matador.jobs.handle import FlowStep, JobHandle, JobQueue

R = TypeVar("R")

INTO = "job.into"
"""The header that names the field of a job's data that gets the results it has waited for.
``name`` gets the only one, ``name[]`` a list of them."""


class _Result:
    """Stands for what the step before returns, or what all of a group return."""

    def __repr__(self) -> str:
        return "RESULT"


RESULT: Final[Any] = _Result()
"""As an argument of a step: what the step before it returns. After a group: a list."""


@dataclass(frozen=True, slots=True)
class Step(Generic[R]):
    """A job that is not added yet: part of a chain or of a group.

    Made by ``declared_job.using(...)`` or ``queue.step(name, data)``.
    """

    queue: JobQueue
    name: str
    data: Any
    options: Mapping[str, Any]
    read_result: Callable[[Any], R]

    @property
    def into(self) -> str | None:
        """The field of its data that is to have the result of the step before."""
        given: object = self.data
        data = cast("dict[str, Any]", given) if isinstance(given, dict) else {}
        found = [name for name, value in data.items() if value is RESULT]
        if len(found) > 1:
            raise InvalidJobError(f"step {self.name!r}: RESULT stands in more than one argument")
        return found[0] if found else None


@dataclass(frozen=True, slots=True)
class Flow(Generic[R]):
    """A chain or a group, to be added. Can be a part of another one."""

    steps: tuple[Step[Any] | Flow[Any], ...]
    last: Step[R]
    many: bool

    async def add(self) -> JobHandle[R]:
        """Add all jobs, or none. The handle is that of the last one.

        Raises:
            JobsUnsupportedError: the provider has no flows, or the steps are in several queues.
            InvalidJobError: an argument is wrong.
        """
        queue = self.last.queue
        if not queue.capabilities.flows:
            raise JobsUnsupportedError(
                f"queue {queue.name!r}: the provider has no chains and groups", queue=queue.name
            )
        jobs = await queue.add_flow(_placed(self, str(uuid4()), None, queue))
        return JobHandle(queue, jobs[0], self.last.read_result)


def chain(first: Step[Any] | Flow[Any], *others: Step[R]) -> Flow[R]:
    """Run steps one after the other. An argument ``RESULT`` is what the step before returned.

    When a step fails for good, those after it fail, too.

    Example:
        >>> handle = await chain(fetch.using(url=url), store.using(page=RESULT)).add()
    """
    if not others:
        raise InvalidJobError("chain: give at least two steps")
    flow: Any = first
    for step in others:
        flow = Flow((flow,), step, many=False)
    return flow


def group(*steps: Step[Any] | Flow[Any], then: Step[R]) -> Flow[R]:
    """Run steps side by side, and ``then`` when all are done. ``RESULT`` is a list of what they
    returned, in their order.

    Example:
        >>> resized = [resize.using(path=path) for path in paths]
        >>> handle = await group(*resized, then=publish.using(images=RESULT)).add()
    """
    if not steps:
        raise InvalidJobError("group: give at least one step")
    return Flow(tuple(steps), then, many=True)


def _placed(
    flow: Step[Any] | Flow[Any], job_id: str, parent: str | None, queue: JobQueue
) -> list[FlowStep]:
    """All steps with their ids, the last one of the flow first."""
    last, steps = (flow, ()) if isinstance(flow, Step) else (flow.last, flow.steps)
    into = last.into
    if last.queue is not queue:
        raise JobsUnsupportedError(
            f"step {last.name!r}: all steps of a flow must be in one queue, {queue.name!r}",
            queue=queue.name,
        )
    if into is not None and isinstance(flow, Step):
        raise InvalidJobError(f"step {last.name!r}: RESULT stands in a first step")
    many = isinstance(flow, Flow) and flow.many
    found = [
        FlowStep(
            job_id,
            last.name,
            _without(last.data, into),
            last.options,
            parent,
            len(steps),
            f"{into}[]" if many and into is not None else into,
        )
    ]
    for index, step in enumerate(steps):
        found += _placed(step, f"{job_id}.{index}", job_id, queue)
    return found


def _without(data: Any, into: str | None) -> Any:
    if into is None:
        return data
    return {name: value for name, value in data.items() if name != into}


def with_results(data: bytes, into: str, results: Mapping[str, bytes | None]) -> bytes:
    """The data of a job with the results that it waited for. In the order of the steps."""
    if not results:
        raise JobError(f"the results for {into!r} are not there any more")
    ordered = [results[one] or b"null" for one in sorted(results, key=_place)]
    name = into.removesuffix("[]")
    raw = msgspec.Raw(b"[%b]" % b",".join(ordered) if into.endswith("[]") else ordered[0])
    fields: dict[str, msgspec.Raw] = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
    return msgspec.json.encode({**fields, name: raw})


def _place(job_id: str) -> int:
    number = job_id.rpartition(".")[2]
    return int(number) if number.isdecimal() else 0
