"""A job of ours is a BullMQ job: what is in Redis is what BullMQ's own programs write and read."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.pausing import assert_nothing_is_held_while_paused

from matador.errors import (
    ConfigurationError,
    InvalidJobError,
    JobStateError,
    JobsUnsupportedError,
    QueueNotFoundError,
)
from matador.jobs import ActiveJob, Exponential, Fixed, Keep, Queue, Unique
from matador.model.message import Complete, DeadLetter, Message, Retry
from matador.model.topology import Topology
from matador.testing.wait import wait_for
from matador.transports.bullmq import BullMQTransport

if TYPE_CHECKING:
    from tests.jobs.bullmq.conftest import Work

pytestmark = pytest.mark.broker


async def stored(client: Any, prefix: str, id_: str) -> dict[str, str]:
    """The fields of a job."""
    found = await client.hgetall(f"{prefix}:emails:{id_}")
    return {name.decode(): value.decode() for name, value in found.items()}


# -- how a job is written --------------------------------------------------------------------------


async def test_a_job_has_the_fields_of_a_bullmq_job(queue: Queue, client: Any, prefix: str) -> None:
    await queue.add("welcome", {"to": "ada"}, job_id="j-1", metadata={"tenant": "t"})
    job = await stored(client, prefix, "j-1")
    assert job["name"] == "welcome"
    assert json.loads(job["data"]) == {"_jobData": {"to": "ada"}, "_metadata": {"tenant": "t"}}
    assert json.loads(job["opts"]) == {
        "attempts": 3,
        "backoff": {"type": "exponential", "delay": 1000},
        "removeOnComplete": {"age": 3600, "count": 10_000},
        "removeOnFail": False,
        "jobId": "j-1",
        "delay": 0,
    }
    assert (job["delay"], job["priority"]) == ("0", "0")
    assert await client.lrange(f"{prefix}:emails:wait", 0, -1) == [b"j-1"]


async def test_options_are_translated(queue: Queue, client: Any, prefix: str) -> None:
    await queue.add(
        "one",
        1,
        job_id="j-1",
        attempts=7,
        backoff=Exponential(2, max_delay=30),
        delay=60,
        unique=Unique("key", within=5),
        remove_on_complete=Keep(age=3600, count=10),
        remove_on_fail=True,
    )
    options = json.loads((await stored(client, prefix, "j-1"))["opts"])
    assert options["attempts"] == 7
    assert options["backoff"] == {"type": "exponential", "delay": 2000, "maxDelay": 30000}
    assert options["delay"] == 60000
    assert options["de"] == {"id": "key", "ttl": 5000}
    assert options["removeOnComplete"] == {"age": 3600, "count": 10}
    assert options["removeOnFail"] is True
    assert await client.get(f"{prefix}:emails:de:key") == b"j-1"
    assert 0 < await client.pttl(f"{prefix}:emails:de:key") <= 5000


async def test_provider_options_reach_bullmq_but_not_what_the_queue_decides(
    queue: Queue, client: Any, prefix: str
) -> None:
    given = {"lifo": True, "keepLogs": 5, "jobId": "x", "attempts": 99, "delay": 99, "sizeLimit": 9}
    await queue.add("first", 1, job_id="j-1")
    await queue.add("second", 2, job_id="j-2", attempts=2, provider_options=given)
    options = json.loads((await stored(client, prefix, "j-2"))["opts"])
    assert (options["lifo"], options["kl"], options["sizeLimit"]) == (True, 5, 9)
    assert (options["jobId"], options["attempts"], options["delay"]) == ("j-2", 2, 0)
    assert [job.id for job in await queue.list("waiting")] == ["j-2", "j-1"]
    nested = {"redis": {"deduplication": {"id": "k", "ttl": 5000}}, "sqs": {"headers": {"a": "b"}}}
    await queue.add("nested", 2, job_id="j-3", provider_options=nested)
    options = json.loads((await stored(client, prefix, "j-3"))["opts"])
    assert options["de"] == {"id": "k", "ttl": 5000}
    assert "sqs" not in options
    with pytest.raises(InvalidJobError, match="'parent'"):
        await queue.add("third", 3, provider_options={"parent": {"id": "x"}})
    with pytest.raises(InvalidJobError, match="'deduplication'"):
        await queue.add("third", 3, provider_options={"deduplication": 5})
    with pytest.raises(InvalidJobError):
        await queue.add("third", 3, provider_options={"any": object()})


@pytest.mark.parametrize("id_", ["42", "-42", "a:b", "wait", "hex~00"])
async def test_an_id_that_bullmq_does_not_allow_is_refused(queue: Queue, id_: str) -> None:
    with pytest.raises(InvalidJobError, match="BullMQ allows no"):
        await queue.add("one", 1, job_id=id_)
    assert (await queue.stats()).waiting == 0


async def test_a_name_with_a_colon_is_refused(transport: BullMQTransport, queue: Queue) -> None:
    with pytest.raises(ConfigurationError, match="colon"):
        await transport.open_jobs("a:b")


async def test_a_queue_of_messages_is_not_one_of_jobs(
    transport: BullMQTransport, queue: Queue
) -> None:
    await transport.apply_topology(Topology("shop", queues=["events"]))
    with pytest.raises(ConfigurationError, match="one of messages"):
        await transport.open_jobs("shop.events")
    with pytest.raises(QueueNotFoundError):
        await transport.count_jobs("shop.events")
    with pytest.raises(QueueNotFoundError):
        await transport.count_jobs("unknown")
    assert [str(error) for error in await transport.add_jobs([Message("i", "no", b"{}")])] != [None]


async def test_data_that_are_not_json_are_refused(transport: BullMQTransport, queue: Queue) -> None:
    (error,) = await transport.add_jobs([Message("j-1", "emails", b"{")])
    assert "must be JSON" in str(error)
    assert (await queue.stats()).waiting == 0


async def test_jobs_without_a_priority_are_plain_until_there_is_one_with(
    queue: Queue, client: Any, prefix: str
) -> None:
    for number in range(3):
        await queue.add("plain", number, job_id=f"plain-{number}")
    assert await client.llen(f"{prefix}:emails:wait") == 3
    await queue.add("urgent", 1, job_id="urgent", priority=5)
    assert await client.llen(f"{prefix}:emails:wait") == 0
    await queue.add("plain", 3, job_id="plain-3")
    await queue.add("later", 4, job_id="later", delay=600)
    assert [job.id for job in await queue.list("waiting")] == [
        "urgent",
        "plain-0",
        "plain-1",
        "plain-2",
        "plain-3",
    ]
    found = await queue.get("urgent")
    assert found is not None
    assert found.priority == 5
    found = await queue.get("plain-0")
    assert found is not None
    assert found.priority is None


# -- how it is settled -----------------------------------------------------------------------------


async def one_of(transport: BullMQTransport) -> Any:
    subscription = await transport.subscribe("emails", prefetch=1)
    (delivery,) = await subscription.receive(1)
    await subscription.close()
    return delivery


async def test_a_result_is_the_return_value(
    queue: Queue, transport: BullMQTransport, client: Any, prefix: str
) -> None:
    for id_, result in (("j-1", b'{"a":1}'), ("j-2", None)):
        await queue.add("one", 1, job_id=id_, remove_on_complete=False)
        delivery = await one_of(transport)
        assert await transport.settle([Complete(delivery.receipt, result)]) == [None]
    assert (await stored(client, prefix, "j-1"))["returnvalue"] == '{"a":1}'
    assert (await stored(client, prefix, "j-2"))["returnvalue"] == "null"
    assert (await stored(client, prefix, "j-2"))["atm"] == "1"
    assert [job.id for job in await queue.list("completed")] == ["j-2", "j-1"]


async def test_a_retry_counts_and_keeps_the_error_and_leaves_the_data(
    queue: Queue, transport: BullMQTransport, client: Any, prefix: str
) -> None:
    await queue.add("one", {"a": 1}, job_id="j-1")
    before = await stored(client, prefix, "j-1")
    for attempt in (1, 2):
        delivery = await one_of(transport)
        assert delivery.headers["job.attempts"] == attempt - 1
        headers = {**delivery.headers, "job.attempts": attempt, "job.error": f"bad {attempt}"}
        again = Message("j-1", "emails", b'{"other":1}', headers, delay=0.0)
        assert await transport.settle([Retry(delivery.receipt, again)]) == [None]
        job = await stored(client, prefix, "j-1")
        assert (job["data"], job["opts"]) == (before["data"], before["opts"])
        assert (job["atm"], job["failedReason"]) == (str(attempt), f"bad {attempt}")
    assert json.loads(job["stacktrace"]) == ["bad 1", "bad 2"]
    found = await queue.get("j-1")
    assert found is not None
    assert (found.status, found.attempts, found.error) == ("waiting", 2, "bad 2")


async def test_a_retry_with_a_delay_is_due_then(queue: Queue, work: Work) -> None:
    async def handle(job: ActiveJob[Any]) -> None:
        raise ValueError("not yet")

    await queue.add("one", 1, job_id="j-1", backoff=Fixed(600))
    await work(handle)

    async def is_delayed() -> bool:
        return (await queue.stats()).delayed == 1

    await wait_for(is_delayed, timeout=10)
    found = await queue.get("j-1")
    assert found is not None
    assert found.scheduled_for is not None
    assert found.processed_at is not None
    assert 595 < (found.scheduled_for - found.processed_at).total_seconds() < 605
    assert (found.status, found.attempts, found.error) == ("delayed", 1, "not yet")
    assert [job.scheduled_for for job in await queue.list("delayed")] == [found.scheduled_for]


async def test_a_failed_job_can_be_redriven_as_a_dead_letter(
    queue: Queue, transport: BullMQTransport
) -> None:
    await queue.add("one", {"a": 1}, job_id="j-1", attempts=9, remove_on_complete=Keep(count=3))
    delivery = await one_of(transport)
    letter = Message("j-1", "emails", delivery.body, {**delivery.headers, "job.attempts": 1})
    settled = await transport.settle([DeadLetter(delivery.receipt, "undeliverable", "no", letter)])
    assert settled == [None]
    (found,) = [one async for one in transport.browse("emails.undeliverable")]
    assert (found.id, found.reason, found.headers["job.error"]) == ("j-1", "no", "no")
    (taken,) = await transport.take("emails.undeliverable", [found.position])
    assert taken is not None
    with pytest.raises(JobStateError, match="redriven"):
        await queue.retry("j-1")
    again = Message("j-1", "emails", taken.body, taken.headers)
    assert await transport.settle([Retry(taken.receipt, again)]) == [None]
    job = await queue.get("j-1")
    assert job is not None
    assert (job.status, job.name, job.data, job.max_attempts) == ("waiting", "one", {"a": 1}, 9)
    delivery = await one_of(transport)
    assert await transport.settle([Complete(delivery.receipt)]) == [None]
    assert [job.id for job in await queue.list("completed")] == ["j-1"]


@pytest.mark.parametrize("lease", [1.0])
async def test_stalled_attempts_become_attempts_of_bullmq(
    queue: Queue, transport: BullMQTransport, client: Any, prefix: str, work: Work
) -> None:
    await queue.add("one", 1, job_id="j-1", backoff=Fixed(600))
    await one_of(transport)  # whose worker dies

    async def handle(job: ActiveJob[Any]) -> None:
        raise ValueError(f"attempt {job.attempts}")

    await work(handle)

    async def is_delayed() -> bool:
        return (await queue.stats()).delayed == 1

    await wait_for(is_delayed, timeout=10)
    job = await stored(client, prefix, "j-1")
    assert (job["atm"], job["stc"], job["failedReason"]) == ("2", "0", "attempt 1")


async def test_deleting_forgets_unique_keys_schedules_and_parents(
    queue: Queue, client: Any, prefix: str, work: Work
) -> None:
    done: list[str] = []

    async def handle(job: ActiveJob[Any]) -> None:
        done.append(job.id)

    await queue.add("one", 1, unique=Unique("key", within=600))
    await queue.schedule("tick", "tick", every=3600)
    await client.zadd(f"{prefix}:emails:waiting-children", {"p-1": 1})
    await client.hset(f"{prefix}:emails:p-1", "name", "parent")
    worker = await work(handle)
    await wait_for(lambda: len(done) == 2, timeout=10)
    await worker.close()
    await queue.delete()
    kept = {key.decode() for key in await client.keys(f"{prefix}:*")}
    assert kept <= {f"{prefix}:emails:meta", f"{prefix}:emails:marker"}
    again = await queue.add("one", 1, unique=Unique("key", within=600))
    assert again.status == "waiting"


async def test_missed_times_come_once_only(queue: Queue) -> None:
    with pytest.raises(JobsUnsupportedError, match="missed='all'"):
        await queue.schedule("tick", "tick", every=60, missed="all")
    with pytest.raises(InvalidJobError, match="colon"):
        await queue.schedule("a:b", "tick", every=60)


async def test_a_paused_worker_holds_nothing(transport: BullMQTransport) -> None:
    await assert_nothing_is_held_while_paused(transport, "paused")


@pytest.mark.parametrize("keep", [Keep(age=1), Keep(count=2), Keep(age=3600, count=2)])
async def test_jobs_past_their_time_go_when_others_complete(
    queue: Queue, client: Any, prefix: str, work: Work, keep: Keep
) -> None:
    async def done(*ids: str) -> bool:
        return {one.id for one in await queue.list("completed")} >= set(ids)

    async def handle(job: ActiveJob[Any]) -> Any:
        return job.data

    await work(handle)
    for number in range(3):
        await queue.add("one", number, job_id=f"j-{number}", remove_on_complete=keep)
        await wait_for(lambda: done(f"j-{number}"))  # noqa: B023
    job = await stored(client, prefix, "j-2")
    assert (job["returnvalue"], job["atm"]) == ("2", "1")
    # The server says when it was taken; the worker, whose clock follows, when it was done.
    assert int(job["finishedOn"]) > int(job["processedOn"]) - 1000

    async def trimmed() -> (
        bool
    ):  # BullMQ counts ages in whole seconds, and looks when one completes
        last = await queue.add("one", 3, remove_on_complete=keep)
        await wait_for(lambda: done(last.id))
        found = [one.id for one in await queue.list("completed")]
        assert found[0] == last.id
        return not {"j-0", "j-1"}.intersection(found) and len(found) <= (keep.count or 1_000)

    await wait_for(trimmed)
    assert {key async for key in client.scan_iter(f"{prefix}:emails:j-*")} <= {
        f"{prefix}:emails:j-2".encode()
    }
