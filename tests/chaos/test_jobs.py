"""Workers of jobs are killed in the middle of them, on each provider that outlives them.

``chaos/run PROFILE jobs`` does the same with 5,000 jobs and 20 kills.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from chaos.catalogue import Scenario
from chaos.job_run import job_run
from chaos.progress import Progress
from tests.support.chaos import assert_holds

pytestmark = pytest.mark.chaos

PROVIDERS = [
    pytest.param("sqlite"),
    pytest.param("bullmq", marks=pytest.mark.broker),
    pytest.param("rabbitmq", marks=pytest.mark.broker),
    pytest.param("sqs", marks=[pytest.mark.broker, pytest.mark.xdist_group("sqs")]),
]


@pytest.mark.parametrize("provider", PROVIDERS)
def test_every_job_ends_once_though_workers_are_killed(provider: str, tmp_path: Path) -> None:
    play = partial(job_run, progress=Progress(), jobs=300, kills=3)
    assert_holds(Scenario("jobs", "every job ends once", play), provider, tmp_path)
