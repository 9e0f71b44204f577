"""``script/brokers`` in several clones of the repository: each has its own ports and servers."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.support.ports import free_ports

SCRIPT = Path(__file__).parents[2] / "script"
FIRST = "36379"  # the first port in the definition

pytestmark = pytest.mark.skipif(not shutil.which("redis-server"), reason="there is no Redis")


class Clone:
    """A copy of the script, with a Redis of its own."""

    def __init__(self, root: Path, first_port: int) -> None:
        self.folder = root / ".brokers" / "redis"
        (root / "script" / "brokers.d").mkdir(parents=True)
        shutil.copy2(SCRIPT / "brokers", root / "script" / "brokers")
        definition = (SCRIPT / "brokers.d" / "redis").read_text()
        assert FIRST in definition
        (root / "script" / "brokers.d" / "redis").write_text(
            definition.replace(FIRST, str(first_port))
        )
        self._script = root / "script" / "brokers"
        # Without the cache of the user, where the ports of real clones are reserved.
        self._environment = {
            **{key: value for key, value in os.environ.items() if "REDIS" not in key},
            "XDG_CACHE_HOME": str(root.parent / "cache"),
        }

    def start(self, *arguments: str, **environment: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [self._script, *arguments],
            env={**self._environment, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments: str, **environment: str) -> tuple[int, str, str]:
        process = self.start(*arguments, **environment)
        out, err = process.communicate(timeout=100)
        return process.returncode, out, err

    def up(self) -> str:
        code, _, err = self.run("up", "redis")
        assert code == 0, err
        return self.url()

    def url(self) -> str:
        code, out, err = self.run("url", "redis")
        assert code == 0, err
        return out.strip()

    def port(self) -> str:
        return (self.folder / "port").read_text().strip()


@pytest.fixture
def clone(tmp_path: Path) -> Iterator[Callable[[], Clone]]:
    clones: list[Clone] = []
    first = free_ports(100)

    def make() -> Clone:
        clones.append(Clone(tmp_path / f"clone-{len(clones)}", first))
        return clones[-1]

    yield make
    for one in clones:
        if one.folder.exists():
            one.run("down", "redis")


@pytest.mark.parametrize("_", range(5))
def test_clones_that_start_at_once_have_servers_of_their_own(
    clone: Callable[[], Clone], _: int
) -> None:
    clones = [clone() for _ in range(3)]
    starting = [one.start("up", "redis") for one in clones]
    said = [process.communicate(timeout=100) for process in starting]
    assert [process.returncode for process in starting] == [0, 0, 0], said
    assert len({one.url() for one in clones}) == 3
    for one in clones:
        assert str(one.folder) in one.run("ctl", "redis", "CONFIG", "GET", "dir")[1]


def test_ports_stay_reserved_while_a_server_is_stopped(clone: Callable[[], Clone]) -> None:
    first, second, third = clone(), clone(), clone()
    url = first.up()
    assert first.run("down", "redis")[0] == 0
    assert second.up() != url
    assert first.up() == url
    assert first.run("down", "redis")[0] == 0
    shutil.rmtree(first.folder)
    assert third.up() == url, "the ports of a clone that was deleted are free"


def test_a_url_is_never_that_of_another_clone(clone: Callable[[], Clone]) -> None:
    first, second = clone(), clone()
    first.up()
    taken = {"MATADOR_REDIS_PORT": first.port()}
    code, _, err = second.run("up", "redis", **taken)
    assert code == 1
    assert f"another server has port {first.port()} of redis" in err
    assert second.run("url", "redis", **taken) == (
        1,
        "",
        "brokers: redis is not running: script/brokers up redis\n",
    )
    assert second.run("status", "redis", **taken)[0] == 1


def test_a_process_is_not_up_while_another_server_answers(clone: Callable[[], Clone]) -> None:
    first, second = clone(), clone()
    first.up()
    taken = {"MATADOR_REDIS_PORT": first.port()}
    starting = [sys.executable, "-c", "input()"]
    with subprocess.Popen(starting, stdin=subprocess.PIPE) as process:
        second.folder.mkdir(parents=True)
        (second.folder / "pid").write_text(f"{process.pid}\n")
        assert second.run("url", "redis", **taken)[:2] == (1, "")
        (second.folder / "pid").unlink()
        process.communicate(b"\n")
