"""Checks that a query only reads the tables of a lake, where Spark's parser is out of reach.

A session of Spark Connect has no parser here, and asking the server to analyze a query can already
run parts of it. So the text is taken apart by ``sql_tokens``, and Spark gets a text that is written
anew, in which only keywords of queries are keywords:

- It begins like a query. A word that could begin another statement is a name in it.
- A name before a parenthesis is a function, and must be one of those that only compute.
- Any other name that could be a table must be one of the lake, or none that the server knows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Final

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from matador.spark.tables.harmless_functions import HARMLESS_FUNCTIONS
from matador.spark.tables.sql_tokens import KEYWORDS, Token, refused, tokens_of, words, write

_BEGINNINGS: Final = frozenset({"SELECT", "WITH", "FROM", "TABLE", "VALUES", "("})
_BEFORE_TABLES: Final = frozenset({"FROM", "JOIN", "LATERAL", "TABLE", ",", "("})
_STATEMENTS: Final = frozenset({"INSERT", "MERGE", "OVERWRITE"})
# Keywords that may stand before a parenthesis and are no functions.
_BEFORE_PARENTHESES: Final = words(
    """
    ALL AND ANY AS BETWEEN BINARY BY CASE CHAR CHARACTER CUBE DEC DECIMAL DISTINCT DIV ELSE ESCAPE
    EXCEPT EXCLUDE EXISTS EXTEND FILTER FOR FROM GROUP HAVING ILIKE IN INCLUDE INTERSECT INTERVAL
    JOIN LATERAL LIKE LIMIT MINUS NOT NULLS NUMERIC OFFSET ON OR OVER PIVOT QUALIFY REGEXP RLIKE
    ROLLUP SELECT SETS SOME TABLESAMPLE THEN TIME UNION UNPIVOT USING VALUES VARCHAR WHEN WHERE
    """
)
_MOST_NAMES = 200
_ESCAPES = "spark.sql.parser.escapedStringLiterals"


def read_only_query(spark: SparkSession, query: str, tables: Collection[str]) -> str:
    """The text to run instead of a query.

    Raises:
        ConfigurationError: it is not one SELECT over ``tables``. Nothing was run.
    """
    tokens = tokens_of(query)
    if not tokens or tokens[0].keyword not in _BEGINNINGS:
        raise refused(repr(tokens[0].value) if tokens else "an empty query")
    return _checked(spark, tokens, {name.lower() for name in tables})


def read_only_predicate(spark: SparkSession, predicate: str) -> str:
    """The text to use instead of a predicate. Single names may be views of the caller.

    Raises:
        ConfigurationError: it does more than compute.
    """
    return _checked(spark, tokens_of(predicate), None)


def _checked(spark: SparkSession, tokens: Sequence[Token], known: set[str] | None) -> str:
    _check_words(tokens)
    names = list(dict.fromkeys(_tables(tokens)))
    if len(names) > _MOST_NAMES:
        raise refused(f"a query with {len(names)} names")
    for parts in names:
        single = len(parts) == 1
        if single and (known is None or parts[0].lower() in known):
            continue
        if _exists(spark, parts):
            raise refused(f"the table {'.'.join(parts)!r}")
    if spark.conf.get(_ESCAPES, "false") == "true":
        raise refused(f"SQL with the setting {_ESCAPES}")
    return write(tokens)


def _check_words(tokens: Sequence[Token]) -> None:
    none = Token("sign", "")
    for before, token, after in zip((none, *tokens), tokens, (*tokens[1:], none), strict=False):
        word = token.keyword
        if word in _STATEMENTS:
            raise refused(repr(token.value))
        if word == "USING" and after.keyword != "(":  # a script, not the columns of a join
            raise refused("a script")
        if word == "WITH" and not after.is_name:  # options of a table
            raise refused("WITH")
        if word == "." and not (after.is_name or after.keyword == "*"):
            raise refused("a name with a number")
        if after.keyword == "(" and token.is_name and not _is_column_list(before):
            _check_function(before, token)


def _is_column_list(before: Token) -> bool:
    """Whether a name before a parenthesis is no function: it has columns, or is a type."""
    return before.keyword in ("AS", "WITH", "RECURSIVE")


def _check_function(before: Token, token: Token) -> None:
    if token.kind == "word" and token.keyword in _BEFORE_PARENTHESES and before.keyword != ".":
        return
    if before.keyword == "." or token.value.lower() not in HARMLESS_FUNCTIONS:
        raise refused(f"the function {token.value!r}")


def _tables(tokens: Sequence[Token]) -> Iterator[tuple[str, ...]]:
    """Every name that could be that of a table, in its parts."""
    at = 0
    before = ""
    while at < len(tokens):
        start = at
        if not tokens[at].is_name:
            before = tokens[at].keyword
            at += 1
            continue
        parts = [tokens[at].value]
        while at + 2 < len(tokens) and tokens[at + 1].keyword == "." and tokens[at + 2].is_name:
            at += 2
            parts.append(tokens[at].value)
        at += 1
        is_function = at < len(tokens) and tokens[at].keyword == "("
        is_keyword = len(parts) == 1 and tokens[start].keyword in KEYWORDS
        if not is_function and (not is_keyword or before in _BEFORE_TABLES):
            yield tuple(parts)
        before = tokens[at - 1].keyword


def _exists(spark: SparkSession, parts: Sequence[str]) -> bool:
    """Whether Spark finds a table, a view or a file by that name, as in a query."""
    quoted = ".".join(f"`{part}`" for part in parts)
    try:
        spark.table(quoted).schema  # noqa: B018 - it is looked up now
    except AnalysisException:
        return False
    return True
