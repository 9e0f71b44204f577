"""Settings for all tests."""

from __future__ import annotations

import gc
import logging
import os
import sys
from collections.abc import Generator, Iterator
from typing import Any

import pytest
from hypothesis import settings

from matador.testing import wait_for

# A machine that is busy with other tests is slow now and then, and a process may get no turn for
# some seconds: that is no failure. What happens is noticed as soon as before.
settings.register_profile("default", deadline=None)
settings.load_profile("default")
wait_for.__kwdefaults__ = {**(wait_for.__kwdefaults__ or {}), "timeout": 30.0}

# Spark's Java compiles what runs often a second time, better: in tests, which run everything a few
# times only, that is a third of the work. Processes that tests start inherit it.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1")
os.environ.setdefault("SPARK_LAUNCHER_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")


def pytest_sessionfinish() -> None:
    """End the servers of fault scenarios. pytest-xdist kills a process that takes long to exit."""
    servers = sys.modules.get("chaos.servers")
    if servers is not None:
        servers.end_all()


# What `script/test quick` leaves out: files that start many processes or repeat much.
SLOW = (
    "tests/cli/test_commands.py",
    "tests/cli/test_dashboard.py",
    "tests/cli/test_dead_letters.py",
    "tests/cli/test_hostile_texts.py",
    "tests/cli/test_jobs_worker.py",
    "tests/cli/test_send.py",
    "tests/cli/test_terminal.py",
    "tests/cli/test_wait.py",
    "tests/cli/test_worker.py",
    "tests/compliance/test_memory.py::TestMemoryWithoutAnything",
    "tests/compliance/test_multi.py",
    "tests/compliance/test_sqlite.py::TestSqliteNormal",
    "tests/dashboard/test_transports.py",
    "tests/deploy/test_brokers_script.py",
    "tests/docs/test_pages.py",
    "tests/docs/test_programs.py",
    "tests/docs/test_tiny_transport.py",
    "tests/examples/",
    "tests/jobs/sqlite/test_crashes.py",
    "tests/jobs/test_processes.py",
    "tests/properties/",
    "tests/runtime/test_blocked_loop.py",
    "tests/runtime/test_simpler_forms.py",
    "tests/testing/test_compliance.py",
    "tests/transports/sqlite/test_processes.py",
)
BROKER = (
    "tests/cli/test_broker_commands.py",
    "tests/cli/test_jobs.py",
    "tests/cli/test_jobs_rabbitmq.py",
    "tests/cli/test_rabbitmq_commands.py",
    "tests/docs/test_broker_snippets.py",
    "tests/docs/test_jobs.py",
    "tests/transports/rabbitmq/test_full_queues.py",
    "tests/transports/rabbitmq/test_management.py",
    "tests/transports/rabbitmq/test_own_server.py",
)

# What talks to Kafka and runs each time: all that a transport promises, and a test for each way in.
# The others are left to `script/test kafka`.
KAFKA_EACH_TIME = (
    "tests/channels/test_service.py::TestToOneConsumer::test_a_message_reaches_one",
    "tests/cli/test_broker_commands.py",
    "tests/compliance/test_kafka.py::TestKafka::",
    "tests/dashboard/test_transports.py",
    "tests/pubsub/test_delivery.py::test_every_queue_gets_every_message",
    "tests/rpc/test_calls.py::test_a_call_returns_what_the_handler_returns",
    "tests/spark/test_kafka_ingest.py::test_every_event_becomes_a_row_once",
    "tests/spark/test_kafka_ingest.py::test_spark_reads_the_topics_in_its_executors",
    "tests/spark/test_source_kafka.py::test_a_batch_has_what_is_there",
    "tests/transports/kafka/test_order.py::test_order_holds_with_retries_and_rebalances",
    "tests/transports/kafka/test_transactions.py",
    "tests/ways/test_retries.py::test_attempts_used_up_are_a_dead_letter",
)


# Files whose tests share what takes long to start, and so run in one process; those with a name
# share it with each other, too.
TOGETHER = {
    "tests/compliance/test_kafka.py": "",
    "tests/compliance/test_sqs.py": "",
    "tests/jobs/test_sqs_provider.py": "",
    "tests/spark/test_cluster.py": "",
    "tests/spark/test_connect.py": "",
    "tests/transports/kafka/test_credentials.py": "",
    "tests/transports/rabbitmq/test_full_queues.py": "a RabbitMQ of its own",
    "tests/transports/rabbitmq/test_management.py": "a RabbitMQ of its own",
    "tests/transports/rabbitmq/test_own_server.py": "a RabbitMQ of its own",
}


def pytest_collection_finish() -> None:
    """Keep the garbage collector away from the 14,000 tests and the modules: looking through them
    again and again takes long, and it collects what tests leave behind less often."""
    gc.collect()
    gc.freeze()


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Any test may run in any process, except those of ``TOGETHER``."""
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            return (TOGETHER[file] or file) if file in TOGETHER else nodeid

    return Scheduling(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.nodeid.startswith(SLOW):
            item.add_marker("slow")
        if item.nodeid.startswith(BROKER):
            item.add_marker("broker")
        needs_server = item.get_closest_marker("broker") or item.get_closest_marker("spark")
        if needs_server and "kafka" in item.nodeid.lower():
            item.add_marker("kafka")
            if not item.nodeid.startswith(KAFKA_EACH_TIME):
                item.add_marker("kafka_long")


@pytest.fixture(autouse=True)
def _levels() -> Iterator[None]:
    """Commands that run in this process set levels of loggers: not for the tests that follow."""
    yield
    for name in ("matador.lake", "asyncio", "aiobotocore", "py4j"):
        logging.getLogger(name).setLevel(logging.NOTSET)
    logging.getLogger("pika").setLevel(logging.CRITICAL)  # as the transport does when imported


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Tests of texts that cannot be encoded log them, and reports travel between processes."""
    report = yield
    report.sections = [
        (name, text.encode("utf-8", "backslashreplace").decode()) for name, text in report.sections
    ]
    return report
