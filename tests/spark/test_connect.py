"""Sessions of Spark Connect: everything works with them, or says why it cannot.

One server and one program for all of it: starting them takes longer than what they do. The program
finds no Java, and the server none of the program's files.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.spark.connect_server import connect_server
from tests.spark.read_only_queries import DOING_MORE, READING
from tests.spark.shop import Shop, open_shop
from tests.support.s3 import SECRET, s3_folder, s3_options

from matador.observe import Journal

ORDERS = 20
PATIENCE = 500.0
ROOT = Path(__file__).parents[2]
PROGRAM = Path(__file__).with_name("connect_program.py")

Found = dict[str, Any]


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Shop:
    """A shop with orders in its queue, and in its journal."""
    folder = tmp_path_factory.mktemp("connect")
    made = open_shop(folder, "shop_connect", "again")
    made.send(range(ORDERS), Journal(folder / "journal"))
    return made


@pytest.fixture(scope="module")
def server(shop: Shop) -> Iterator[str]:
    """The address of a server."""
    with connect_server(shop.folder / "server") as url:
        yield url


def without_java(folder: Path) -> dict[str, str]:
    """The environment of a machine that has no Java."""
    (folder / "bin").mkdir(exist_ok=True)
    return {
        **os.environ,
        "PATH": str(folder / "bin"),
        "JAVA_HOME": str(folder / "nowhere"),
        "PYTHONPATH": f"{ROOT}/src:{ROOT}",
    }


@pytest.fixture(scope="module")
def store() -> Iterator[str]:
    """A place in an object store and the options for it; empty if there is no server."""
    with contextlib.ExitStack() as stack:
        try:
            folder, options = stack.enter_context(s3_folder()), s3_options()
        except pytest.skip.Exception:
            yield ""
        else:
            yield json.dumps([f"{folder.root}/lake", options])


@pytest.fixture(scope="module")
def found(shop: Shop, server: str, store: str) -> Found:
    """What the program reports."""
    done = subprocess.run(
        [sys.executable, str(PROGRAM), server, shop.reference, str(shop.folder), store],
        cwd=shop.folder,
        env=without_java(shop.folder),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-5000:]
    return {**json.loads(done.stdout.splitlines()[-1]), "output": done.stdout + done.stderr}


def test_a_lake_with_payload_types_of_a_single_file(found: Found) -> None:
    assert found["cores"] == 2
    assert found["again"]
    assert found["lake"] == {
        "ingested": [ORDERS, 0, 0],
        "typed": ORDERS - 10,
        "sum": sum(range(ORDERS)),
        "published": {"order_placed": ORDERS},
        "released": 0,
        "compacted": True,
        "vacuumed": 0,
        "volume": ORDERS,
        "report": True,
    }
    assert found["expired"] == ORDERS


@pytest.mark.broker
def test_a_lake_in_an_object_store(found: Found) -> None:
    s3_options()  # skips without a server
    assert found["store"] == {"ingested": [ORDERS, 0, 0], "typed": ORDERS - 10, "sent": 5}
    assert SECRET not in found["output"]


def test_queries_that_only_read_are_answered(found: Found) -> None:
    assert found["sql"]["reading"] == dict.fromkeys(READING, "")
    assert found["sql"]["odd"] == ["it's ${env:PATH} 'x' é\\%", "\\d", "q"]
    assert found["sql"]["unrestricted"] == 5


def test_queries_that_do_more_are_refused(found: Found, shop: Shop) -> None:
    refused = found["sql"]["more"]
    assert list(refused) == DOING_MORE
    # Of these, Spark is given a text in which the words that matter are names.
    harmless = {
        "SELECT * FROM default.private": "Spark: The table or view `default`.`private` cannot",
        "SELECT * FROM STREAM events": "Spark: The table or view `STREAM` cannot be found",
        "SELECT * FROM events TIMESTAMP AS OF '2020-01-01'": "Spark: Syntax error at or near",
    }
    for query, said in refused.items():
        expected = harmless.get(query, "is not allowed here: use one SELECT")
        assert expected in said, (query, said)
    for said in (*found["sql"]["tables"], *found["sql"]["predicates"]):
        assert "is not allowed here: use one SELECT" in said
    assert not (shop.folder / "server" / "{folder}").exists()


def test_a_wrong_query_is_one_line(found: Found) -> None:
    said = found["sql"]["wrong"]
    assert said.startswith("Spark: ")
    assert "`nothing`" in said
    assert "\n" not in said
    assert "JVM" not in said
    assert found["replays"]["wrong"].startswith("ConfigurationError: invalid predicate where=")


def test_replays_are_sent_by_executors_and_from_here(found: Found) -> None:
    with_one = sum("1" in str(number) for number in range(ORDERS))
    assert found["replays"]["there"] == [with_one, 0, with_one]
    assert found["replays"]["here"] == 3


def test_the_data_source_reads_writes_and_streams(found: Found) -> None:
    assert found["source"] == {"read": ORDERS, "streamed": ORDERS}


def test_workers_run_on_the_server_and_stop_when_told(found: Found, shop: Shop) -> None:
    assert found["workers"]["handled"] == ORDERS
    assert found["workers"]["lost"] == 0
    assert found["workers"]["stopped"] < 60, "it did not wait for the end of its slice"
    assert {number for what, number in shop.log() if what == "again-end"} == set(range(ORDERS))


def test_what_cannot_be_done_is_said(found: Found) -> None:
    said = found["refusals"]
    assert said["dataframes"].startswith(
        "ConfigurationError: DataFrame subscribers run in the process that starts them, but this "
        "session is one of Spark Connect"
    )
    assert "shop_connect.py cannot be sent to the Spark Connect server" in said["changed"]
    assert said["mixed"].endswith("give master or remote, not both")
    assert said["classic"].startswith("ConfigurationError: this process is connected to a Spark")
    assert said["setting"].startswith(
        "ConfigurationError: the server does not accept the setting spark.executor.memory"
    )


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("lake", "query", "SELECT count(*) AS n FROM quarantine", "--json"), 0, '"n": 0'),
        (("lake", "compact", "--conf", "spark.sql.shuffle.partitions=2"), 0, "files before"),
        (
            ("lake", "compact", "--conf", "spark.executor.memory=2g"),
            1,
            "does not accept the setting",
        ),
        (("lake", "query", "SELECT reflect('a', 'b')"), 2, "the function 'reflect' is not allowed"),
    ],
)
def test_commands_take_the_address_of_a_server(
    found: Found, shop: Shop, server: str, arguments: tuple[str, ...], code: int, said: str
) -> None:
    done = _command(shop.folder, *arguments, "--lake", "lake", "--remote", server)
    assert done.returncode == code, done.stderr
    assert said in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def test_a_server_that_does_not_answer_is_one_line(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "import matador.spark.runtime.connect as connect\n"
        "connect._ANSWER_WITHIN = 1.0\n"
        "from matador.cli.program import run\n"
        "sys.exit(run(sys.argv[1:]))\n"
    )
    (tmp_path / "lake" / "events").mkdir(parents=True)
    done = subprocess.run(
        [
            *(sys.executable, "-c", code, "lake", "compact", "--lake", "lake"),
            *("--remote", "sc://127.0.0.1:9/;token=secret"),
        ],
        cwd=tmp_path,
        env=without_java(tmp_path),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 1
    assert re.fullmatch(
        r"error: no Spark Connect server answers on 127\.0\.0\.1:9 within 1 s; .*\n", done.stderr
    ), done.stderr


def _command(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "matador", *arguments],
        cwd=folder,
        env=without_java(folder),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
