"""What all commands have in common, and the small ones: queues, topology, doctor."""

from __future__ import annotations

import json
import logging
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Cli, Result, Shop, Start
from typer.main import get_command

from matador.cli.commands import Commands, Common
from matador.cli.output import EXIT_CODES, show_logs
from matador.cli.program import program

COMMANDS = [
    ["worker"],
    ["send"],
    ["run"],
    ["send-test-event"],
    ["topology", "show"],
    ["topology", "apply"],
    ["topology", "check"],
    ["queues", "list"],
    ["queues", "pause"],
    ["queues", "resume"],
    ["messages", "list"],
    ["messages", "show"],
    ["messages", "cancel"],
    ["dead-letters", "list"],
    ["dead-letters", "show"],
    ["dead-letters", "redrive"],
    ["dead-letters", "purge"],
    ["doctor"],
]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_has_help_with_an_example_and_json(cli: Cli, command: list[str]) -> None:
    result = cli(*command, "--help")
    assert result.code == 0
    assert f"matador {' '.join(command)} shop.py" in result.out
    usage = f"Usage: matador {' '.join(command)} [OPTIONS] "
    assert f"{usage}FILE" in result.out or f"{usage}APP" in result.out
    assert "--json" in result.out
    assert "--verbose" in result.out
    assert "<bool>" not in result.out
    assert "<str>" not in result.out


def _leaves(command: Any, path: str) -> Iterator[tuple[str, Any]]:
    for name, one in getattr(command, "commands", {}).items():
        yield from _leaves(one, f"{path} {name}")
    if not hasattr(command, "commands"):
        yield path, command


def test_no_command_lacks_a_description_an_example_json_or_verbose() -> None:
    leaves = list(_leaves(get_command(program), "matador"))
    assert len(leaves) > len(COMMANDS)
    for path, command in leaves:
        options = {name for parameter in command.params for name in parameter.opts}
        assert {"--json", "--verbose"} <= options, path
        assert f"[cyan]{path}" in command.epilog, path
        assert command.help, path


def test_the_list_of_commands_and_the_version(cli: Cli) -> None:
    result = cli("--help")
    assert result.code == 0
    for command in COMMANDS:
        assert command[0] in result.out
    assert "Exit codes: 0" in result.out
    assert "<bool>" not in result.out
    assert cli("--version").out.startswith("matador 0.")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["snd", "shop.py"], "did you mean 'send'?"),
        (["queues"], "FILE"),
        (["queues", "shop.py", "--jsn"], "--json"),
        (["queues", "shop.py", "too", "many"], "too many"),
        (["dead-letters", "lst"], "did you mean 'list'?"),
    ],
)
def test_wrong_usage_is_one_line(cli: Cli, arguments: list[str], says: str) -> None:
    result = cli(*arguments)
    assert result.code == 2
    assert says.lower() in result.err.lower()
    assert result.err.count("\n") == 1


@pytest.mark.parametrize("group", [[], ["topology"], ["dead-letters"]])
def test_a_group_without_a_command_shows_its_help_and_no_empty_error(
    cli: Cli, group: list[str]
) -> None:
    result = cli(*group)
    assert result.code == 2
    assert "Usage: matador" in result.out + result.err
    assert "error:" not in result.err


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("matador mess", ["messages"]),
        ("matador dead-letters pur", ["purge"]),
        ("matador dead-letters list shop.py --fie", ["--field"]),
        ("matador dead-letters list shop.py --kind un", ["unhandled", "undeliverable"]),
        ("matador messages list shop.py --state del", ["delayed"]),
        ("matador jobs sche", ["schedules"]),
        ("matador queues ", ["list", "pause", "resume"]),
        ("matador queues pa", ["pause"]),
        ("matador queues shop.py --wat", ["--watch"]),
        ("matador jobs list emails --prov", ["--provider"]),
        ("matador jobs list emails --status del", ["delayed"]),
    ],
)
def test_the_shell_completes_commands_options_and_values(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, typed: str, offered: list[str]
) -> None:
    # Which shell it is, is told by the process that started the test, which may be none.
    monkeypatch.setenv("_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION", "1")
    assert "complete -o default" in cli("--show-completion", "bash").out
    monkeypatch.setenv("_MATADOR_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", typed)
    monkeypatch.setenv("COMP_CWORD", str(typed.count(" ")))
    result = cli()
    assert (result.code, result.out.split()) == (0, offered)


