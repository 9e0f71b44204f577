"""Settings for all tests."""

from __future__ import annotations

import logging
import os
from collections.abc import Generator, Iterator

import pytest
from hypothesis import settings

# A machine that is busy with other tests is slow now and then: that is no failure.
settings.register_profile("default", deadline=None)
settings.load_profile("default")

# Spark's Java compiles what runs often a second time, better: in tests, which run everything a few
# times only, that is a third of the work. Processes that tests start inherit it.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1")
os.environ.setdefault("SPARK_LAUNCHER_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")


@pytest.fixture(autouse=True)
def _levels() -> Iterator[None]:
    """Commands that run in this process set levels of loggers: not for the tests that follow."""
    yield
    for name in ("matador.lake", "asyncio", "pika", "py4j"):
        logging.getLogger(name).setLevel(logging.NOTSET)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Tests of texts that cannot be encoded log them, and reports travel between processes."""
    report = yield
    report.sections = [
        (name, text.encode("utf-8", "backslashreplace").decode()) for name, text in report.sections
    ]
    return report
