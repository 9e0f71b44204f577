"""Every page is true: its code runs, its commands print what it shows, its names exist."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from docs.include import code
from tests.docs.sessions import ROOT, Block, Session, blocks, commands, missing

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
WITH_SESSIONS = [page for page in PAGES if commands(page)]
ON_SPARK = [
    pytest.mark.spark,
    pytest.mark.xdist_group("spark"),
    pytest.mark.timeout(900),
]
WITH_OUTPUT = [
    (page, block) for page in PAGES for block in blocks(page) if block.language == "text"
]


def name(page: object) -> str:
    return str(page.relative_to(ROOT)) if isinstance(page, Path) else ""


def marks(page: Path) -> list[pytest.MarkDecorator]:
    starts = ("matador lake", "matador spark")
    return ON_SPARK if any(one.line.startswith(starts) for one in commands(page)) else []


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_code_is_included_from_files_that_the_tests_run(page: Path) -> None:
    for block in blocks(page):
        known = ("python", "js", "console", "sh", "sql", "text", "ini", "yaml", "dockerfile")
        assert block.language in known, f"unknown kind of block:\n{block.text}"
        if block.language in ("console", "sh", "sql", "text"):
            continue
        assert re.fullmatch(
            r"(?:(?:examples|docs/snippets|tests/docs)/[\w./]+\.(?:py|mjs|ini|toml)"
            r"|deploy/[\w./-]+)(?::[\w-]+)?",
            block.source,
        ), f"code that no test runs:\n{block.text}"
        assert block.text == code(block.source), "run docs/include.py"


@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=marks(page)) for page in WITH_SESSIONS], ids=name
)
def test_sessions_are_true(page: Path, tmp_path: Path) -> None:
    session = Session(tmp_path)
    try:
        for command in commands(page):
            session.play(command)
    finally:
        session.close()


@pytest.mark.parametrize(
    ("page", "block"),
    [(page, block) for page in PAGES for block in blocks(page) if block.language == "sh"],
    ids=name,
)
def test_commands_that_need_servers_elsewhere_exist(page: Path, block: Block) -> None:
    for line in block.text.replace("\\\n", " ").splitlines():
        program, *words = shlex.split(line)
        assert program == "matador"
        asked = [*words[:2], "--help"]
        printed = subprocess.run(
            [sys.executable, "-m", "matador", *asked], capture_output=True, text=True, check=True
        ).stdout
        for word in words:
            assert not word.startswith("--") or f"{word} " in printed, f"{word} of {line}"


@pytest.mark.parametrize(("page", "block"), WITH_OUTPUT, ids=name)
def test_output_is_true(page: Path, block: Block, tmp_path: Path) -> None:
    title = re.search(r'title="python (\w+\.py)"', block.info)
    assert title, f"this output names no program:\n{block.text}"
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / title[1])],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        text=True,
        timeout=60,
        check=True,
    )
    assert missing(tuple(block.text.splitlines()), done.stdout) == []


def test_every_page_with_a_session_is_played() -> None:
    assert {"README.md", "docs/getting-started.md"} <= {name(page) for page in WITH_SESSIONS}


def test_the_command_line_page_names_every_command() -> None:
    from typer.main import get_command

    from matador.cli.program import program

    page = (ROOT / "docs" / "reference" / "command-line.md").read_text()
    root = get_command(program)
    for path, command in _leaves(root, "matador"):
        named = re.compile(rf"`{re.escape(path)}[ `]")
        row = next((line for line in page.splitlines() if named.search(line)), "")
        assert row, f"{path} is not on the page"
        known = {option for parameter in command.params for option in parameter.opts}
        assert set(re.findall(r"--[a-z-]+", row)) <= known, path


def _leaves(command: Any, path: str) -> list[tuple[str, Any]]:
    inner: dict[str, Any] | None = getattr(command, "commands", None)
    if inner is None:
        return [(path, command)]
    return [leaf for key, one in inner.items() for leaf in _leaves(one, f"{path} {key}")]
