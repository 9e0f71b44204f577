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


# What `script/test quick` leaves out: files that start many processes or repeat much.
SLOW = (
    "tests/cli/test_commands.py",
    "tests/cli/test_dead_letters.py",
    "tests/cli/test_hostile_texts.py",
    "tests/cli/test_jobs_worker.py",
    "tests/cli/test_send.py",
    "tests/cli/test_terminal.py",
    "tests/cli/test_worker.py",
    "tests/compliance/test_memory.py::TestMemoryWithoutAnything",
    "tests/compliance/test_multi.py",
    "tests/compliance/test_sqlite.py::TestSqliteNormal",
    "tests/docs/test_pages.py",
    "tests/docs/test_tiny_transport.py",
    "tests/examples/",
    "tests/jobs/sqlite/test_crashes.py",
    "tests/jobs/test_processes.py",
    "tests/properties/",
    "tests/testing/test_compliance.py",
    "tests/transports/sqlite/test_processes.py",
)
BROKER = (
    "tests/cli/test_jobs.py",
    "tests/cli/test_jobs_rabbitmq.py",
    "tests/cli/test_kafka_commands.py",
    "tests/cli/test_rabbitmq_commands.py",
    "tests/cli/test_sqs_commands.py",
    "tests/docs/test_broker_snippets.py",
    "tests/docs/test_jobs.py",
    "tests/transports/rabbitmq/test_management.py",
    "tests/transports/rabbitmq/test_own_server.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.nodeid.startswith(SLOW):
            item.add_marker("slow")
        if item.nodeid.startswith(BROKER):
            item.add_marker("broker")
        needs_server = item.get_closest_marker("broker") or item.get_closest_marker("spark")
        if needs_server and "kafka" in item.nodeid.lower():
            item.add_marker("kafka")


@pytest.fixture(autouse=True)
def _levels() -> Iterator[None]:
    """Commands that run in this process set levels of loggers: not for the tests that follow."""
    yield
    for name in ("matador.lake", "asyncio", "pika", "aiobotocore", "py4j"):
        logging.getLogger(name).setLevel(logging.NOTSET)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Tests of texts that cannot be encoded log them, and reports travel between processes."""
    report = yield
    report.sections = [
        (name, text.encode("utf-8", "backslashreplace").decode()) for name, text in report.sections
    ]
    return report
