"""Error signatures: what they make of errors, and that Python and Spark make the same of them."""

from __future__ import annotations

import random
import re
import string
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its usual name
from tests.spark.frames import frame

from matador.observe.signatures import LONGEST_SIGNATURE, signature_id, signature_text
from matador.spark.aggregates.triage import signature_id_column, signature_text_column

EXAMPLES = {
    "order 17 of 'ann' not found": "order <n> of <text> not found",
    "[Errno 111] Connection refused": "[Errno <n>] Connection refused",
    "can't read O'Brien's order 'O'Brien'": "can't read O'Brien's order <text>",
    "Expected `int`, got `str` - at `$.lines[0].count`": (
        "Expected `int`, got `str` - at `$.lines[<n>].count`"
    ),
    'bad {"a": {"b": [1, 2], "c": "x}y"}} end': "bad <data> end",
    "bad {'a': [{'b': 1}, {'b': 2}]} end": "bad <data> end",
    "customer cus_9s6XKzkNRiz8i3 is gone": "customer cus_<n> is gone",
    "since 2026-11-15T19:02:37.435Z": "since <time>",
    "since 2026-11-15 19:02:37,435 +01:00": "since <time>",
    "since 2026-11-15": "since <time>",
    "at 12:30:45.1": "at <time>",
    "no 3f2504e0-4f89-11d3-9a0c-0305e82c3301": "no <id>",
    "10.0.0.7:5432 refused": "<ip> refused",
    "fe80::1 and ::1, not std::string": "<ip> and <ip>, not std::string",
    "mail to bob.smith+x@mail.example.co.uk": "mail to <email>",
    "GET https://example.org/a/b?c=1#d failed": "GET <url> failed",
    "no file /var/lib/shop.db here": "no file <path> here",
    "no file ../shop.db here": "no file <path> here",
    "no file C:\\shop\\data.db here": "no file <path> here",
    "<Order object at 0x7f3a2b>": "<Order object at <n>>",
    "commit deadbeef1 not there": "commit <n> not there",
    "timed out after 30.5s, attempt 3/5": "timed out after <n>s, attempt <n>/<n>",
    "got -5 and +1e-9 and 1,234.5": "got <n> and <n> and <n>",
    "got [1] and [] and ['a'] and [1, 2]": "got <data> and <data> and <data> and <data>",
    "either/or, and/or": "either/or, and/or",
    " many\n\n  lines\tof text ": "many lines of text",
    "": "",
    "no order with the name '" + "x" * 5000: "no order with the name <text>",
    "no order {'name': " + "x" * 5000: "no order <data>",
}


@pytest.mark.parametrize(("error", "expected"), EXAMPLES.items())
def test_what_differs_from_time_to_time_is_replaced(error: str, expected: str) -> None:
    assert signature_text(error) == expected


def test_a_signature_of_a_signature_is_itself() -> None:
    for expected in EXAMPLES.values():
        assert signature_text(expected) == expected


def test_an_id_is_short_and_stable_and_tells_types_apart() -> None:
    assert signature_id("KeyError", "'a'") == signature_id("KeyError", "'b'")
    assert signature_id("KeyError", "'a'") != signature_id("ValueError", "'a'")
    assert signature_id(None, "gone") == signature_id("", "gone")
    assert re.fullmatch("[0-9a-f]{10}", signature_id(None, ""))


# -- properties --------------------------------------------------------------------------------

# What errors are made of, so that chance finds the interesting meetings of them.
PIECES = st.sampled_from(
    [*"'\"`{}[]()<>/\\.,:;-+_@#$^ \n\t\x85\u2028", "://", "0x", "12:30:45", "2026-11-15", "::"]
)
WORDS = st.text(string.ascii_letters, max_size=9) | st.text(string.hexdigits, max_size=12)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
NUMBERS = st.integers(0, 10**12).map(str)
ERRORS = st.lists(PIECES | WORDS | TEXTS | NUMBERS, max_size=30).map("".join)


@given(ERRORS)
def test_no_digit_is_left_and_the_length_is_bounded(error: str) -> None:
    found = signature_text(error)
    assert not re.search("[0-9]", found)
    assert len(found) <= LONGEST_SIGNATURE


@given(NUMBERS, NUMBERS, st.uuids(), st.uuids(), st.emails(), st.text(string.printable))
def test_values_do_not_change_the_signature(
    one: str, two: str, first: object, second: object, email: str, name: str
) -> None:
    name = re.sub(r"""["'\s]""", "_", name)
    a = f"order {one} ({first}) of '{name}' was not found in 10.0.0.{int(one) % 255}:5432"
    b = f"order {two} ({second}) of 'ann' was not found in 10.0.0.1:1"
    assert signature_text(a) == signature_text(b)


@pytest.mark.parametrize(
    "hostile",
    [
        piece * 2000
        for piece in ("''", '"', "{", "[,", "a.", "a@", "/a", "0:", "1.", "{[", "'a", "a")
    ],
)
def test_hostile_texts_take_no_time(hostile: str) -> None:
    started = time.process_time()
    signature_text(hostile * 2000)
    assert time.process_time() - started < 0.5


# -- in Spark ----------------------------------------------------------------------------------


def hostile_errors(count: int) -> list[str]:
    """Texts of everything the rules look for, in any order; the same each time."""
    dice = random.Random(17)
    pieces = [*EXAMPLES, *"'\"`{}[]()<>/\\.,:;-+_@ \n\t\x85\u2028\u00a0é漢😀٣²", "://", "0x", "::"]

    def piece() -> str:
        kind = dice.randrange(4)
        if kind == 0:
            return "".join(dice.choices(string.printable, k=dice.randrange(12)))
        if kind == 1:
            return str(dice.randrange(10 ** dice.randrange(1, 12)))
        return dice.choice(pieces)[: dice.randrange(1, 60)]

    return ["".join(piece() for _ in range(dice.randrange(1, 25))) for _ in range(count)]


def test_spark_and_python_agree(spark: SparkSession) -> None:
    errors = [*EXAMPLES, *hostile_errors(1500), "'a" * 2000, "/a" * 2000, "1." * 2000, "{[" * 2000]
    table = frame(spark, [(error,) for error in errors], "error string")
    text = signature_text_column(F.col("error"))
    rows = table.select("error", text, signature_id_column(F.lit("KeyError"), text)).collect()
    for row in rows:
        error = str(row[0])
        assert row[1:] == (signature_text(error), signature_id("KeyError", error)), error


def test_an_error_without_a_type_has_an_id_in_spark(spark: SparkSession) -> None:
    row = spark.range(1).select(signature_id_column(F.lit(None).cast("string"), F.lit("gone")))
    assert row.collect()[0][0] == signature_id(None, "gone")
