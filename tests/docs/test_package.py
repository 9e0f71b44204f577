"""What the package says about itself is true: every extra has code, every broker is named."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
SOURCE = "\n".join(path.read_text() for path in (ROOT / "src" / "matador").rglob("*.py"))


@pytest.mark.parametrize("extra", sorted(EXTRAS.keys() - {"all", "dev"}))
def test_an_extra_has_code_that_asks_for_it(extra: str) -> None:
    assert f'"{extra}")' in SOURCE, f"nothing needs {extra}"
    assert f"`{extra}`" in (ROOT / "README.md").read_text()


def test_the_extra_all_has_all_of_them() -> None:
    (everything,) = EXTRAS["all"]
    listed = everything.partition("[")[2].removesuffix("]").split(",")
    assert set(listed) == EXTRAS.keys() - {"all", "dev"}


@pytest.mark.parametrize(
    "broker", ["SQLite", "RabbitMQ", "Redis", "BullMQ", "SQS", "Kafka", "Spark"]
)
def test_the_first_pages_name_every_broker(broker: str) -> None:
    assert broker in PROJECT["description"]
    for page in ("README.md", "docs/index.md", "docs/getting-started.md"):
        assert broker in (ROOT / page).read_text(), page
