"""The code in the guides for the brokers runs on real servers and prints what it should."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.docs.brokers import Brokers
from tests.support.sqs import CREDENTIALS

SNIPPETS = Path(__file__).parents[2] / "docs" / "snippets"

SAYS: dict[str, list[str]] = {
    "kafka_order.py": ["ann: placed", "ann: paid", "ann: sent"],
    "rabbitmq_fleet.py": ["write-invoice: not stored, QueueNotFoundError", "1 sent"],
    "redis_replay.py": ["3 can be read again"],
    "sqs_fifo.py": ["ann: placed", "ann: paid", "ann: sent"],
}
URLS = {
    "KAFKA_URL": "kafka://localhost:9092",
    "RABBITMQ_URL": "amqp://localhost/shop",
    "REDIS_URL": "redis://localhost:6379/0",
    "SQS_URL": "sqs://eu-west-1",
}


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[Brokers]:
    brokers = Brokers(tmp_path)
    yield brokers
    brokers.close()


@pytest.mark.parametrize("snippet", SAYS)
def test_a_snippet_says_what_it_should(snippet: str, brokers: Brokers, tmp_path: Path) -> None:
    needed = {name: url for name, url in URLS.items() if name in (SNIPPETS / snippet).read_text()}
    done = subprocess.run(
        [sys.executable, "-W", "error", str(SNIPPETS / snippet)],
        cwd=tmp_path,
        env={
            **os.environ,
            **CREDENTIALS,
            **{name: brokers.url(url) for name, url in needed.items()},
        },
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == SAYS[snippet]
