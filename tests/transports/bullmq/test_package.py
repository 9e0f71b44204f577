"""The parts of BullMQ's package that this transport relies on and that are not public.

If a test fails after an update of the package: compare the script, or the method, with what
``scripts.py``, ``schedulers.py`` and ``lua/guard.lua`` expect of it (keys, arguments, the commands
it runs on a job before it can fail), run the tests of this folder, then write down what is there
now and raise the upper bound of the extra.
"""

from __future__ import annotations

import hashlib
import re
import tomllib
from importlib.metadata import version
from inspect import signature
from pathlib import Path
from typing import Any, cast

import pytest
from bullmq.job_scheduler import JobScheduler
from bullmq.redis_connection import SCRIPT_DEFINITIONS, loadScript
from bullmq.scripts import Scripts

from matador.transports.bullmq.scripts import SHIPPED, THEIRS, apart

KNOWN = {
    "moveJobFromActiveToWait": ("moveJobFromActiveToWait-9.lua", "ac9546cdd232"),
    "addDelayedJob": ("addDelayedJob-6.lua", "33d07c0c376c"),
    "addPrioritizedJob": ("addPrioritizedJob-9.lua", "5c72b69e53d0"),
    "addStandardJob": ("addStandardJob-9.lua", "6f61f23b5d27"),
    "drain": ("drain-5.lua", "38cdebab12d9"),
    "extendLock": ("extendLock-2.lua", "aa54e3c99ff2"),
    "getCounts": ("getCounts-1.lua", "8b92225a199e"),
    "getRanges": ("getRanges-1.lua", "242c9ed1ef98"),
    "moveStalledJobsToWait": ("moveStalledJobsToWait-9.lua", "dad86d89b50d"),
    "moveToActive": ("moveToActive-11.lua", "7d35069db0b8"),
    "moveToDelayed": ("moveToDelayed-11.lua", "1a7b9311ef92"),
    "moveToFinished": ("moveToFinished-14.lua", "8e744ec5d65d"),
    "removeJob": ("removeJob-2.lua", "f2acb16fda20"),
    "retryJob": ("retryJob-11.lua", "01f75f760430"),
    "updateJobScheduler": ("updateJobScheduler-12.lua", "8c71d358aa62"),
    "addJobScheduler": ("addJobScheduler-11.lua", "2c3c3856f30d"),
    "addParentJob": ("addParentJob-6.lua", "8b6bc95ce60c"),
    "getStateV2": ("getStateV2-8.lua", "7332cc020b73"),
    "obliterate": ("obliterate-2.lua", "a093b16d470e"),
    "pause": ("pause-7.lua", "da797a84855a"),
    "removeJobScheduler": ("removeJobScheduler-3.lua", "98c40c2f329d"),
    "reprocessJob": ("reprocessJob-9.lua", "4ea1093385a8"),
    "updateProgress": ("updateProgress-3.lua", "62d0cce017bd"),
}

FILES = {**SCRIPT_DEFINITIONS, **SHIPPED}


@pytest.mark.parametrize("name", THEIRS)
def test_a_script_is_the_one_that_is_called(name: str) -> None:
    text = loadScript(FILES[name]).encode()
    assert (FILES[name], hashlib.sha256(text).hexdigest()[:12]) == KNOWN[name]


MANY = ("addDelayedJob", "addPrioritizedJob", "addStandardJob", "moveToActive", "moveToFinished")


@pytest.mark.parametrize("name", MANY)
def test_functions_of_a_script_can_be_made_once_for_many_jobs(name: str) -> None:
    without_comments = re.sub(
        r"--\[\[.*?\]\]|--.*?$", "", loadScript(FILES[name]), flags=re.DOTALL | re.MULTILINE
    )
    functions, rest = apart(without_comments)
    assert "function" not in rest
    lists: list[str] = re.findall(r"^local ([\w, ]+)", rest, re.MULTILINE)
    of_one_job = {one.strip() for names in lists for one in names.split(",")} - {"rcall"}
    assert of_one_job
    for function in re.split(r"^(?=local )", functions, flags=re.MULTILINE):
        code = re.sub(r"\"[^\"]*\"|'[^']*'", "", function)
        declared: list[str] = re.findall(r"function[ \w]*\(([^)]*)\)", code)
        declared += re.findall(r"(?:local|for) (?!function)([\w, ]+)", code)
        own = {word for names in declared for word in re.findall(r"\w+", names)}
        used = set(re.findall(r"(?<![\w.])[A-Za-z_]\w*", code))
        assert used & of_one_job <= own, function.splitlines()[0]


def test_methods_take_what_they_are_given() -> None:
    scripts, scheduler = cast("Any", Scripts), cast("Any", JobScheduler)
    assert ", ".join(signature(scripts.encodeOpts).parameters) == "self, opts"
    upsert = "self, job_scheduler_id, repeat_opts, job_name, job_data, opts, override, producer_id"
    assert ", ".join(signature(scheduler.upsertJobScheduler).parameters) == upsert
    update = "self, job_scheduler_id, next_millis, template_data, delayed_job_opts, producer_id"
    assert ", ".join(signature(scripts.updateJobSchedulerNextMillis).parameters) == update


def test_the_extra_allows_no_minor_version_that_was_not_tested() -> None:
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())
    major, minor, *_ = version("bullmq").split(".")
    extra, _redis = project["project"]["optional-dependencies"]["bullmq"]
    assert extra.endswith(f",<{major}.{int(minor) + 1}")
