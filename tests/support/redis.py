"""Redis for tests: servers of their own, a plain client to look from outside, and tidying up."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import redis.asyncio
from tests.support.ports import free_ports


class OwnServer:
    """A Redis that a test may stop, kill and freeze. Every write is in its append-only file."""

    def __init__(self, folder: Path) -> None:
        program = shutil.which("redis-server")
        if program is None:
            reason = "there is no redis-server: script/brokers up redis installs it"
            if os.environ.get("CI", "").lower() in ("1", "true"):
                pytest.fail(reason)
            pytest.skip(reason)
        self._program = program
        self._folder = folder
        self.port = free_ports()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self, *more: str) -> None:
        options = (
            f"--port {self.port} --bind 127.0.0.1 --save  --appendonly yes --appendfsync always"
        )
        self.start_with(*options.split(" "), *more)

    def start_with(self, *options: str) -> None:
        with (self._folder / "start.log").open("ab") as log:
            self._process = subprocess.Popen(
                [self._program, *options], cwd=self._folder, stdout=log, stderr=log
            )
        until = time.monotonic() + 60
        while not self.answers():
            assert time.monotonic() < until, (self._folder / "start.log").read_text()
            time.sleep(0.01)

    def answers(self) -> bool:
        with (
            contextlib.suppress(OSError),
            socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection,
        ):
            connection.sendall(b"PING\r\n")
            return connection.recv(5) == b"+PONG"
        return False

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(60)
            self._process = None

    def restart(self, how: signal.Signals = signal.SIGTERM) -> None:
        self.stop(how)
        self.start()

    def freeze(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)


async def is_reading(subscription: Any) -> bool:
    """Does a subscription wait on the server for something new?"""
    return subscription._blocked is not None


@asynccontextmanager
async def plain_client(url: str) -> AsyncGenerator[Any]:
    """A client of redis-py: what anybody else would see of the server."""
    client: Any = redis.asyncio.Redis.from_url(url, protocol=2)  # pyright: ignore[reportUnknownMemberType]
    try:
        yield client
    finally:
        await client.aclose()


async def forget_keys(url: str, prefix: str) -> int:
    """Delete all keys that begin with a prefix; says how many there were."""
    number = 0
    async with plain_client(url) as client:
        async for key in client.scan_iter(match=f"{prefix}:*", count=1000):
            number += await client.unlink(key)
    return number
