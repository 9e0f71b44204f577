"""The scheduler of a worker goes on, whatever its provider raises."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matador import Hooks
from matador.errors import UnstorableError
from matador.jobs import ActiveJob, JobProvider, Queue, Worker
from matador.model.job import JobSchedule
from matador.model.message import Message
from matador.runtime.facts import Attempt, Sent
from matador.testing import wait_for
from matador.transports.memory import MemoryTransport


class Stumbling(MemoryTransport):
    """Raises what no provider should, the first time that its schedules are read."""

    stumbles = 1

    async def list_schedules(self, queue: str) -> Sequence[JobSchedule]:
        if self.stumbles:
            self.stumbles -= 1
            raise ValueError("stumbled")
        return await super().list_schedules(queue)


async def test_an_unknown_error_does_not_end_schedules() -> None:
    queue = Queue("q", provider=JobProvider(Stumbling()))
    seen: list[ActiveJob[Any]] = []
    errors: list[Any] = []

    async def handle(job: ActiveJob[Any]) -> None:
        seen.append(job)

    worker = Worker(queue, handle, error_backoff=0.01)
    worker.on("error", errors.append)
    async with queue, worker:
        await wait_for(lambda: errors)
        await queue.schedule("tick", "tick", every=0.05)
        await wait_for(lambda: len(seen) >= 2)
    assert [str(event.error) for event in errors] == ["stumbled"]
    await queue.shutdown(disconnect=True)


class Refusing(MemoryTransport):
    """Cannot fire one of its schedules."""

    async def fire_schedule(
        self, queue: str, schedule: JobSchedule, next_at: float, jobs: Sequence[Message]
    ) -> bool:
        if schedule.key == "broken":
            raise UnstorableError("too large")
        return await super().fire_schedule(queue, schedule, next_at, jobs)


async def test_a_schedule_that_cannot_be_fired_does_not_stop_the_others() -> None:
    queue = Queue("q", provider=JobProvider(Refusing()))
    seen: list[ActiveJob[Any]] = []
    errors: list[Any] = []

    async def handle(job: ActiveJob[Any]) -> None:
        seen.append(job)

    worker = Worker(queue, handle, error_backoff=0.01)
    worker.on("error", errors.append)
    async with queue, worker:
        await queue.schedule("broken", "tick", every=0.05)
        await queue.schedule("tick", "tick", every=0.05)
        await wait_for(lambda: len(seen) >= 2 and len(errors) >= 2)
    assert {str(event.error) for event in errors} == {"too large"}
    await queue.shutdown(disconnect=True)


async def test_the_default_delay_of_a_queue_is_not_for_its_schedules() -> None:
    queue = Queue("delayed", default_options={"delay": 600, "unique": "one"})
    facts: list[Sent] = []
    attempts: list[Attempt] = []

    class Facts(Hooks):
        def on_sent(self, batch: Sequence[Sent]) -> None:
            facts.extend(batch)

        def on_attempted(self, batch: Sequence[Attempt]) -> None:
            attempts.extend(batch)

    async def handle(job: ActiveJob[Any]) -> None: ...

    async with queue, Worker(queue, handle, hooks=Facts()):
        await queue.schedule("tick", "tick", every=0.02)
        await wait_for(lambda: len(attempts) >= 2)
    assert {fact.due_at for fact in facts} == {None}
    assert not any("job.unique" in (fact.options or {}) for fact in facts)
    await queue.unschedule("tick")
    await queue.delete()
