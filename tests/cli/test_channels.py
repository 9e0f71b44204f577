"""``matador channels check``: the settings of a queue service."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cli.conftest import Cli

FILE = """
[queue]
type = "sqlite"
url = "sqlite:///orders.db"
prefetch = 3
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "matador.toml"
    path.write_text(FILE)
    return path


def test_it_shows_the_settings_that_count(
    cli: Cli, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MATADOR_RETRY__MAX_ATTEMPTS", "7")
    result = cli("channels", "check", str(file), "--json")
    assert result.code == 0, result.err
    assert result.json["queue"]["prefetch"] == 3
    assert result.json["retry"]["max_attempts"] == 7
    result = cli("channels", "check", str(file))
    assert "queue.prefetch" in result.out
    assert "the settings are valid" in result.err


def test_a_password_is_not_shown(cli: Cli, file: Path) -> None:
    file.write_text('[queue]\ntype = "rabbitmq"\nurl = "amqp://ada:s3cret@localhost"')
    for options in ((), ("--json",)):
        result = cli("channels", "check", str(file), *options)
        assert result.code == 0
        assert "s3cret" not in result.out + result.err


def test_a_mistake_is_one_line(cli: Cli, file: Path) -> None:
    file.write_text('[queue]\ntype = "rabit"\nurl = "x"')
    result = cli("channels", "check", str(file))
    assert result.code == 1
    assert "queue.type must be one of memory, sqlite" in result.err
    assert len(result.err.splitlines()) == 1


def test_redis_without_a_mode_is_warned_about(cli: Cli, file: Path) -> None:
    file.write_text('[queue]\ntype = "redis"\nurl = "redis://localhost"')
    result = cli("channels", "check", str(file))
    assert result.code == 0
    assert "warning: Redis without a mode uses pubsub" in result.err


def test_it_connects_if_asked(cli: Cli, file: Path, tmp_path: Path) -> None:
    database = tmp_path / "orders.db"
    file.write_text(f'[queue]\ntype = "sqlite"\nurl = "sqlite:///{database}"')
    assert cli("channels", "check", str(file)).code == 0
    assert not database.exists(), "nothing is made without --connect"
    result = cli("channels", "check", str(file), "--connect")
    assert result.code == 0, result.err
    assert "the broker answers" in result.err
    file.write_text('[queue]\ntype = "redis"\nmode = "stream"\nurl = "redis://127.0.0.1:1"')
    result = cli("channels", "check", str(file), "--connect")
    assert result.code == 1
    assert "connect failed" in result.err
