"""Events as tables, in the terminal: ingested, asked, reported, replayed and redriven."""

from __future__ import annotations

import re
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Cli, Result, Shop, Start, wait

from matador.spark.runtime.journal_lines import Split

SHOP = Path(__file__).with_name("lake_shop.py")
ORDERS = 30
DEAD = "shop.billing.undeliverable"
LAKE = ("--lake", "lake/")

pytestmark = [
    pytest.mark.spark,
    pytest.mark.xdist_group("spark"),
    pytest.mark.timeout(600),  # Spark takes long to start where much else runs
]


def shell(folder: Path, *arguments: str) -> Result:
    """Run a command as a user does."""
    done = subprocess.run(
        [sys.executable, "-m", "matador", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    return Result(done.returncode, done.stdout, done.stderr)


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A shop that has worked, and the lake that one command made of its journal."""
    folder = tmp_path_factory.mktemp("lake-shop")
    shutil.copy(SHOP, folder / "shop.py")
    subprocess.run([sys.executable, "shop.py", str(ORDERS)], cwd=folder, check=True, timeout=100)
    (folder / "journal" / "noise.jsonl").write_text("no record\n")
    result = shell(folder, "lake", "ingest", "shop.py", "--journal", "journal/", *LAKE)
    assert result.code == 0, result.err
    assert result.out.split() == [
        *("rows", "events", "60", "deliveries", "60"),
        *("quarantined", "1", "duplicates", "0"),
    ]
    assert "121 records of 2 segments" in result.err
    assert "quarantined 1 as malformed-record" in result.err
    assert "WARN" not in result.err, "Spark keeps quiet"
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of it, which is the current folder."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NO_COLOR", "1")
    yield tmp_path
    sys.modules.pop("shop", None)


def children(pid: int) -> list[int]:
    """The processes that a process has started."""
    found = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(child) for child in found.read_text().split()] if found.exists() else []


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_ctrl_c_while_spark_starts_leaves_no_java_behind(
    start: Start, folder: Path, number: signal.Signals, code: int
) -> None:
    process = start("lake", "query", *LAKE, "SELECT 1")
    wait(lambda: children(process.process.pid) != [], lambda: f"Java; {process.err}", 120)
    (java,) = children(process.process.pid)
    process.signal(number)
    assert process.ends() == code
    assert process.err == "error: interrupted\n"
    wait(lambda: not Path(f"/proc/{java}").exists(), lambda: "Java to end")


def waiting(shop: Shop) -> int:
    return len(shop.ids("shop.events")) + len(shop.ids("shop.billing"))


# -- ingest, query, report, upkeep ---------------------------------------------------------------


def test_a_lake_that_is_a_file_and_options_of_a_store_are_wrong_usage(
    cli: Cli, folder: Path
) -> None:
    (folder / "file").write_text("no lake")
    of_a_file = cli("lake", "query", "--lake", "file", "SELECT 1")
    assert (of_a_file.code, "file is a file" in of_a_file.err) == (2, True), of_a_file.err
    given = cli("lake", "query", *LAKE, "SELECT 1", "--storage-option", "aws_region=x")
    assert (given.code, "is for object stores" in given.err) == (2, True), given.err


def test_a_second_ingest_adds_nothing(cli: Cli, folder: Path) -> None:
    result = cli("lake", "ingest", "shop.py", "--journal", "journal/", *LAKE, "--json")
    assert result.code == 0, result.err
    assert result.json["events"] == result.json["deliveries"] == result.json["segments"] == 0


def test_a_segment_that_workers_cannot_read_is_an_error(
    cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(folder / "journal" / "noise.jsonl", folder / "journal" / "z.jsonl")
    (folder / "journal" / "z.jsonl").write_text("another\n")
    ingest = ("lake", "ingest", "shop.py", "--journal", "journal/", *LAKE, "--json")
    with monkeypatch.context() as patched:
        from matador.spark.tables import ingest as module

        def larger(path: Path, size: int, most: int) -> Iterator[Split]:
            yield Split(str(path), 0, size + 1)  # as if the workers saw an old state of it

        patched.setattr(module, "splits_of", larger)
        failed = cli(*ingest)
    assert failed.code == 1
    assert failed.out == ""
    assert re.search(r"error: 1 segment of .* could not be read .*: z\.jsonl", failed.err)
    later = cli(*ingest)
    assert later.code == 0, later.err
    assert (later.json["segments"], later.json["quarantined"]) == (1, 1)


def test_a_query_prints_a_table_or_json(cli: Cli) -> None:
    sql = "SELECT outcome, count(*) AS n FROM deliveries GROUP BY 1 ORDER BY 1"
    shown = cli("lake", "query", *LAKE, sql)
    assert [line.split() for line in shown.out.splitlines()] == [
        ["outcome", "n"],
        ["dead-letter", "20"],
        ["success", "40"],
    ]
    machine = cli("lake", "query", *LAKE, sql, "--json").json
    assert machine == {
        "columns": ["outcome", "n"],
        "rows": [{"outcome": "dead-letter", "n": 20}, {"outcome": "success", "n": 40}],
        "more": False,
    }


def test_each_event_of_an_application_is_a_table_with_typed_columns(cli: Cli) -> None:
    sql = "SELECT sum(data.amount) AS total FROM order_placed WHERE subscriber = 'charge'"
    result = cli("lake", "query", *LAKE, "--app", "shop.py", sql, "--json")
    assert result.code == 0, result.err
    assert result.json["rows"] == [{"total": 4650}]


def test_a_limit_says_that_there_is_more(cli: Cli) -> None:
    result = cli("lake", "query", *LAKE, "SELECT id FROM events", "--limit", "2")
    assert len(result.out.splitlines()) == 3
    assert "the first 2 rows; --limit shows more" in result.err


@pytest.mark.parametrize(
    ("sql", "says"),
    [
        ("SELEC 1", r"error: invalid query: Syntax error at or near 'SELEC'.* \(column 1\)\n"),
        ("SELECT 1 FROM evnts", r"error: unknown table 'evnts'.*did you mean 'events'\?.*\n"),
        ("SELECT amont FROM events", r"error: invalid query: .*amont.*cannot be resolved.*\n"),
        ("", r"error: invalid query: .*\n"),
    ],
)
def test_a_wrong_query_is_one_clear_line(cli: Cli, sql: str, says: str) -> None:
    result = cli("lake", "query", *LAKE, sql)
    assert result.code == 2
    assert re.fullmatch(says, result.err), result.err


def test_a_query_that_fails_as_it_runs_is_one_line(cli: Cli) -> None:
    result = cli("lake", "query", *LAKE, "SELECT raise_error('no luck') FROM events")
    assert result.code == 1
    assert re.fullmatch(r"error: .*no luck.*\n", result.err), result.err


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT reflect('java.lang.System', 'getenv', 'HOME') FROM events",
        "SELECT * FROM text.`/etc/passwd`",
        "CREATE TABLE stolen USING csv LOCATION 'out' AS SELECT * FROM events",
        "SET spark.sql.ansi.enabled=false",
    ],
)
def test_a_query_that_does_more_than_read_is_refused(cli: Cli, folder: Path, sql: str) -> None:
    before = sorted(folder.iterdir())
    result = cli("lake", "query", *LAKE, sql)
    assert result.code == 2
    assert re.fullmatch(r"error: .* is not allowed here: .*--unrestricted.*\n", result.err)
    assert sorted(folder.iterdir()) == before


def test_a_query_that_does_more_than_read_can_be_allowed(cli: Cli, folder: Path) -> None:
    (folder / "note.txt").write_text("hello\n")
    sql = f"SELECT value FROM text.`{folder / 'note.txt'}`"
    result = cli("lake", "query", *LAKE, sql, "--unrestricted", "--json")
    assert result.code == 0, result.err
    assert result.json["rows"] == [{"value": "hello"}]


def test_a_report_is_printed_and_written(folder: Path) -> None:
    result = shell(folder, "lake", "report", *LAKE, "--html", "report.html")
    assert result.code == 0, result.err
    assert "charge" in result.out
    assert "card" in result.out
    assert "wrote report.html" in result.err
    assert result.err == "wrote report.html\n", "neither Spark nor Java has a say"
    assert stat.S_IMODE((folder / "report.html").stat().st_mode) == 0o600
    page = (folder / "report.html").read_text()
    assert page.lstrip().lower().startswith("<!doctype html>")
    assert "order.placed" in page


def test_a_report_for_machines_adds_up(cli: Cli) -> None:
    found = cli("lake", "report", *LAKE, "--json").json
    assert found["adds_up"] is True
    lines = {line["subscriber"]: line for line in found["reconciliation"]["lines"]}
    assert lines["charge"]["sent"] == lines["charge"]["handled"] + lines["charge"]["dead_lettered"]
    assert [group["count"] for group in found["groups"]] == [20]


def test_a_lake_is_compacted_and_rows_expire(cli: Cli, folder: Path) -> None:
    assert cli("lake", "compact", *LAKE, "--json").json["files_after"] > 0
    expire = ("lake", "expire", *LAKE, "--days", "0")
    rows = {"events": 60, "deliveries": 60, "quarantine": 1}
    assert cli(*expire, "--dry-run", "--json").json == {"dry_run": True, **rows}
    refused = cli(*expire, "--json")
    assert (refused.code, refused.out) == (2, "")
    counted = "60 events, 60 deliveries and 1 row in quarantine"
    assert f"{counted} would be deleted; add --yes" in refused.err
    assert cli(*expire, "--yes", "--json").json == {"dry_run": False, **rows}
    nothing = cli(*expire)
    assert nothing.code == 0, "there is nothing to ask about"
    assert "deleted 0 events, 0 deliveries and 0 rows in quarantine" in nothing.err
    again = cli("lake", "ingest", "shop.py", "--journal", "journal/", *LAKE, "--json").json
    assert again["events"] == 0


# -- replay --------------------------------------------------------------------------------------

REPLAY = ("lake", "replay", "shop.py", *LAKE)


def test_a_dry_run_counts_per_event_and_subscriber(cli: Cli, shop: Shop) -> None:
    result = cli(*REPLAY, "--event", "order.placed", "--where", "data.amount > 250", "--dry-run")
    assert result.code == 0, result.err
    assert [line.split() for line in result.out.splitlines()] == [
        ["event", "subscriber", "messages"],
        ["order.placed", "charge", "5"],
        ["order.placed", "email-receipt", "5"],
    ]
    assert "10 messages would be sent" in result.err
    assert waiting(shop) == 0


def test_a_replay_sends_what_was_chosen(cli: Cli, shop: Shop, folder: Path) -> None:
    chosen = ("--event", "order.placed", "--subscriber", "charge", "--where", "data.amount <= 30")
    refused = cli(*REPLAY, *chosen)
    assert refused.code == 2
    assert "3 messages would be sent; add --yes" in refused.err
    assert waiting(shop) == 0
    done = cli(*REPLAY, *chosen, "--yes", "--json")
    assert done.code == 0, done.err
    assert done.json["sent"] == done.json["total"] == 3
    name = done.json["replay_id"]
    assert f": matador lake replay shop.py --lake lake --replay-id {name}" in done.err
    assert len(shop.ids("shop.billing")) == 3
    again = cli(*REPLAY, "--replay-id", name, "--yes", "--json")
    assert again.code == 0, again.err
    assert again.json["resumed"] is True
    assert len(shop.ids("shop.billing")) == 3, "nothing is sent twice"


def test_another_queue_and_nothing_that_matches(cli: Cli, shop: Shop) -> None:
    none = cli(*REPLAY, "--event", "order.placed", "--since", "2999-01-01")
    assert none.code == 0, none.err
    assert "no events match" in none.err
    moved = cli(
        *REPLAY, "--subscriber", "charge", "--where", "id is not null", "--to", "events", "-y"
    )
    assert moved.code == 0, moved.err
    assert "30 messages sent" in moved.out
    assert len(shop.ids("shop.events")) == 30


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ((), "choose what to replay: give a filter such as --event, or --all"),
        (("--event", "order.place"), "order.place"),
        (("--event", "order.placed", "--subscriber", "chage"), "did you mean 'charge'?"),
        (("--event", "order.placed", "--since", "yesterday"), "--since must be a time"),
        (("--event", "order.placed", "--to", "bilings"), "did you mean 'billing'?"),
        (("--event", "order.placed", "--replay-id", "a/b"), "invalid replay id"),
        (("--replay-id", "unknown"), "there is no replay unknown to resume"),
        (("--event", "order.placed", "--where", "data.amont > 1", "--dry-run"), "amont"),
        (("--event", "order.placed", "--where", "data.amount >", "--dry-run"), "invalid predicate"),
    ],
)
def test_a_wrong_replay_is_one_clear_line(cli: Cli, options: tuple[str, ...], says: str) -> None:
    result = cli(*REPLAY, *options)
    assert result.code == 2, result.err
    assert says in result.err
    assert result.err.startswith("error: ")
    assert result.err.count("\n") == 1


def test_a_killed_replay_goes_on_without_a_repeat(start: Start, cli: Cli, shop: Shop) -> None:
    process = start(*REPLAY, "--event", "order.placed", "--rate", "10", "--replay-id", "r1", "-y")
    wait(lambda: waiting(shop) > 0, lambda: f"a first one; {process.err}", 300)
    process.signal(signal.SIGKILL)
    process.ends()
    assert ": matador lake replay shop.py --lake lake --replay-id r1" in process.err
    assert 0 < waiting(shop) < 60, "killed in the middle"
    done = cli(*REPLAY, "--replay-id", "r1", "--yes", "--json")
    assert done.code == 0, done.err
    assert done.json["sent"] + done.json["skipped"] <= 60
    ids = shop.ids("shop.events") + shop.ids("shop.billing")
    assert len(ids) == len(set(ids)) == 60, "each once"


# -- redrive -------------------------------------------------------------------------------------

REDRIVE = ("lake", "redrive", "shop.py", *LAKE)


def test_a_failure_group_is_redriven(cli: Cli, shop: Shop) -> None:
    found: list[dict[str, Any]] = cli(
        *("lake", "query", *LAKE, "SELECT signature, count FROM triage", "--json")
    ).json["rows"]
    assert [row["count"] for row in found] == [20]
    chosen = ("--signature", str(found[0]["signature"]))
    dry = cli(*REDRIVE, *chosen, "--dry-run", "--json").json
    assert dry["counts"] == [{"event": "order.placed", "subscriber": "charge", "count": 20}]
    assert "20 dead letters would be redriven; add --yes" in cli(*REDRIVE, *chosen).err
    assert len(shop.ids(DEAD)) == 20
    done = cli(*REDRIVE, *chosen, "--yes")
    assert done.code == 0, done.err
    assert done.out == "20 dead letters redriven\n"
    assert shop.ids(DEAD) == []
    assert len(shop.ids("shop.billing")) == 20
    assert "no dead letters match" in cli(*REDRIVE, *chosen, "--yes").err


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ((), "choose what to redrive: give --signature or another filter, or --all"),
        (("--signature", "0123456789ab"), "no dead letter has the signature '0123456789ab'"),
        (("--event", "order.lost"), "order.lost"),
    ],
)
def test_a_wrong_redrive_is_one_clear_line(cli: Cli, options: tuple[str, ...], says: str) -> None:
    result = cli(*REDRIVE, *options)
    assert result.code == 2, result.err
    assert says in result.err
    assert result.err.count("\n") == 1


# -- what is missing -----------------------------------------------------------------------------


@pytest.mark.parametrize("days", ["1e9", "1e300", "nan"])
def test_rows_cannot_be_older_than_the_calendar(cli: Cli, folder: Path, days: str) -> None:
    result = cli("lake", "expire", *LAKE, "--days", days, "--yes")
    assert result.code == 2
    assert "--days" in result.err


def test_a_folder_that_is_no_lake(cli: Cli, folder: Path) -> None:
    for command in (("report",), ("compact",), ("expire", "--days", "1"), ("query", "SELECT 1")):
        result = cli("lake", *command, "--lake", "nowhere")
        assert result.code == 2
        assert "the lake nowhere does not exist: create one with `matador lake ingest" in result.err
    assert not (folder / "nowhere").exists()


@pytest.mark.parametrize(
    "command",
    [
        ("report", "--lake", "s3a://key:secret@bucket/lake"),
        ("report", *LAKE, "--html", "hdfs://name/report.html"),
        ("ingest", "shop.py", "--journal", "file://elsewhere/journal", *LAKE),
        ("query", "SELECT 1", "--lake", "dbfs:/lake"),
    ],
)
def test_paths_of_other_storage_are_refused(
    cli: Cli, folder: Path, command: tuple[str, ...]
) -> None:
    before = sorted(folder.iterdir())
    result = cli("lake", *command)
    assert result.code == 2
    said = " ".join(result.err.replace("│", " ").split())
    assert "is not supported, only local paths" in said or "as storage options" in said
    assert "secret" not in result.err
    assert sorted(folder.iterdir()) == before


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (("shop.py",), "nothing to ingest: name a --journal, or the application and --kafka"),
        (("--kafka",), "--kafka needs the application"),
        (("shop.py", "--kafka", "--journal", "journal/"), "cannot be combined"),
        (("shop.py", "--journal", "journal/", "--since", "latest"), "--since needs --kafka"),
        (("shop.py", "--journal", "journal/", "--queues", "events"), "--queues needs --kafka"),
        (("shop.py", "--kafka", "--missing", "skp"), "'skp' is not one of fail, skip"),
        (("shop.py", "--kafka"), "the application is not on Kafka (sqlite)"),
    ],
)
def test_what_to_ingest_is_checked(
    cli: Cli, folder: Path, given: tuple[str, ...], problem: str
) -> None:
    result = cli("lake", "ingest", *given, *LAKE)
    assert result.code == 2
    assert problem in " ".join(result.err.split())


def test_a_folder_that_is_no_journal(cli: Cli) -> None:
    result = cli("lake", "ingest", "shop.py", "--journal", "nowhere", *LAKE)
    assert result.code == 2
    assert result.err == "error: there is no journal in nowhere\n"


def test_without_the_extra_it_says_how_to_get_it(folder: Path) -> None:
    code = (
        "import sys\n"
        "sys.modules['pyspark'] = None\n"
        "from matador.cli.program import run\n"
        "sys.exit(run(['lake', 'report', '--lake', 'lake']))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "matador-events[spark]" in done.stderr
    assert done.stderr.count("\n") == 1


def test_settings_of_spark_that_cannot_be_are_refused(made: Path) -> None:
    for wrong, said in (
        (("--conf", "memory=2g"), "use spark.name=value"),
        (("--conf", "spark.executor.memory"), "use spark.name=value"),
        (("--master", "mars"), "use local[2], spark://host:7077"),
        (("--remote", "mars"), "use sc://host:15002"),
        (("--remote", "sc://host:15002/;token"), "use sc://host:15002"),
        (("--remote", "sc://host", "--master", "local[2]"), "exclude each other"),
    ):
        result = shell(made, "lake", "compact", *LAKE, *wrong)
        assert result.code == 2
        assert said in result.err
