"""Keeps the layers of the code apart: what may import what, and who may read the clock."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "matador"
PURE = ("model", "codec", "policy")

# Each client library has one home. BullMQ stands on redis-py as well, so that has two, and a third
# for what they share.
HOMES = {
    "aiobotocore": "matador.transports.sqs",
    "botocore": "matador.transports.sqs",
    "bullmq": "matador.transports.bullmq",
    "confluent_kafka": "matador.transports.kafka",
    "hiredis": "matador.transports.redis_client",
    "opentelemetry": "matador.observe",
    "pika": "matador.transports.rabbitmq",
    "pyspark": "matador.spark",
    "pytest": "matador.testing",
    "redis": (
        "matador.transports.redis",
        "matador.transports.bullmq",
        "matador.transports.redis_client",
    ),
    "starlette": "matador.dashboard",
    "typer": "matador.cli",
    "uvicorn": "matador.dashboard",
}

# What reads the clock or makes randomness in modules that are otherwise plain values.
IMPURE = {
    "date.today",
    "datetime.now",
    "datetime.today",
    "datetime.utcnow",
    "os.urandom",
    "uuid.uuid1",
    "uuid.uuid4",
    "uuid.uuid7",
}


def test_imports_keep_the_contracts_of_pyproject() -> None:
    command = [Path(sys.executable).with_name("lint-imports"), "--no-cache"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "kept, 0 broken" in run.stdout, run.stdout


@pytest.fixture(scope="module")
def imports() -> grimp.ImportGraph:
    return grimp.build_graph("matador", include_external_packages=True, cache_dir=None)


@pytest.mark.parametrize(("library", "home"), HOMES.items())
def test_a_client_library_is_imported_in_one_place(
    imports: grimp.ImportGraph, library: str, home: str | tuple[str, ...]
) -> None:
    homes = (home,) if isinstance(home, str) else home
    importers: set[str] = set()
    if library in imports.modules:
        importers = imports.find_modules_that_directly_import(library)
    allowed = tuple(f"{one}." for one in homes)
    strangers = {name for name in importers if not f"{name}.".startswith(allowed)}
    assert not strangers, f"only {' and '.join(homes)} may import {library}"


def pure_files() -> list[Path]:
    return [file for layer in PURE for file in sorted((SOURCE / layer).rglob("*.py"))]


@pytest.mark.parametrize("file", pure_files(), ids=lambda file: str(file.relative_to(SOURCE)))
def test_pure_layers_are_handed_time_and_randomness(file: Path) -> None:
    assert list(impure_mentions(file.read_text(encoding="utf-8"))) == []


def test_the_check_for_clocks_sees_them() -> None:
    source = """
from uuid import UUID, uuid4
stamp = datetime.datetime.now(UTC)
made = field(default_factory=uuid.uuid4)
"""
    assert list(impure_mentions(source)) == ["2: uuid.uuid4", "3: datetime.now", "4: uuid.uuid4"]


def impure_mentions(source: str) -> Iterator[str]:
    """Mentions, not only calls: a clock handed on as a default is a clock too."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute):
            names = [".".join(ast.unparse(node).split(".")[-2:])]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        yield from (f"{node.lineno}: {name}" for name in names if name in IMPURE)
