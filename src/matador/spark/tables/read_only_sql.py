"""Checks that a query only reads the tables of a lake.

The text cannot be trusted: a name may be quoted, commented, assembled, or hidden in a subquery. So
Spark parses the query, and every node of the plan is checked before anything is analyzed or run:
plan steps, functions and tables are allowed by name, all others are refused. Where Spark's parser
is out of reach, on Spark Connect, ``read_only_text`` does the same by other means.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Generator, Iterator
from typing import Any, Final

from pyspark.sql import SparkSession

from matador.spark.runtime.compat import Py4JError
from matador.spark.runtime.connect import is_connect
from matador.spark.tables.read_only_text import read_only_predicate, read_only_query
from matador.spark.tables.sql_tokens import refused

_CATALYST = "org.apache.spark.sql.catalyst."
_STEPS: Final = frozenset(
    {
        *("Project", "Filter", "Aggregate", "Distinct", "Sort", "Sample"),
        *("UnresolvedHaving", "UnresolvedQualify"),
        *("GlobalLimit", "LocalLimit", "Offset", "Union", "Intersect", "Except"),
        *("Join", "LateralJoin", "Generate", "Pivot", "Unpivot", "WithWindowDefinition"),
        *("SubqueryAlias", "UnresolvedSubqueryColumnAliases", "UnresolvedWith", "PipeOperator"),
        *("OneRowRelation", "LocalRelation", "UnresolvedInlineTable", "UnresolvedRelation"),
        *("UnresolvedTableValuedFunction", "UnresolvedTVFAliases"),
    }
)
# Of these groups only some functions are harmless: others call Java or read files.
_GROUPS: Final = frozenset({"misc_funcs", "xml_funcs", "avro_funcs", "protobuf_funcs"})
_HARMLESS: Final = frozenset(
    {
        *("uuid", "typeof", "version", "raise_error", "assert_true", "spark_partition_id"),
        *("monotonically_increasing_id", "hmac", "aes_encrypt", "aes_decrypt", "try_aes_decrypt"),
        *("bitmap_bit_position", "bitmap_bucket_number", "bitmap_count", "user", "current_user"),
        *("session_user", "current_database", "current_schema", "current_catalog"),
        *("hll_sketch_estimate", "hll_union"),  # of this group in Spark 4.0
    }
)
_TABLE_FUNCTIONS: Final = frozenset(
    {
        *("range", "stack", "json_tuple", "variant_explode", "variant_explode_outer"),
        *("explode", "explode_outer", "posexplode", "posexplode_outer", "inline", "inline_outer"),
    }
)
_VARIABLES = "spark.sql.variable.substitute"


def check_query(spark: SparkSession, query: str, tables: Collection[str]) -> str:
    """The text to run for a query, once it is known to be one SELECT over ``tables``.

    Raises:
        ConfigurationError: it is not. Nothing was run.
    """
    if is_connect(spark):
        return read_only_query(spark, query, tables)
    check = _Check(spark)
    relations = check.nodes(_parsed(check, query))
    known = {name.lower() for name in tables}
    for name in relations:
        # For a table that does not exist at all, Spark raises its usual error.
        if name.lower() not in known and spark.catalog.tableExists(f"`{name}`"):
            raise refused(f"the table {name!r}")
    return query


def _parsed(check: _Check, query: str) -> Any:
    try:
        return check.parser.parsePlan(query)
    except Py4JError as error:  # PySpark knows the errors of a query, but 4.0 not those of a script
        if "SqlScriptingException" not in str(error):
            raise
        raise refused("a script") from error


def check_predicate(spark: SparkSession, predicate: str) -> str:
    """The text to use for a predicate, once it is known to only compute. Subqueries are fine.

    Raises:
        ConfigurationError: it does more.
    """
    if is_connect(spark):
        return read_only_predicate(spark, predicate)
    check = _Check(spark)
    check.nodes(check.parser.parseExpression(predicate))
    return predicate


@contextlib.contextmanager
def without_variables(spark: SparkSession) -> Generator[None]:
    """Keep Spark from replacing ``${…}`` by settings and environment variables."""
    if is_connect(spark):  # the text that it gets has no such signs
        yield
        return
    before = spark.conf.get(_VARIABLES)
    spark.conf.set(_VARIABLES, "false")
    try:
        yield
    finally:
        spark.conf.set(_VARIABLES, before or "true")


class _Check:
    """Walks through the parsed text, in Java."""

    def __init__(self, spark: SparkSession) -> None:
        untyped: Any = spark
        state = untyped._jsparkSession.sessionState()
        self.parser: Any = state.sqlParser()
        jvm = untyped._jvm
        self._functions: Any = jvm.org.apache.spark.sql.catalyst.analysis.FunctionRegistry.builtin()
        self._identifier: Any = jvm.org.apache.spark.sql.catalyst.FunctionIdentifier
        named = jvm.java.lang.Class.forName
        self._plan: Any = named(f"{_CATALYST}plans.logical.LogicalPlan")
        self._product: Any = named("scala.Product")
        self._iterable: Any = named("scala.collection.Iterable")

    def nodes(self, root: Any) -> list[str]:
        """Check all nodes; returns the names of the tables they read."""
        tables: list[str] = []
        waiting = [root]
        while waiting:
            one = waiting.pop()
            if not hasattr(one, "_target_id"):
                continue  # text and numbers are plain Python values
            if self._iterable.isInstance(one):
                waiting.extend(_each(one.iterator()))
            elif self._product.isInstance(one):
                tables.extend(self._check(one))
                waiting.extend(_each(one.productIterator()))
        return tables

    def _check(self, node: Any) -> list[str]:
        package, _, name = str(node.getClass().getName()).rpartition(".")
        if self._plan.isInstance(node) and (
            name not in _STEPS or not package.startswith(_CATALYST[:-1])
        ):
            raise refused(f"{name!r}")
        match name:
            case "UnresolvedRelation":
                parts = list(map(str, _each(node.multipartIdentifier().iterator())))
                if len(parts) != 1 or node.isStreaming() or not node.options().isEmpty():
                    raise refused(f"the table {'.'.join(parts)!r}")
                return parts
            case "UnresolvedFunction":
                self._function(list(map(str, _each(node.nameParts().iterator()))))
            case "UnresolvedGenerator":
                self._function([str(node.name().unquotedString())])
            case "UnresolvedTableValuedFunction":
                parts = list(map(str, _each(node.name().iterator())))
                if len(parts) != 1 or parts[0].lower() not in _TABLE_FUNCTIONS:
                    raise refused(f"the function {'.'.join(parts)!r}")
            case _ if "UnresolvedIdentifier" in name:  # a name that is assembled at run time
                raise refused("IDENTIFIER")
            case _:
                pass
        return []

    def _function(self, parts: list[str]) -> None:
        name = parts[-1].lower()
        found = self._functions.lookupFunction(self._identifier(name))
        grouped = str(found.get().getGroup()) if found.isDefined() else ""  # a function of the user
        if len(parts) != 1 or (grouped in _GROUPS and name not in _HARMLESS):
            raise refused(f"the function {'.'.join(parts)!r}")


def _each(iterator: Any) -> Iterator[Any]:
    while iterator.hasNext():
        yield iterator.next()
