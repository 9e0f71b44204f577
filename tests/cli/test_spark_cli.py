"""Subscribers on Spark, from the terminal."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.conftest import Cli, Result, Shop, envelope

pytestmark = [
    pytest.mark.spark,
    pytest.mark.xdist_group("spark"),
    pytest.mark.timeout(600),
]


def test_a_worker_on_spark_empties_the_queues(shop: Shop, folder: Path) -> None:
    bodies = [(f"id-{n}", envelope(f"id-{n}", n * 10)) for n in range(1, 21)]
    shop.put("shop.billing", bodies)
    command = ("spark", "worker", "shop.py", "--master", "local[2]", "--queues", "billing")
    done = subprocess.run(
        [sys.executable, "-m", "matador", *command, "--until-empty", "--json"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    result = Result(done.returncode, done.stdout, done.stderr)
    assert result.code == 0, result.err
    counts = {row["outcome"]: row["count"] for row in result.json["outcomes"]}
    assert counts == {"success": 10, "dead-letter": 10}
    assert result.json["lost"] == 0
    assert shop.ids("shop.billing") == []
    assert len(shop.ids("shop.billing.undeliverable")) == 10


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("nowhere.py",), "nowhere.py"),
        (("shop.py", "--queues", "biling"), "did you mean 'billing'?"),
        (("shop.py", "--tasks", "0"), "--tasks"),
        (("shop.py", "--master", "nonsense"), "nonsense"),
        (("shop.py", "--remote", "nonsense"), "use sc://host:15002"),
        (("shop.py", "--remote", "sc://host", "--master", "yarn"), "exclude each other"),
        (("shop.py", "--conf", "memory=2g"), "use spark.name=value"),
    ],
)
def test_wrong_input_is_one_clear_line(cli: Cli, options: tuple[str, ...], says: str) -> None:
    result = cli("spark", "worker", *options, "--until-empty")
    assert result.code == 2, result.err
    assert says in result.err
    assert result.err.splitlines()[-1].startswith("error: ")
    assert "Traceback" not in result.err
