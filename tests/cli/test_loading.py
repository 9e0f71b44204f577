"""How applications are found, and what is said when they are not."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tests.cli.conftest import SHOP, Cli, dedent


@pytest.mark.parametrize(
    "reference",
    ["shop.py", "shop.py:app", "./shop.py", "shop", "shop:app", "sub/other.py:box.inner"],
)
def test_an_application_is_found(cli: Cli, folder: Path, reference: str) -> None:
    (folder / "sub").mkdir()
    (folder / "sub" / "other.py").write_text(SHOP + "\nclass box:\n    inner = app\ndel app\n")
    result = cli("topology", "show", reference, "--json")
    assert result.code == 0, result.err
    assert result.json["namespace"] == "shop"


def test_an_absolute_path_and_a_neighbour_of_the_file_are_found(cli: Cli, folder: Path) -> None:
    away = folder / "away"
    away.mkdir()
    (away / "main.py").write_text("from neighbour import app as app\n")
    (away / "neighbour.py").write_text(SHOP)
    assert cli("topology", "show", str(away / "main.py")).code == 0


def test_a_factory_is_called(cli: Cli, folder: Path) -> None:
    (folder / "made.py").write_text(SHOP + "\nmade = app\ndel app\ndef app(): return made\n")
    assert cli("topology", "show", "made.py").code == 0


def test_a_file_named_like_a_module_that_is_loaded_already_is_loaded_itself(
    cli: Cli, folder: Path
) -> None:
    (folder / "json.py").write_text(SHOP)
    assert cli("topology", "show", "json.py").code == 0


@pytest.mark.parametrize(
    ("reference", "says"),
    [
        ("shpo.py", "the file shpo.py does not exist; did you mean 'shop.py'?"),
        ("nowhere/", "the file nowhere/ does not exist"),
        ("nowhere", "there is no module 'nowhere'"),
        ("nowhere.deeper:app", "there is no module 'nowhere'"),
        ("shop.deeper:app", "there is no module 'shop.deeper'"),
        ("shop.py:ap", "shop.py has no attribute 'ap'; did you mean 'app'?"),
        ("shop.py:completely_else", "it has shop.py:app"),
        (
            "shop.py:OrderPlaced",
            "is of type type, not an application, job queue",
        ),
        ("shop.py:app.schema", "is of type Schema, not an application"),
        ("empty.py", "it has no application, job queue, worker"),
        ("factories.py:later", "factories.py:later is async"),
        ("factories.py:needy", "factories.py:needy needs arguments: number"),
        ("factories.py:wrong", "factories.py:wrong is of type int"),
        (":app", "no module in"),
    ],
)
def test_what_cannot_be_meant_is_wrong_usage(
    cli: Cli, folder: Path, reference: str, says: str
) -> None:
    (folder / "empty.py").write_text("")
    (folder / "factories.py").write_text(
        "async def later(): ...\ndef needy(number, more=1): ...\ndef wrong(): return 5\n"
    )
    result = cli("topology", "show", reference)
    assert result.code == 2
    assert says in result.err
    said = result.err.removeprefix("the shop's module was imported\n")
    assert said.startswith("error: ")
    assert said.count("\n") == 1, "one line"
    assert result.out == ""


@pytest.mark.parametrize(
    ("module", "says"),
    [
        ("import nothing_like_this", "bad.py:1: ModuleNotFoundError: No module named"),
        ("x = 1\ny = 1 / 0\n", "bad.py:2: ZeroDivisionError: division by zero"),
        ("def broken(:\n", "bad.py:1: SyntaxError"),
        ("import sys\nsys.exit(3)\n", "bad.py:2: SystemExit: 3"),
        ("raise ValueError", "bad.py:1: ValueError: no message"),
        (
            "from matador import Matador, Schema\n\napp = Matador('sqlit:///x', schema=Schema())",
            "bad.py:3: ConfigurationError: no transport for sqlit://",
        ),
        (
            "import matador\n\nmatador.Matador('amqp://me:secret@h:no/', schema=matador.Schema())",
            "bad.py:3: ConfigurationError",
        ),
        (
            (
                "from matador import subscriber\n\n@subscriber(description='x')\n"
                "def three(a: int, b: int, c: int) -> None: ...\n"
            ),
            "importing bad.py failed at bad.py:",
        ),
        ("import importlib\n\nimportlib.import_module('nothing_like_this')", "at bad.py:3: Module"),
        ("exec('1 / 0')\n", "at bad.py:1: ZeroDivisionError"),
    ],
)
def test_an_error_in_the_module_is_one_line_that_names_the_place(
    cli: Cli, folder: Path, module: str, says: str
) -> None:
    (folder / "bad.py").write_text(module)
    result = cli("topology", "show", "bad.py")
    assert result.code == 1
    assert says in result.err
    assert result.err.count("\n") == 1, result.err
    assert "secret" not in result.err
    loud = cli("topology", "show", "bad.py", "--verbose")
    assert "Traceback" in loud.err
    assert "secret" not in loud.err


def test_a_missing_extra_is_the_install_command_alone(
    cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    text = "from matador.observe import Metrics\nmetrics = Metrics()\n"
    (folder / "bad.py").write_text(text)
    result = cli("queues", "bad.py")
    assert result.code == 1
    assert result.err.startswith("error: ")
    assert result.err.endswith(" needs an extra: pip install 'matador-events[metrics]'\n")
    assert "bad.py" not in result.err
    assert result.err.count("\n") == 1


def test_passwords_in_an_error_are_blotted_out(cli: Cli, folder: Path) -> None:
    (folder / "bad.py").write_text(
        dedent("""
        from matador import Matador, Schema
        app = Matador('sqlite://me:secret@host/file.db', schema=Schema())
        """)
    )
    result = cli("topology", "show", "bad.py", "--verbose")
    assert result.code == 1
    assert "sqlite://me:***@host" in result.err
    assert "secret" not in result.err


def test_a_folder_is_not_suggested_for_itself(cli: Cli, folder: Path) -> None:
    (folder / "shops.py").mkdir()
    result = cli("queues", "shops.py")
    assert result.code == 2
    assert result.err == "error: the file shops.py is a folder; did you mean 'shop.py'?\n"


def test_a_module_that_failed_is_not_found_half_made(cli: Cli, folder: Path) -> None:
    (folder / "bad.py").write_text("import shop\nraise ValueError('no')\n")
    for _ in range(2):
        result = cli("queues", "bad.py")
        assert result.code == 1
        assert "ValueError: no" in result.err


@pytest.mark.parametrize("error", ["BaseException", "GeneratorExit", "asyncio.CancelledError"])
def test_whatever_a_module_raises_is_one_line(cli: Cli, folder: Path, error: str) -> None:
    (folder / "bad.py").write_text(f"import asyncio\nraise {error}('odd')\n")
    result = cli("queues", "bad.py")
    assert result.code == 1
    assert result.err.splitlines() == [
        f"error: unexpected {error.rpartition('.')[2]}: odd (run with --verbose for the traceback)"
    ]
