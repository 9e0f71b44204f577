"""One Spark session for all tests of a process: starting one takes seconds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from matador.spark import spark_session


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is below this folder; and keep it in one process, so that one session is made."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.spark)
            item.add_marker(pytest.mark.xdist_group("spark"))
            item.add_marker(pytest.mark.timeout(900))


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A session on this machine, with two cores."""
    session = spark_session("local[2]", app_name="matador-tests")
    yield session
    session.stop()
