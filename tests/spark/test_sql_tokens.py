"""SQL is taken apart and written so that it can be read one way only."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matador.errors import ConfigurationError
from matador.spark.tables.sql_tokens import KEYWORDS, Token, tokens_of, write


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("select id from Events", "select `id` from `Events`"),
        ("SELECT 1.5e3, .5, 2L -- comment\n;", "SELECT 1.5e3 , .5 , 2L"),
        ("SELECT /* a /* b */ reflect() */ 1", "SELECT 1"),
        ("SELECT -- \\\nreflect", "SELECT `reflect`"),
        ("SELECT 'it''s' || \"a\"", "SELECT 'it\\u0027s' || 'a'"),
        (r"SELECT 'a\'b\\', r'\'", r"SELECT 'a\u0027b\u005c' , '\u005c'"),
        (r"SELECT '\u0041\101\n\%'", r"SELECT 'AA\u000a\u005c\u0025'"),
        ("SELECT '${env:HOME}', '😀'", r"SELECT '\u0024\u007benv:HOME\u007d' , '\U0001f600'"),
        ("SELECT - -1, 4 / *", "SELECT - - 1 , 4 / *"),
        ("SELECT X'1F', x FROM t", "SELECT X'1F' , `x` FROM `t`"),
        ("SELECT `a b`.`c`", "SELECT `a b` . `c`"),
        ("FROM t |> AGGREGATE count(*)", "FROM `t` |> AGGREGATE `count` ( * )"),
        ("SELECT aggregate FROM t", "SELECT `aggregate` FROM `t`"),
        ("DROP TABLE x", "`DROP` TABLE `x`"),
        ("\u017felect 1", "`\u017felect` 1"),  # its upper case is SELECT
    ],
)
def test_texts_are_written_anew(text: str, written: str) -> None:
    assert write(tokens_of(text)) == written


@pytest.mark.parametrize(
    "text",
    [
        *("SELECT 1; SELECT 2", "SELECT /*+ HINT */ 1", "SELECT /* 1", "SELECT 'a", "SELECT `a"),
        *(
            "SELECT ?",
            "SELECT $x",
            "SELECT {x}",
            "SELECT 1a",
            "SELECT a@b",
            "SELECT #",
            "SELECT \\",
        ),
        *("SELECT `/etc/passwd`", "SELECT `a``b`", "SELECT `a@v1`", "SELECT ``"),
    ],
)
def test_what_is_no_part_of_a_query_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="is not allowed here"):
        tokens_of(text)


_SAFE_TEXT = re.compile(r"'(?:[A-Za-z0-9 _.,:;/+=()-]|\\u[0-9a-f]{4}|\\U[0-9a-f]{8})*'")


@given(st.text())
def test_no_string_can_end_early(value: str) -> None:
    assert _SAFE_TEXT.fullmatch(write([Token("text", value)]))


@given(st.text(st.sampled_from("abSELECT'\"`\\\n -/*+;.r(0)|>\u0131")))
def test_what_is_written_is_read_as_the_same_tokens(text: str) -> None:
    try:
        tokens = tokens_of(text)
    except ConfigurationError:
        return
    again = tokens_of(write(tokens))
    assert [one.value for one in again] == [one.value for one in tokens]
    assert {one.keyword for one in again if one.kind == "word"} <= KEYWORDS | {"AGGREGATE", "NAME"}
