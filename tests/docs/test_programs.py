"""The programs of the README and of the pages run when copied into an empty folder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.docs.sessions import ROOT, blocks, commands, missing, programs

README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "docs").rglob("*.md"))]
ELSEWHERE = {
    "revenue.py",  # on Spark: in the session of its page
    "tiny_transport.py",  # a transport, without anything that runs; test_tiny_transport.py
    "ways.py",  # sends to its worker: in the session of its page
}
PROGRAMS = [
    pytest.param(page, name, id=f"{page.relative_to(ROOT)}:{name}")
    for page in PAGES
    for name in programs(page)
    if name not in ELSEWHERE
]


def run(folder: Path, name: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", name],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.mark.parametrize(("page", "name"), PROGRAMS)
def test_a_program_runs_in_an_empty_folder(page: Path, name: str, tmp_path: Path) -> None:
    for other, code in programs(page).items():
        (tmp_path / other).write_text(code)
    printed = run(tmp_path, name)
    for block in blocks(page):
        if block.language == "text" and f'title="python {name}"' in block.info:
            assert missing(tuple(block.text.splitlines()), printed) == []


@pytest.mark.parametrize("name", ["testing_example.py", "testing_ways.py"])
def test_the_tests_of_the_guide_need_only_the_extra_for_testing(name: str, tmp_path: Path) -> None:
    for client in ("pika", "redis", "bullmq", "confluent_kafka", "aiobotocore", "pyspark"):
        (tmp_path / f"{client}.py").write_text("raise ImportError('not installed')")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", name],
        cwd=ROOT / "examples",
        capture_output=True,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout


def test_every_program_of_the_readme_has_a_name_and_is_run() -> None:
    code = [block for block in blocks(README) if block.language == "python"]
    assert set(programs(README)) == {"shop.py", "ways.py"}
    assert len(programs(README)) == len(code), "a block of the README that is no program"
    for block in code:
        assert f'title="{Path(block.source).name}"' in block.info
    typed = [command.line for command in commands(README)]
    assert {"matador worker shop.py", "matador worker ways.py", "python ways.py"} <= set(typed)
