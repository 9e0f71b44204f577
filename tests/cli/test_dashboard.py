"""``matador dashboard``: options, tokens, a real server, live parts, signals."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import httpx
import pytest
from tests.cli.conftest import Cli, Start

TOKEN = "operator-token-0123456789"


@pytest.fixture
def shop_file(cli: Cli) -> None:
    assert cli("topology", "apply", "shop.py").code == 0


def test_another_address_needs_a_token(cli: Cli, shop_file: None) -> None:
    result = cli("dashboard", "shop.py", "--host", "0.0.0.0")
    assert result.code == 2
    assert "without a token" in result.err
    assert "--token-file" in result.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--token-file", "missing"], "cannot read missing"),
        (["--token-file", "empty"], "is empty"),
        (["--webhook-file", "empty"], "is empty"),
        (["--webhook-file", "good"], "must begin with http:// or https://"),
        (["--token-file", "short"], "at least 16"),
        (["--token-file", "unnamed"], "line 2 of unnamed needs a name of its own"),
        (["--token-file", "twice"], "line 2 of twice needs a name of its own"),
        (["--token-file", "nobody"], "the token of ada must have at least 16"),
        (["--job-queue", "emails"], "--job-provider"),
        (["--host", "no.such.host.example", "--token-file", "good"], "cannot listen"),
        (["--port", "70000"], "--port"),
        (["--remote", "sc://host:15002"], "give --lake FOLDER"),
        (["--storage-option", "aws_region=x"], "give --lake s3://bucket/lake"),
        (["--lake", "lake", "--storage-option", "aws_region=x"], "this is a local folder"),
        (["--job-provider", "sqlite:///jobs.db"], "needs --job-queue"),
        (["--lake", "s3://shop/lake", "--storage-option", "x=y"], "is unknown for s3:"),
        (["--lake", "lake", "--remote", "sc://host", "--master", "yarn"], "exclude each other"),
    ],
)
def test_wrong_usage(
    cli: Cli, shop_file: None, folder: Path, arguments: list[str], said: str
) -> None:
    for name, text in (
        ("empty", " \n"),
        ("short", "abc"),
        ("good", TOKEN),
        ("unnamed", f"ada: {TOKEN}\n{TOKEN}x"),
        ("twice", f"ada: {TOKEN}\nada: {TOKEN}x"),
        ("nobody", "ada: short"),
    ):
        (folder / name).write_text(text)
    result = cli("dashboard", "shop.py", "--history", "h.db", "--port", "0", *arguments)
    assert result.code == 2, result.err
    assert said in result.err
    assert TOKEN not in result.err


def test_what_it_cannot_start_with_is_said(cli: Cli, folder: Path) -> None:
    (folder / "shop.db").write_bytes(b"no database" * 500)
    result = cli("dashboard", "shop.py", "--history", "h.db", "--port", "0")
    assert result.code == 1
    assert "is not an SQLite database" in result.err
    assert "Traceback" not in result.err
    assert "dashboard on" not in result.out + result.err


def test_it_makes_no_database(cli: Cli, folder: Path) -> None:
    result = cli("dashboard", "shop.py", "--history", "h.db")
    assert result.code == 1
    assert "does not exist yet" in result.err
    assert not (folder / "shop.db").exists()


def test_it_serves_live_pages_until_a_signal(start: Start, cli: Cli, shop_file: None) -> None:
    cli("send", "shop.py", "order.placed", '{"order_id": "1", "amount": 500}')
    worker = start("worker", "shop.py", "--history", "h.db")
    worker.says("declined")
    process = start("dashboard", "shop.py", "--port", "0", "--history", "h.db", "--json")
    process.says("}")
    url = json.loads(process.out)["url"]
    assert url.startswith("http://127.0.0.1:")
    with httpx.Client(base_url=url) as client:
        assert "shop" in client.get("/", headers={"accept": "text/html"}).text
        with client.stream("GET", "/live?page=queues", timeout=60) as stream:
            assert stream.headers["content-type"].startswith("text/event-stream")
            lines = stream.iter_lines()
            for line in lines:
                if "shop.billing" in line:
                    break
            else:
                pytest.fail("the stream ended without a queue")
            process.signal(signal.SIGTERM)
            list(lines)  # until the dashboard ends it
    assert process.ends() in (0, 143)
    assert not any(one in process.err for one in ("Traceback", "ERROR")), process.err
    worker.signal(signal.SIGTERM)
    worker.ends()


def test_a_token_from_the_environment_is_asked_for_and_never_printed(
    start: Start, cli: Cli, shop_file: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MATADOR_DASHBOARD_TOKEN", TOKEN)
    process = start("dashboard", "shop.py", "--port", "0", "--history", "h.db", "--verbose")
    process.says("dashboard on http://")
    url = next(word for word in process.err.split() if word.startswith("http://"))
    with httpx.Client(base_url=url) as client:
        assert client.get("/queues").status_code == 401
        form = {"token": TOKEN, "next": "/queues"}
        answer = client.post("/login", data=form, headers={"origin": url})
        assert answer.headers["location"] == "/queues"
        assert client.get("/queues").status_code == 200
    process.signal(signal.SIGINT)
    assert process.ends() in (0, 130)
    assert TOKEN not in process.out + process.err


def test_users_of_a_token_file_have_names(
    start: Start, cli: Cli, shop_file: None, folder: Path
) -> None:
    (folder / "tokens").write_text(f"ada: {TOKEN}\n\nbob: {TOKEN}-of-bob\n")
    (folder / "tokens").chmod(0o600)
    options = ("--port", "0", "--history", "h.db", "--token-file", "tokens", "--json")
    process = start("dashboard", "shop.py", *options)
    process.says("}")
    url = json.loads(process.out)["url"]
    for name, token in (("ada", TOKEN), ("bob", f"{TOKEN}-of-bob")):
        with httpx.Client(base_url=url) as client:
            form = {"token": token, "next": "/queues"}
            assert client.post("/login", data=form, headers={"origin": url}).status_code == 303
            assert f">{name}</span>" in client.get("/queues").text
    process.signal(signal.SIGTERM)
    process.ends()
    assert "operator bob at 127.0.0.1" in (folder / "h.db.audit.jsonl").read_text()


def test_the_default_history_is_in_the_home_folder(
    start: Start, cli: Cli, shop_file: None, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(folder / "state"))
    process = start("dashboard", "shop.py", "--port", "0", "--json")
    process.says("}")
    file = Path(json.loads(process.out)["history"])
    assert file.parent == folder / "state" / "matador"
    assert file.parent.stat().st_mode & 0o777 == 0o700
    process.signal(signal.SIGTERM)
    process.ends()
