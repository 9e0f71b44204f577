"""``matador jobs``: adding, listing, showing and changing jobs, on a provider that stores them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

import pytest
from tests.cli.conftest import Cli, Result
from tests.support.brokers import broker_url
from tests.support.redis import forget_keys

from matador.jobs import ActiveJob, Job, PermanentJobError, Queue, Worker
from matador.testing import wait_for

T = TypeVar("T")

PROVIDER = ["--provider", "sqlite:///jobs.db"]


class Jobs:
    """The queue ``emails``, seen past the command line."""

    def __init__(self, url: str) -> None:
        self._url = url

    def use(self, work: Callable[[Queue], Awaitable[T]]) -> T:
        async def used() -> T:
            async with Queue("emails", provider=self._url) as queue:
                return await work(queue)

        return asyncio.run(used())

    def fail(self, *ids: str) -> None:
        """Add jobs that fail for good."""

        async def work() -> None:
            async with Queue("emails", provider=self._url) as queue:
                for id_ in ids:
                    await queue.add("welcome", {"to": id_}, job_id=id_)
                async with Worker("emails", _refuse, provider=self._url):

                    async def all_failed() -> bool:
                        return {one.id for one in await queue.list("failed")} >= set(ids)

                    await wait_for(all_failed, timeout=30)

        asyncio.run(work())

    def list(self, status: Any) -> list[str]:
        return [one.id for one in self.use(lambda queue: queue.list(status))]

    def get(self, id_: str) -> Job[Any] | None:
        return self.use(lambda queue: queue.get(id_))


async def _refuse(job: object) -> None:
    raise PermanentJobError("no such address\nsecond line")


@pytest.fixture(params=["sqlite", "redis"])
def url(request: pytest.FixtureRequest, folder: Path) -> Iterator[str]:
    """Each provider that stores jobs."""
    if request.param == "sqlite":
        yield f"sqlite:///{folder / 'jobs.db'}"
        return
    prefix = f"test-{uuid4().hex[:10]}"
    yield f"{broker_url('redis')}?prefix={prefix}"
    asyncio.run(forget_keys(broker_url("redis"), prefix))


@pytest.fixture
def jobs(url: str) -> Jobs:
    return Jobs(url)


@pytest.fixture
def call(cli: Cli, url: str) -> Cli:
    """Runs a command on the queue ``emails``."""

    def call(command: str, *arguments: str) -> Result:
        return cli("jobs", command, "emails", "--provider", url, *arguments)

    return call


# -- adding and looking ---------------------------------------------------------------------------


def test_a_job_is_added_counted_listed_and_shown(call: Cli, jobs: Jobs) -> None:
    added = call("add", "welcome", '{"to": "ada"}', "--id", "j1", "--attempts", "5")
    assert (added.code, added.out) == (0, "job j1 added to emails\n")
    assert call("add", "digest", "--delay", "600", "--json").json["status"] == "delayed"
    assert call("stats", "--json").json == {
        "queue": "emails",
        "waiting": 1,
        "delayed": 1,
        "active": 0,
        "completed": 0,
        "failed": 0,
        "paused": False,
    }
    listed = call("list")
    row = listed.out.splitlines()[1].split()
    assert row[:3] == ["j1", "welcome", "0/5"]
    assert '{"to": "ada"}' in listed.out
    assert "1 waiting job" in listed.err
    (delayed,) = call("list", "--status", "delayed", "--json").json["jobs"]
    assert delayed["name"] == "digest"
    assert (
        "no failed jobs (1 waiting, 1 delayed; see --status)"
        in call("list", "--status", "failed").err
    )
    shown = call("show", "--id", "j1")
    assert shown.code == 0
    assert "0 of 5" in shown.out
    (job,) = call("show", "--id", "j1", "--json").json["jobs"]
    assert job["data"] == {"to": "ada"}
    found = jobs.get("j1")
    assert found is not None
    assert found.max_attempts == 5


def test_a_job_is_added_with_a_concurrency_key(cli: Cli, folder: Path) -> None:
    url = f"sqlite:///{folder / 'jobs.db'}"
    add = ("jobs", "add", "emails", "sync", "--provider", url)
    for key in ("ada", "ada", "bob"):
        assert cli(*add, "--concurrency-key", key).code == 0

    async def run() -> tuple[int, int]:
        """How many jobs of one key ran at once at most, and how many at all."""
        running: list[str] = []
        most: list[int] = []
        free = asyncio.Event()

        async def handle(job: ActiveJob[object]) -> None:
            running.append(job.id)
            most.append(len(running))
            if len(most) > 1:
                free.set()
            await free.wait()
            running.remove(job.id)

        limited = Worker("emails", handle, provider=url, concurrency=3, concurrency_per_key=1)
        async with limited:
            await wait_for(lambda: len(most) == 3 and not running)
        return max(most), len(most)

    assert asyncio.run(run()) == (2, 3), "two of one key run one after the other"


def test_a_concurrency_key_that_the_provider_ignores_is_said(
    cli: Cli, caplog: pytest.LogCaptureFixture
) -> None:
    url = f"{broker_url('redis')}?prefix=test-{uuid4().hex[:10]}"
    result = cli("jobs", "add", "emails", "sync", "--provider", url, "--concurrency-key", "ada")
    assert result.code == 0
    assert "does not support 'concurrency_key': it is ignored" in caplog.text
    asyncio.run(forget_keys(broker_url("redis"), url.partition("prefix=")[2]))


def test_a_list_that_is_cut_says_so(call: Cli, jobs: Jobs) -> None:
    jobs.use(lambda queue: queue.add_many([("welcome", number) for number in range(3)]))
    listed = call("list", "--limit", "2")
    assert len(listed.out.splitlines()) == 3
    assert "the first 2; --limit shows more" in listed.err
    assert call("list", "--limit", "2", "--json").json["more"] is True
    assert call("list", "--limit", "3", "--json").json["more"] is False


def test_the_error_of_a_failed_job_is_one_line_in_a_list_and_whole_in_its_details(
    call: Cli, jobs: Jobs
) -> None:
    jobs.fail("j1")
    listed = call("list", "--status", "failed").out
    assert "no such address" in listed
    assert "second line" not in listed
    assert "second line" in call("show", "--id", "j1").out


def test_a_job_with_control_characters_does_not_control_the_terminal(call: Cli, jobs: Jobs) -> None:
    jobs.use(lambda queue: queue.add("\x1b[31mred\n", {"\x1b]0;title\x07": 1}, job_id="j1"))
    for result in (call("list"), call("show", "--id", "j1")):
        assert result.code == 0
        assert "\x1b" not in result.out
        assert "\x07" not in result.out


def test_data_come_from_stdin_or_are_refused(
    call: Cli, monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    (folder / "data.json").write_text('{"to": "ada"}')
    with (folder / "data.json").open() as file:
        monkeypatch.setattr("sys.stdin", file)
        assert call("add", "welcome", "-", "--json").json["data"] == {"to": "ada"}
    wrong = call("add", "welcome", '{"to":')
    assert wrong.code == 2
    assert "the data is not valid JSON" in wrong.err


# -- changing -------------------------------------------------------------------------------------


def test_failed_jobs_are_retried_one_by_one_or_all_at_once(call: Cli, jobs: Jobs) -> None:
    jobs.fail("j1", "j2", "j3")
    assert call("retry", "--id", "j1").out == "1 job retried\n"
    assert jobs.list("waiting") == ["j1"]
    asked = call("retry", "--all")
    assert asked.code == 2
    assert "2 jobs would be retried; add --yes" in asked.err
    done = call("retry", "--all", "--yes", "--json").json
    assert sorted(done["retried"]) == ["j2", "j3"]
    assert done["failed"] == []
    assert sorted(jobs.list("waiting")) == ["j1", "j2", "j3"]
    nothing = call("retry", "--all")
    assert nothing.code == 0
    assert "no failed jobs" in nothing.err


def test_what_cannot_be_retried_is_named_and_the_others_are_retried(call: Cli, jobs: Jobs) -> None:
    jobs.fail("j1")
    jobs.use(lambda queue: queue.add("welcome", job_id="j2"))
    result = call("retry", "--id", "nobody", "--id", "j2", "--id", "j1", "--json")
    assert result.code == 1
    assert result.json["retried"] == ["j1"]
    assert [one["id"] for one in result.json["failed"]] == ["nobody", "j2"]
    assert "error: nobody: " in result.err
    alone = call("retry", "--id", "nobody")
    assert alone.code == 1
    assert alone.err.count("\n") == 1


def test_jobs_are_removed_after_a_confirmation(call: Cli, jobs: Jobs) -> None:
    jobs.fail("j1", "j2")
    jobs.use(lambda queue: queue.add("welcome", job_id="j3"))
    asked = call("remove", "--id", "j3")
    assert asked.code == 2
    assert "1 job would be removed; add --yes" in asked.err
    assert call("remove", "--id", "j3", "--yes").out == "1 job removed\n"
    assert jobs.get("j3") is None
    assert call("remove", "--status", "failed", "--yes").out == "2 jobs removed\n"
    assert jobs.list("failed") == []


def test_a_queue_is_paused_and_resumed(call: Cli, jobs: Jobs) -> None:
    jobs.use(lambda queue: queue.add("welcome"))
    assert call("pause").out == "emails is paused\n"
    assert "emails (paused)" in call("stats").out
    assert jobs.use(lambda queue: queue.stats()).paused
    assert call("resume", "--json").json == {"queue": "emails", "paused": False}
    assert not jobs.use(lambda queue: queue.stats()).paused


def test_schedules_are_listed_and_removed(call: Cli, jobs: Jobs) -> None:
    jobs.use(lambda queue: queue.schedule("daily", "report", {"to": "ada"}, cron="0 7 * * *"))
    jobs.use(lambda queue: queue.schedule("often", "ping", every=3600))
    listed = call("schedules")
    assert "0 7 * * * (UTC)" in listed.out
    assert "every 3600 s" in listed.out
    assert "2 schedules" in listed.err
    found = {one["key"]: one for one in call("schedules", "--json").json["schedules"]}
    assert found["daily"]["data"] == {"to": "ada"}
    wrong = call("schedules", "--remove", "dayly")
    assert wrong.code == 1
    assert "did you mean 'daily'?" in wrong.err
    assert call("schedules", "--remove", "daily").out == "schedule daily removed\n"
    assert [one.key for one in jobs.use(lambda queue: queue.schedules())] == ["often"]


# -- wrong usage ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["stats", "emails"], "--provider is missing: give a URL such as sqlite:///jobs.db"),
        (["stats", "emails", "--provider", "memory://"], "keeps jobs inside each process"),
        (["stats", "emails", "--provider", "sqlit:///jobs.db"], "did you mean 'sqlite'?"),
        (["stats", " ", *PROVIDER], "name must be a non-empty string"),
        (["list", "emails", *PROVIDER, "--status", "fialed"], "did you mean 'failed'?"),
        (["retry", "emails", *PROVIDER], "give --id or --all"),
        (["retry", "emails", *PROVIDER, "--id", "a", "--all"], "give --id or --all"),
        (["remove", "emails", *PROVIDER], "give --id or --status"),
        (["remove", "emails", *PROVIDER, "--status", "active"], "'active' is not one of"),
        (["add", "emails", "x", *PROVIDER, "--delay", "-1"], "delay"),
    ],
)
def test_wrong_usage_is_one_line(cli: Cli, arguments: list[str], says: str) -> None:
    result = cli("jobs", *arguments)
    assert result.code == 2
    assert says in result.err
    assert result.err.count("\n") == 1


def test_looking_creates_neither_a_file_nor_a_queue(cli: Cli, folder: Path) -> None:
    result = cli("jobs", "stats", "emails", *PROVIDER)
    assert result.code == 1
    assert "jobs.db does not exist yet" in result.err
    assert not (folder / "jobs.db").exists()
    assert cli("jobs", "add", "emails", "welcome", *PROVIDER).code == 0
    for _ in range(2):
        result = cli("jobs", "stats", "emials", *PROVIDER)
        assert result.code == 1
        assert "sqlite has no job queue 'emials'" in result.err


def test_a_password_is_never_printed(cli: Cli) -> None:
    url = "amqp://shop:s3cret-word@127.0.0.1:1"
    result = cli("jobs", "stats", "emails", "--provider", url, "--verbose")
    assert result.code == 1
    assert "Traceback" in result.err
    assert "s3cret-word" not in result.out + result.err


COMMANDS = ["stats", "list", "show", "retry", "remove", "pause", "resume", "schedules", "add"]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_an_example(cli: Cli, command: str) -> None:
    result = cli("jobs", command, "--help")
    assert result.code == 0
    assert f"matador jobs {command} emails" in result.out
    assert f"Usage: matador jobs {command} [OPTIONS] QUEUE" in result.out
    assert "--provider" in result.out
    assert "<str>" not in result.out
