"""The guides about jobs are true: the table of providers, and the programs of other libraries."""

from __future__ import annotations

import ast
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields
from datetime import date, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from docs.capabilities import PAGE, PROVIDERS, ROWS, page_with_table, table
from tests.docs.brokers import Brokers
from tests.support.node import bullmq_modules

import matador.errors
from matador import jobs
from matador.jobs import JobCapabilities
from matador.model.job import JobSchedule
from matador.policy.recurrence import next_time

SNIPPETS = Path(__file__).parents[2] / "docs" / "snippets"
OTHERS = SNIPPETS / "coming_from"


def test_the_table_of_providers_is_what_the_providers_say() -> None:
    page = PAGE.read_text()
    assert page == page_with_table(page), "run docs/capabilities.py"


def test_the_table_has_every_ability_and_every_provider() -> None:
    assert ROWS.keys() == {field.name for field in fields(JobCapabilities)}
    heading = table().splitlines()[0]
    assert [name for name in PROVIDERS if name not in heading] == []


def test_the_reference_has_every_public_name() -> None:
    page = (PAGE.parents[1] / "reference" / "jobs.md").read_text()
    described = set(re.findall(r"^::: matador\.jobs\.(\w+)$", page, re.MULTILINE))
    errors = {name for name in jobs.__all__ if name in vars(matador.errors)}
    assert described == set(jobs.__all__) - errors


async def test_the_cron_expressions_of_the_guide_are_valid() -> None:
    page = (PAGE.parent / "recurring-jobs.md").read_text()
    expressions = re.findall(r"^\| `([^`]+)` \| (?:at|every) ", page, re.MULTILINE)
    assert len(expressions) == 5
    queue = jobs.Queue("expressions")
    for number, cron in enumerate(expressions):
        await queue.schedule(str(number), "job", cron=cron)
    with pytest.raises(jobs.InvalidJobError):
        await queue.schedule("never", "job", cron="0 0 30 2 *")


@pytest.mark.parametrize(
    ("cron", "day", "local"),
    [
        ("30 2 * * *", (2027, 3, 28), ["03:00"]),
        ("30 2 * * *", (2027, 10, 31), ["02:30"]),
        ("30 * * * *", (2027, 3, 28), ["00:30", "01:30", "03:30", "04:30"]),
        ("30 * * * *", (2027, 10, 31), ["00:30", "01:30", "02:30", "02:30"]),
        ("0 30 2 * * *", (2027, 3, 28), []),
        ("0 30 2 * * *", (2027, 10, 31), ["02:30", "02:30"]),
    ],
)
def test_what_the_guide_says_about_daylight_saving(
    cron: str, day: tuple[int, int, int], local: list[str]
) -> None:
    zone = ZoneInfo("Europe/Berlin")
    moment = datetime(*day, tzinfo=zone) - timedelta(seconds=1)
    schedule = JobSchedule(key="key", name="job", cron=cron, timezone=zone.key)
    found, after = list[str](), moment.timestamp()
    while len(found) < 4:
        after = next_time(schedule, after)
        time = datetime.fromtimestamp(after, zone)
        if time.date() != date(*day):
            break
        found.append(f"{time:%H:%M}")
    assert found == local


@pytest.mark.parametrize("name", ["celery_emails", "rq_emails", "rq_cron", "dramatiq_emails"])
def test_a_program_of_another_library_is_valid_and_adds_the_same_jobs(name: str) -> None:
    source = (OTHERS / f"{name}.py").read_text()
    ast.parse(source)
    assert name.partition("_")[0] in source
    assert "newsletter" in source


@pytest.fixture
def redis_url(tmp_path: Path) -> Iterator[str]:
    brokers = Brokers(tmp_path)
    yield brokers.url("redis://localhost:6379/0")
    brokers.close()


@pytest.mark.parametrize("program", ["bullmq_emails.py", "bullmq_emails.mjs"])
def test_a_program_of_bullmq_says_what_ours_does(
    program: str, redis_url: str, tmp_path: Path
) -> None:
    command = [sys.executable, str(OTHERS / program)]
    if program.endswith(".mjs"):
        (tmp_path / "node_modules").symlink_to(bullmq_modules())
        copy = tmp_path / program
        copy.write_text((OTHERS / program).read_text())
        command = ["node", str(copy)]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env={**os.environ, "REDIS_URL": redis_url},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout.splitlines() == ["sent to ada@example.com"], done.stderr


def test_one_program_adds_jobs_and_another_one_runs_them(tmp_path: Path) -> None:
    program = [sys.executable, "-u", str(SNIPPETS / "job_processes.py")]
    added = subprocess.run(
        [*program, "a.png", "b.png"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert added.stdout == "2 jobs wait\n", added.stderr
    with subprocess.Popen(program, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdout is not None
        printed = {worker.stdout.readline(), worker.stdout.readline()}
        os.kill(worker.pid, signal.SIGTERM)
        assert worker.wait(30) == 0
    assert printed == {
        "a.png is 200 pixels wide now\n",
        "b.png is 200 pixels wide now\n",
    }
