"""Queries and predicates only read the lake: whatever else they try is refused before it runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from tests.spark.journal_files import segment, sent
from tests.spark.read_only_queries import DOING_MORE, HOME, PREDICATES_DOING_MORE, READING

from matador.errors import ConfigurationError
from matador.spark import Lake
from matador.spark.tables.harmless_functions import HARMLESS_FUNCTIONS
from matador.spark.tables.read_only_sql import _GROUPS, _HARMLESS, check_predicate

_STREAM = "SELECT 1 FROM sql_keywords() WHERE keyword = 'STREAM'"


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Iterator[Lake]:
    folder = tmp_path_factory.mktemp("read-only")
    segment(folder / "journal", "a", [sent(1), sent(2)])
    made = Lake(folder / "lake", spark=spark)
    made.ingest(folder / "journal")
    spark.range(5).createOrReplaceTempView("private")
    yield made
    spark.catalog.dropTempView("private")


@pytest.mark.parametrize("query", READING)
def test_what_only_reads_is_understood(lake: Lake, query: str) -> None:
    assert lake.sql(query).columns


def test_what_only_reads_is_answered(lake: Lake) -> None:
    assert lake.sql("WITH q AS (TABLE events) SELECT upper(id) FROM q").count() == 2


@pytest.mark.parametrize("query", DOING_MORE)
def test_what_does_more_is_refused_and_does_nothing(lake: Lake, query: str, tmp_path: Path) -> None:
    expected, said = ConfigurationError, "is not allowed here: use one SELECT"
    if "STREAM" in query and not lake.spark.sql(_STREAM).count():
        # Spark 4.0 has no such keyword: it is the name of a table that there is not.
        expected, said = AnalysisException, "`STREAM` cannot be found"
    with pytest.raises(expected, match=said):
        lake.sql(query.replace("{folder}", str(tmp_path)))
    assert list(tmp_path.iterdir()) == []


def test_the_environment_is_not_put_into_a_query(lake: Lake, spark: SparkSession) -> None:
    (row,) = lake.sql("SELECT '${env:PATH}' AS x").collect()
    assert row.x == "${env:PATH}"
    (row,) = lake.sql("SELECT '${env:PATH}' AS x", unrestricted=True).collect()
    assert row.x != "${env:PATH}", "the session is as it was"


def test_everything_is_open_to_whoever_asks_for_it(lake: Lake) -> None:
    (row,) = lake.sql(f"SELECT {HOME} AS home FROM events LIMIT 1", unrestricted=True).collect()
    assert row.home
    assert lake.sql("SELECT * FROM private", unrestricted=True).count() == 5


@pytest.mark.parametrize("predicate", PREDICATES_DOING_MORE)
def test_a_predicate_only_computes(spark: SparkSession, predicate: str) -> None:
    with pytest.raises(ConfigurationError, match="is not allowed here"):
        check_predicate(spark, predicate)


def test_a_predicate_may_ask_the_callers_own_views(spark: SparkSession, lake: Lake) -> None:
    check_predicate(spark, "created_at > '2026-01-01' AND upper(id) IN (SELECT id FROM private)")


def test_the_list_of_harmless_functions_has_none_that_calls_java_or_reads_files(
    spark: SparkSession,
) -> None:
    untyped: Any = spark
    registry = untyped._jvm.org.apache.spark.sql.catalyst.analysis.FunctionRegistry.builtin()
    identifier = untyped._jvm.org.apache.spark.sql.catalyst.FunctionIdentifier
    for name in HARMLESS_FUNCTIONS:
        found = registry.lookupFunction(identifier(name))
        group = str(found.get().getGroup()) if found.isDefined() else ""
        assert group not in _GROUPS or name in _HARMLESS, name
