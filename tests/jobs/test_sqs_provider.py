"""SQS keeps the contract, as far as a queue of messages can."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.jobs.own_headers import check_own_headers
from tests.support.pausing import assert_nothing_is_held_while_paused
from tests.support.sqs import CREDENTIALS, OwnElasticMQ, forget_queues, sqs_client

from matador.jobs import ActiveJob
from matador.testing import wait_for
from matador.testing.jobs import JobProviderContract
from matador.transports.base import Transport
from matador.transports.sqs import SqsTransport


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnElasticMQ]:
    own = OwnElasticMQ(tmp_path_factory.mktemp("sqs"))
    own.start()
    yield own
    own.kill()


_server: OwnElasticMQ


@pytest.fixture(autouse=True)
def _environment(server: OwnElasticMQ, monkeypatch: pytest.MonkeyPatch) -> None:
    global _server
    _server = server
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)


@pytest.mark.broker
@pytest.mark.xdist_group("sqs")
class TestSqs(JobProviderContract):
    counts_workers = False
    delay = 2.0
    patience = 30.0

    async def make_transport(self) -> Transport:
        return SqsTransport(_server.url, lease=3, wait=1)

    async def make_patient_transport(self) -> Transport:
        return SqsTransport(_server.url, lease=30, wait=1)

    async def tidy_up(self) -> None:
        await forget_queues(_server.url, self.queue.name)

    async def test_headers_of_its_own_travel_with_a_job(self) -> None:
        await check_own_headers(self.queue)

    async def test_a_job_of_another_program_is_run(self) -> None:
        """As wire-formats describe it: a wrapped body, and four attributes."""
        seen: list[ActiveJob[dict[str, str]]] = []

        async def handle(job: ActiveJob[dict[str, str]]) -> None:
            seen.append(job)

        async with sqs_client(_server.url) as client:
            url = (await client.get_queue_url(QueueName=self.queue.name))["QueueUrl"]
            await client.send_message(
                QueueUrl=url,
                MessageBody='{"_jobData":{"to":"ada"},"_metadata":{"tenant":"t1"}}',
                MessageAttributes={
                    "job.id": {"DataType": "String", "StringValue": "theirs"},
                    "job.name": {"DataType": "String", "StringValue": "welcome"},
                    "job.maxAttempts": {"DataType": "Number", "StringValue": "5"},
                    "job.createdAt": {"DataType": "Number", "StringValue": "1794769357436"},
                },
            )
        await self._work(handle)
        await wait_for(lambda: seen, timeout=self.patience)
        (job,) = seen
        assert (job.id, job.name, job.data) == ("theirs", "welcome", {"to": "ada"})
        assert (job.metadata, job.max_attempts, job.attempts) == ({"tenant": "t1"}, 5, 0)
        assert job.created_at.year == 2026

    async def test_another_program_finds_a_job_of_ours(self) -> None:
        job = await self.queue.add("welcome", {"to": "ada"}, metadata={"tenant": "t1"}, attempts=4)
        async with sqs_client(_server.url) as client:
            url = (await client.get_queue_url(QueueName=self.queue.name))["QueueUrl"]
            (found,) = (
                await client.receive_message(
                    QueueUrl=url, MessageAttributeNames=["All"], WaitTimeSeconds=5
                )
            )["Messages"]
        assert found["Body"] == '{"_jobData":{"to":"ada"},"_metadata":{"tenant":"t1"}}'
        attributes = found["MessageAttributes"]
        assert {name: one["StringValue"] for name, one in attributes.items()} == {
            "job.id": job.id,
            "job.name": "welcome",
            "job.maxAttempts": "4",
            "job.createdAt": str(round(job.created_at.timestamp() * 1000)),
        }
        assert attributes["job.maxAttempts"]["DataType"] == "Number"


@pytest.mark.broker
@pytest.mark.xdist_group("sqs")
async def test_a_paused_worker_holds_nothing() -> None:
    transport = SqsTransport(_server.url, lease=30, wait=1)
    try:
        await assert_nothing_is_held_while_paused(transport, "paused")
    finally:
        await forget_queues(_server.url, "paused")
