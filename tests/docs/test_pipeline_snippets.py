"""The code in the guides about the data pipeline runs and prints what it should."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.docs.sessions import ROOT, missing
from tests.support.s3 import s3_folder, s3_options

pytestmark = [
    pytest.mark.spark,
    pytest.mark.xdist_group("spark"),
    pytest.mark.timeout(600),  # Spark starts slowly on a busy machine
]

SAYS: dict[str, tuple[str, ...]] = {
    "lake_tables.py": (
        "60 events, 60 deliveries",
        "| DE| 840|",
        "| NL| 960|",
        "| book-order| 27| true|",
        "|email-receipt| 30| true|",
        "adds up: True",
        "book-order 30 = 27 + 3 + 0",
        "email-receipt 30 = 30 + 0 + 0",
        "{'book-order': 3}",
        "[('book-order', 30), ('email-receipt', 30)]",
        "2700 in all",
        "['order_id', 'amount', 'voucher']",
        "60 in quarantine",
        "|invalid-payload|…customer…|60 |",
    ),
    "lake_replays.py": (
        "order.placed book-order 12",
        "order.placed email-receipt 12",
        "12 sent",
        "resumed: True - sent in total: 12",
        "| november| 12| 12|",
        "3 × order …",
        "3 sent back",
        "4 messages",
    ),
    "lake_jobs.py": (
        "10 added",
        "|job|welcome|emails|dead-letter| 1|",
        "|job|welcome|emails| success| 9|",
        "9 added again",
        "1 × no mailbox for <text>",
        "1 wait again",
    ),
}


@pytest.mark.broker
def test_the_snippet_on_s3_says_what_it_should(tmp_path: Path) -> None:
    with s3_folder() as folder:
        given = {name.upper(): value for name, value in s3_options().items()}
        cache = {"MATADOR_CACHE": str(tmp_path / "cache")}
        done = subprocess.run(
            [sys.executable, str(ROOT / "docs" / "snippets" / "lake_s3.py")],
            cwd=tmp_path,
            env={**os.environ, **given, **cache, "PLACE": folder.root},
            capture_output=True,
            text=True,
            timeout=500,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        says = ("60 events", "| 29|", "| 30|", "30 by Polars", "(60,) by DuckDB")
        assert missing(says, done.stdout) == [], done.stdout
        assert list((tmp_path / "journal").glob("*.jsonl")) == []


@pytest.mark.parametrize("snippet", SAYS)
def test_a_snippet_says_what_it_should(snippet: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "docs" / "snippets" / snippet)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert missing(SAYS[snippet], done.stdout) == [], done.stdout
