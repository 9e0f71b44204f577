"""A program that ends without a shutdown ends all the same, and acknowledges nothing unfinished."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.events.ending_program import OrderPlaced

from matador import Matador, Schema, SubscriberStub, Topology
from matador.transports.sqlite import SqliteTransport

PROGRAM = Path(__file__).with_name("ending_program.py")


async def unfinished(file: Path) -> int:
    stub = SubscriberStub("handle", description="Runs in the program.")
    topology = Topology("shop", queues=["events"])
    transport = SqliteTransport(file)
    async with Matador(transport, schema=Schema({OrderPlaced: [stub]}), topology=topology):
        return (await transport.depth("shop.events")).total


def end(file: Path, how: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(PROGRAM), f"sqlite:///{file}", how],
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(
    ("how", "code"),
    [
        ("raises", 1),
        ("raises-with-a-thread", 1),
        ("exits", 3),
        ("exits-in-a-thread", 3),
        ("hasty", 0),
        ("hasty-with-a-thread", 0),
        ("clings", 1),
        ("loop-closed", 0),
    ],
)
async def test_the_process_ends_and_the_message_is_still_there(
    tmp_path: Path, how: str, code: int
) -> None:
    file = tmp_path / "shop.db"
    ended = end(file, how)
    assert "running" in ended.stdout, ended.stderr
    assert ended.returncode == code, ended.stderr
    assert await unfinished(file) == 1
    if how == "raises":
        assert ended.stderr.strip().endswith("RuntimeError: main has failed")
        assert "never retrieved" not in ended.stderr
        assert "was destroyed but it is pending" not in ended.stderr
