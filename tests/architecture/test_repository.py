"""Checks on the repository as a whole: what its files may mention, what an import may load."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]

# Written in pieces, so that this file passes its own test.
REGISTRIES = [
    ("deb", "debian", "org"),
    ("files", "pythonhosted", "org"),
    ("pypi", "org"),
    ("registry", "npmjs", "org"),
    ("repo", "maven", "apache", "org"),
    ("repo1", "maven", "org"),
]
HOST = re.compile("|".join(re.escape(".".join(host)) for host in REGISTRIES))
MACHINE_PATH = re.compile(r"(?<![\w.$}<>-])/(?:work|root|home/\w+|Users/\w+)/")

NOT_LOADED_BY_IMPORT = {
    "aiobotocore",
    "attr",
    "attrs",
    "boto3",
    "botocore",
    "bullmq",
    "confluent_kafka",
    "opentelemetry",
    "pandas",
    "pika",
    "pyarrow",
    "pydantic",
    "pyspark",
    "redis",
    "rich",
    "starlette",
    "typer",
    "uvicorn",
}


def tracked_files() -> Iterator[Path]:
    """The files git knows or would add: what a commit of everything would hold."""
    # In a container the checkout often belongs to another user than the one who runs the tests.
    git = ["git", "-c", "safe.directory=*"]
    command = [*git, "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listing = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    for name in filter(None, listing.stdout.split("\0")):
        if (ROOT / name).is_file():
            yield ROOT / name


def mentions(pattern: re.Pattern[str]) -> list[str]:
    return [
        f"{file.relative_to(ROOT)}:{number}: {line.strip()[:100]}"
        for file in tracked_files()
        for number, line in enumerate(file.read_text("utf-8", errors="replace").splitlines(), 1)
        if pattern.search(line)
    ]


def test_no_file_names_a_package_registry() -> None:
    assert mentions(HOST) == []


def test_no_file_names_a_path_of_one_machine() -> None:
    assert mentions(MACHINE_PATH) == []


def test_the_patterns_see_what_they_look_for() -> None:
    assert HOST.search("https://" + ".".join(REGISTRIES[2]) + "/simple")
    assert MACHINE_PATH.search('cd "/' + 'work/main"')
    assert not MACHINE_PATH.search('"$folder/' + 'work/queue.db"')


def test_every_script_is_executable() -> None:
    scripts = [file for file in tracked_files() if file.read_bytes().startswith(b"#!")]
    assert {ROOT / "script" / "test", ROOT / ".ci" / "run"} <= set(scripts)
    assert [file for file in scripts if not os.access(file, os.X_OK)] == []


def test_importing_matador_loads_no_optional_library() -> None:
    program = "import json, sys, matador; print(json.dumps([matador.__file__, *sys.modules]))"
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    file, *modules = json.loads(run.stdout)
    assert file is not None
    loaded = {str(module).partition(".")[0] for module in modules}
    assert sorted(loaded & NOT_LOADED_BY_IMPORT) == []
