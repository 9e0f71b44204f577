"""Chains and groups: jobs that run when others are done, with their results handed on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Generic, Protocol, TypeVar
from uuid import uuid4

import msgspec

from matador.errors import InvalidJobError, JobsUnsupportedError
from matador.jobs.job import Job
from matador.model.job import JobCapabilities

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


class StepQueue(Protocol):
    """What a step needs of its queue."""

    @property
    def name(self) -> str:
        """The name of the queue."""
        ...

    @property
    def capabilities(self) -> JobCapabilities:
        """What the provider can do."""
        ...

    async def add_flow(self, steps: Sequence[FlowStep]) -> list[Job[Any]]:
        """Add the jobs of a flow, all or none; the last one first."""
        ...


@dataclass(frozen=True, slots=True)
class Step(Generic[R]):
    """A job that is not added yet: part of a chain or of a group.

    Made by ``declared_job.using(...)`` or ``queue.step(name, data)``.
    """

    queue: StepQueue
    name: str
    data: Any
    options: Mapping[str, Any]
    read_result: Callable[[Any], R]

    @property
    def into(self) -> str | None:
        """The field of its data that is to have the result of the step before."""
        if not isinstance(self.data, dict):
            return None
        found = [name for name, value in self.data.items() if value is RESULT]  # pyright: ignore[reportUnknownVariableType] - any data
        if len(found) > 1:
            raise InvalidJobError(f"step {self.name!r}: RESULT stands in more than one argument")
        return str(found[0]) if found else None  # pyright: ignore[reportUnknownArgumentType] - any data


@dataclass(frozen=True, slots=True)
class FlowStep:
    """A step in its place: its id, for whom it is done, for how many it waits."""

    id: str
    step: Step[Any]
    parent: str | None
    children: int
    into: str | None


@dataclass(frozen=True, slots=True)
class Flow(Generic[R]):
    """A chain or a group, to be added. Can be a part of another one."""

    steps: tuple[Step[Any] | Flow[Any], ...]
    last: Step[R]

    async def add(self) -> FlowHandle[R]:
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
        placed = _placed(self, str(uuid4()), None)
        if any(one.step.queue is not queue for one in placed):
            raise JobsUnsupportedError(
                f"all steps of a flow must be in one queue, {queue.name!r}", queue=queue.name
            )
        jobs = await queue.add_flow(placed)
        return FlowHandle(jobs[0], tuple(jobs[1:]), self.last.read_result)


@dataclass(frozen=True, slots=True)
class FlowHandle(Generic[R]):
    """The jobs of a flow that was added. ``queue.handle(flow.last)`` awaits the result."""

    last: Job[Any]
    others: tuple[Job[Any], ...]
    read_result: Callable[[Any], R]


def chain(first: Step[Any] | Flow[Any], *others: Step[R]) -> Flow[R]:
    """Run steps one after the other. An argument ``RESULT`` is what the step before returned.

    When a step fails for good, those after it fail, too.

    Example:
        >>> await chain(fetch.using(url=url), parse.using(page=RESULT), store.using(rows=RESULT)).add()
    """
    if not others:
        raise InvalidJobError("chain: give at least two steps")
    flow: Any = first
    for step in others:
        flow = Flow((flow,), step)
    return flow


def group(*steps: Step[Any] | Flow[Any], then: Step[R]) -> Flow[R]:
    """Run steps side by side, and ``then`` when all are done. ``RESULT`` is a list of what they
    returned, in their order.

    Example:
        >>> await group(*(resize.using(path=p) for p in paths), then=publish.using(images=RESULT)).add()
    """
    if not steps:
        raise InvalidJobError("group: give at least one step")
    return Flow(tuple(steps), then)


def _placed(flow: Step[Any] | Flow[Any], job_id: str, parent: str | None) -> list[FlowStep]:
    """All steps with their ids, the last one of the flow first."""
    if isinstance(flow, Step):
        if flow.into is not None:
            raise InvalidJobError(f"step {flow.name!r}: RESULT stands in a first step")
        return [FlowStep(job_id, flow, parent, 0, None)]
    into = flow.last.into
    many = len(flow.steps) > 1
    found = [
        FlowStep(
            job_id,
            replace(flow.last, data=_without(flow.last.data, into)),
            parent,
            len(flow.steps),
            None if into is None else f"{into}[]" if many else into,
        )
    ]
    for index, step in enumerate(flow.steps):
        found += _placed(step, f"{job_id}.{index}", job_id)
    return found


def _without(data: Any, into: str | None) -> Any:
    if into is None:
        return data
    return {name: value for name, value in data.items() if name != into}


def with_results(data: bytes, into: str, results: Mapping[str, bytes | None]) -> bytes:
    """The data of a job with the results that it waited for. In the order of the steps."""
    ordered = [results[one] or b"null" for one in sorted(results, key=_place)]
    name = into.removesuffix("[]")
    raw = msgspec.Raw(b"[%b]" % b",".join(ordered) if into.endswith("[]") else ordered[0])
    fields: dict[str, msgspec.Raw] = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
    return msgspec.json.encode({**fields, name: raw})


def _place(job_id: str) -> int:
    number = job_id.rpartition(".")[2]
    return int(number) if number.isdecimal() else 0