def test_importing_the_command_line_loads_neither_typer_nor_rich() -> None:
    code = "import sys, matador.cli; print([m for m in ('typer', 'rich') if m in sys.modules])"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"


_INTERRUPTS_ITSELF = """
import os, signal, sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Finder())
"""


@pytest.mark.parametrize("module", ["matador.codec", "typer", "matador.cli.worker"])
@pytest.mark.parametrize(
    "program", [["-m", "matador"], [str(Path(sys.executable).with_name("matador"))]]
)
def test_an_interrupt_during_the_imports_is_quiet(
    tmp_path: Path, program: list[str], module: str
) -> None:
    # Python imports this module at its start, before the command.
    (tmp_path / "sitecustomize.py").write_text(_INTERRUPTS_ITSELF.format(module=module))
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    ran = subprocess.run(
        [sys.executable, *program, "--version"],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.stderr == ""
    assert (ran.returncode, ran.stdout) == (130, "")


_ENDS_ITSELF = """
import os, signal, sys

def look(frame, event, argument):
    code = frame.f_code
    if code.co_name in {functions!r} and code.co_filename.endswith("program.py"):
        return strike
    return None

def strike(frame, event, argument):
    if event == {event!r} and signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        sys.settrace(None)
        os.kill(os.getpid(), signal.SIGTERM)
    return strike

sys.settrace(look)
from matador.cli import main
sys.argv = ["matador", "--version"]
main()
"""


@pytest.mark.parametrize(
    ("function", "event"),
    [("_interrupted_by_sigterm", "return"), ("run", "line"), ("_run", "line"), ("_run", "return")],
)
def test_sigterm_beside_the_command_ends_with_its_own_code(function: str, event: str) -> None:
    """It becomes an interrupt, which may come just before the command begins, or after its end."""
    ran = subprocess.run(
        [sys.executable, "-c", _ENDS_ITSELF.format(functions=(function,), event=event)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (143, "error: interrupted\n")


_ENDS_ITSELF_IN_ASYNCIO = """
import asyncio.runners, os, signal, sys

def look(frame, event, argument):
    return strike if frame.f_code is asyncio.runners.Runner.run.__code__ else None

def strike(frame, event, argument):
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        sys.settrace(None)
        os.kill(os.getpid(), signal.SIGTERM)
    return strike

sys.settrace(look)
from matador.cli import main
sys.argv = ["matador", "queues", "shop.py"]
main()
"""


def test_sigterm_while_asyncio_begins_is_an_interrupt(folder: Path) -> None:
    """It has its handler by then, and forgets that it was called."""
    ran = subprocess.run(
        [sys.executable, "-c", _ENDS_ITSELF_IN_ASYNCIO],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.stderr.splitlines()[-1:] == ["error: interrupted"]
    assert ran.returncode == 143


def test_a_reader_that_goes_away_is_no_error(folder: Path, shop: Shop) -> None:
    shop.bury(3000)
    command = [sys.executable, "-m", "matador", "dead-letters", "list", "shop.py", "--json"]
    with subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(10)
        process.stdout.close()
        assert b"Traceback" not in process.stderr.read()


# -- queues ---------------------------------------------------------------------------------------


def test_queues_counts_messages_by_state_and_dead_letters(cli: Cli, shop: Shop) -> None:
    order = '{"order_id": "1", "amount": 5}'
    assert cli("send", "shop.py", "order.placed", order).code == 0
    assert cli("send", "shop.py", "order.placed", order, "--delay", "60").code == 0
    shop.bury(3)
    result = cli("queues", "shop.py", "--json")
    assert result.code == 0
    events, billing = result.json["queues"]
    assert events == {
        "queue": "shop.events",
        "way": "events",
        "exists": True,
        "waiting": 1,
        "delayed": 1,
        "in_flight": 0,
        "dead_letters": {"unhandled": 0, "undeliverable": 0},
        "paused": False,
    }
    assert billing["dead_letters"] == {"unhandled": 0, "undeliverable": 3}
    people = cli("queues", "shop.py").out.splitlines()
    assert people[0].split() == [
        *("queue", "waiting", "delayed", "in", "flight", "dead", "letters")
    ]
    assert people[2].split() == ["shop.billing", "1", "1", "0", "3"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_queues_watches_until_it_is_told_to_stop(
    start: Start, shop: Shop, number: signal.Signals
) -> None:
    shop.bury(1)
    process = start("queues", "shop.py", "--watch", "--interval", "0.1", "--json")
    process.says('"undeliverable": 1')
    shop.bury(1, amount=7)
    process.says('"undeliverable": 2')
    process.signal(number)
    assert process.ends() == 0
    assert "Traceback" not in process.err
    for line in process.out.splitlines():
        json.loads(line)


def test_queues_are_watched_through_a_pipe(folder: Path, shop: Shop) -> None:
    shop.bury(1)
    command = [sys.executable, "-m", "matador", "queues", "shop.py", "--watch", "--interval", "0.1"]
    with subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        lines = [process.stdout.readline() for _ in range(6)]
        assert [line.split()[0] for line in lines] == ["queue", "shop.events", "shop.billing"] * 2
        process.stdout.close()
        assert "Traceback" not in process.stderr.read()
        assert process.wait(60) == 1, "it ends when nobody reads it"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (PermissionError(13, "Permission denied", "r.html"), "r.html: Permission denied"),
        (
            OSError(
                "Generic LocalFileSystem error\n \x1b[31m↳\x1b[0m Unable to open file /lake/1.json"
                "\n  \x1b[31m↳\x1b[0m Permission denied (os error 13)"
            ),
            "Unable to open file /lake/1.json: Permission denied (os error 13)",
        ),
        (
            OSError(99, "odd"),
            "unexpected OSError: [Errno 99] odd (run with --verbose for the traceback)",
        ),
    ],
    ids=["named", "delta", "other"],
)
def test_files_that_cannot_be_used_are_an_error_of_one_line(
    capsys: pytest.CaptureFixture[str], error: OSError, said: str
) -> None:
    group = Commands("A group.")

    @group.add("matador fail")
    def fail(*, common: Common) -> None:
        raise error

    command = get_command(group)
    assert command.main(["fail"], prog_name="matador", standalone_mode=False) == 1
    assert capsys.readouterr().err == f"error: {said}\n"


WRITES = [
    ["--help"],
    ["--version"],
    ["queues", "shop.py"],
    ["queues", "shop.py", "--json"],
    ["docs", "shop.py"],
    ["docs", "shop.py", "--json"],
    ["docs", "shop.py", "--format", "html"],
    ["worker", "shop.py", "--json"],
    ["worker", "shop.py", "--processes", "2", "--json", "--log-format", "json"],
]


@pytest.mark.parametrize("arguments", WRITES, ids=" ".join)
def test_results_that_nobody_can_store_are_an_error_of_one_line(
    folder: Path, shop: Shop, arguments: list[str]
) -> None:
    shop.bury(1)
    with Path("/dev/full").open("w") as full:
        done = matador(folder, *arguments, stdout=full, stderr=subprocess.PIPE)
    unwanted = ("error", "Error", "Traceback", "Exception")
    errors = [line for line in done.stderr.splitlines() if line.startswith(unwanted)]
    assert errors == ["error: cannot write to stdout: No space left on device"]
    assert done.returncode == 1


@pytest.mark.parametrize(
    ("arguments", "code"),
    [(["dead-letters", "list", "shop.py"], 0), (["queues", "no.py"], 2), (["nonsense"], 2)],
    ids=str,
)
def test_remarks_that_nobody_can_store_change_nothing(
    folder: Path, shop: Shop, arguments: list[str], code: int
) -> None:
    shop.bury(1)
    with Path("/dev/full").open("w") as full:
        done = matador(folder, *arguments, stdout=subprocess.PIPE, stderr=full)
    assert done.returncode == code
    assert ("order.placed" in done.stdout) == (code == 0)


@pytest.mark.parametrize("arguments", [["queues", "shop.py", "--json"], ["docs", "shop.py"]])
def test_a_closed_stdout_is_like_dev_null(folder: Path, shop: Shop, arguments: list[str]) -> None:
    shop.bury(1)
    script = 'exec "$@" >&-'
    command = ["sh", "-c", script, "sh", sys.executable, "-m", "matador", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "the shop's module was imported\n")


def matador(folder: Path, *arguments: str, **streams: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "matador", *arguments]
    return subprocess.run(command, cwd=folder, text=True, check=False, timeout=120, **streams)


@pytest.mark.parametrize(
    ("number", "code", "ignored"),
    [(signal.SIGINT, 130, False), (signal.SIGTERM, 143, False), (signal.SIGTERM, 143, True)],
)
def test_a_command_that_takes_long_can_be_ended(
    start: Start, folder: Path, number: signal.Signals, code: int, ignored: bool
) -> None:
    ignore = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n" if ignored else ""
    slow = "print('importing\\n', end='')\nimport time\nwhile True: time.sleep(0.01)\n"
    (folder / "slow.py").write_text(ignore + slow)
    process = start("topology", "show", "slow.py")
    process.says("importing")
    process.signal(number)
    assert process.ends() == code
    assert process.err.splitlines() == ["importing", "error: interrupted"]


# -- topology -------------------------------------------------------------------------------------


def test_topology_shows_who_uses_which_queue(cli: Cli, folder: Path) -> None:
    result = cli("topology", "show", "shop.py")
    assert result.code == 0
    for text in (
        "shop.billing  consumed, concurrency 4",
        "order.placed → charge",
        "shop.billing.undeliverable",
        "retries after 1 s",
    ):
        assert text in result.out
    _, billing = cli("topology", "show", "shop.py", "--json").json["queues"]
    assert billing["subscribers"] == [{"event": "order.placed", "name": "charge", "stub": False}]
    assert not (folder / "shop.db").exists(), "nothing was connected to"


def test_topology_check_finds_what_is_missing_and_apply_makes_it(cli: Cli, folder: Path) -> None:
    missing = cli("topology", "check", "shop.py")
    assert missing.code == 1
    assert missing.out.count("missing") == 6
    assert "topology apply shop.py" in missing.err
    assert not (folder / "shop.db").exists(), "a check makes nothing"
    assert cli("topology", "apply", "shop.py").code == 0
    assert cli("topology", "check", "shop.py").code == 0
    text = (folder / "shop.py").read_text().replace('queues=["events"', 'queues=["more", "events"')
    (folder / "larger.py").write_text(text)
    larger = cli("topology", "check", "larger.py", "--json")
    assert larger.code == 1
    assert larger.json["missing"] == 3
    assert {"queue": "shop.more", "exists": False} in larger.json["queues"]
    assert cli("topology", "check", "larger.py").code == 1, "still not made"


# -- doctor ---------------------------------------------------------------------------------------


def _found(result: Result, name: str) -> list[tuple[str, str]]:
    return [(one["status"], one["text"]) for one in result.json["checks"] if one["name"] == name]


def test_doctor_finds_a_healthy_shop_healthy(cli: Cli) -> None:
    assert cli("topology", "apply", "shop.py").code == 0
    result = cli("doctor", "shop.py", "--json")
    assert result.code == 0, result.out
    assert result.json["ok"] is True
    for name in ("application", "topology", "connection", "queues", "dead letters", "disk"):
        assert [status for status, _ in _found(result, name)] == ["ok"], name
    assert ("warning", "event 'order.lost' has no subscribers") in _found(result, "schema")


def test_doctor_makes_nothing(cli: Cli, folder: Path) -> None:
    result = cli("doctor", "shop.py")
    assert result.code == 0
    assert "does not exist yet" in result.out
    assert not (folder / "shop.db").exists()


def test_doctor_counts_dead_letters_and_missing_queues(cli: Cli, shop: Shop, folder: Path) -> None:
    shop.bury(4)
    result = cli("doctor", "shop.py", "--json")
    assert _found(result, "dead letters") == [("warning", "4 in shop.billing.undeliverable")]
    text = (folder / "shop.py").read_text().replace('queues=["events"', 'queues=["more", "events"')
    (folder / "larger.py").write_text(text)
    ((status, said),) = _found(cli("doctor", "larger.py", "--json"), "queues")
    assert status == "warning"
    assert "shop.more" in said


def test_doctor_names_the_causes_of_unhandled_messages_before_it_suggests_anything(
    cli: Cli, shop: Shop
) -> None:
    shop.put("shop.events.unhandled", [("m-1", b"{}")])
    shop.bury(1)
    (check,) = [
        one
        for one in cli("doctor", "shop.py", "--json").json["checks"]
        if one["name"] == "dead letters"
    ]
    fix = check["fix"]
    causes = ("another application in the same namespace", "renamed event", "not updated")
    assert all(fix.index(cause) < fix.index("redrive") for cause in causes), fix
    assert "Topology('shop', …)" in fix
    assert "aliases=[…]" in fix
    assert "purge" not in fix, "those of another application would be lost"


def test_doctor_lists_every_problem_of_a_schema(cli: Cli, folder: Path) -> None:
    more = """
@subscriber(description=" ", queue="bilings", name="one")
async def one(envelope): ...

app.configure(schema=Schema({OrderPlaced: [one, one]}))
"""
    (folder / "bad.py").write_text((folder / "shop.py").read_text() + more)
    result = cli("doctor", "bad.py", "--json")
    assert result.code == 1
    problems = [text for status, text in _found(result, "schema") if status == "problem"]
    assert len(problems) >= 3
    assert any("did you mean 'billing'?" in text for text in problems)


def test_doctor_finds_stubs_in_consumed_queues_and_forgetful_subscribers(
    cli: Cli, folder: Path
) -> None:
    more = """
from matador import NoCheckpointStore, SubscriberStub
stub = SubscriberStub("ship", description="Ship it.")
app.configure(
    schema=Schema({OrderPlaced: [stub, charge]}), checkpoints=NoCheckpointStore()
)
"""
    (folder / "bad.py").write_text((folder / "shop.py").read_text() + more)
    result = cli("doctor", "bad.py", "--json")
    assert result.code == 1
    assert _found(result, "stubs")[0][0] == "problem"
    assert "charge" in _found(result, "checkpoints")[0][1]


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("sqlite:///no/such/folder/shop.db", "does not exist"),
        ("sqlite:///text.db", "is not an SQLite database"),
    ],
)
def test_doctor_says_why_a_file_cannot_be_used(cli: Cli, folder: Path, url: str, says: str) -> None:
    (folder / "text.db").write_text("this is not a database, and never was one")
    text = (folder / "shop.py").read_text().replace("sqlite:///shop.db", url)
    (folder / "bad.py").write_text(text)
    result = cli("doctor", "bad.py")
    assert result.code == 1
    assert "✗" in result.out
    assert says in result.out


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_doctor_looks_at_permissions(cli: Cli, folder: Path, shop: Shop) -> None:
    shop.bury(1)
    (folder / "shop.db").chmod(0o400)
    result = cli("doctor", "shop.py")
    assert result.code == 1
    assert "no permission" in result.out


def test_doctor_notices_a_clock_that_was_set_back(cli: Cli, folder: Path, shop: Shop) -> None:
    shop.bury(1)
    with sqlite3.connect(folder / "shop.db") as database:
        database.execute("UPDATE meta SET clock_offset = clock_offset + 3600")
    database.close()
    os.utime(folder / "shop.db", (time.time() + 7200, time.time() + 7200))
    result = cli("doctor", "shop.py", "--json")
    clocks = [text for status, text in _found(result, "clock") if status == "warning"]
    assert any("3,600 s off" in text or "3,599 s off" in text for text in clocks), clocks


def test_doctor_reports_a_module_that_cannot_be_imported(cli: Cli, folder: Path) -> None:
    (folder / "bad.py").write_text("1 / 0")
    result = cli("doctor", "bad.py", "--json")
    assert result.code == 1
    assert "bad.py:1: ZeroDivisionError" in _found(result, "application")[0][1]
    assert cli("doctor", "nothing.py").code == 2


def test_what_the_client_of_kafka_says_at_each_try_is_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    show_logs(logging.WARNING)
    from matador.transports.kafka.options import LOG  # it needs the client library

    LOG.error("FAIL [matador#producer-2] [thrd:127.0.0.1:1/bootstrap]: Connection refused")
    LOG.error("a message was not stored")
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("ERROR matador.transports.kafka: a message was not stored")


def test_help_and_reference_say_the_same_of_exit_codes(cli: Cli) -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "command-line.md").read_text()
    assert "\n".join(f"| {code} | {meaning} |" for code, meaning in EXIT_CODES) in page
    said = " ".join(cli("--help").out.replace("│", " ").split())
    for code, meaning in EXIT_CODES:
        assert f"{code} {meaning.replace(';', ',')}" in said


@pytest.mark.parametrize(
    ("arguments", "number", "code"),
    [
        (["tail", "shop.py"], signal.SIGINT, 0),
        (["worker", "shop.py"], signal.SIGTERM, 0),
        (["worker", "slow.py"], signal.SIGINT, 130),
        (["send-test-event", "slow.py"], signal.SIGTERM, 143),
    ],
)
def test_exit_codes_after_signals_are_those_of_the_table(
    start: Start, shop: Shop, folder: Path, arguments: list[str], number: signal.Signals, code: int
) -> None:
    shop.put("shop.events", [])
    (folder / "slow.py").write_text("import time\nprint('Ctrl-C')\ntime.sleep(100)\n")
    process = start(*arguments)
    process.says("consuming shop.billing" if arguments == ["worker", "shop.py"] else "Ctrl-C")
    process.signal(number)
    assert process.ends() == code, process.err
