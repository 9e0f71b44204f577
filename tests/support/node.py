"""BullMQ on Node: the package, installed once into a git-ignored folder, and a process to talk to.

Without Node its tests skip and say so; in CI (``CI=true``) they fail.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import shutil
import subprocess
from collections import defaultdict, deque
from pathlib import Path
from typing import Any

import pytest

BULLMQ = "6.7.0"
BULLMQ_5 = "5.81.5"  # the last of those that keep the jobs of a paused queue in a list of their own
IOREDIS = "5.11.1"  # its client, which 6 does not bring along
FLEETS = os.environ.get("MATADOR_BULLMQ_NODE", f"{BULLMQ_5} {BULLMQ}").split()
"""The versions whose fleets the tests join."""
FOLDER = Path(__file__).parents[2] / ".brokers" / "node"
PROGRAM = Path(__file__).with_name("bullmq_node.cjs")


def bullmq_modules(version: str = BULLMQ) -> Path:
    """The folder with Node's ``bullmq``; installs it if it is not there."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        _absent("there is no node and npm: install Debian's packages nodejs and npm")
    folder = FOLDER / version
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several test processes may start at once
        if not (_is_there(folder, "bullmq", version) and _is_there(folder, "ioredis", IOREDIS)):
            _install(folder, version)
    return folder / "node_modules"


def _is_there(folder: Path, name: str, version: str) -> bool:
    package = folder / "node_modules" / name / "package.json"
    return package.exists() and json.loads(package.read_text())["version"] == version


def _install(folder: Path, version: str) -> None:
    packages = [f"bullmq@{version}", f"ioredis@{IOREDIS}"]
    options = ["--no-audit", "--no-fund", "--no-save", "--ignore-scripts"]
    command = ["npm", "install", "--prefix", str(folder), *options, *packages]
    run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    if run.returncode != 0:
        _absent(f"npm could not install bullmq {version}: {run.stderr[-500:]}")


def _absent(reason: str) -> None:
    if os.environ.get("CI", "").lower() in ("1", "true"):
        pytest.fail(reason)
    pytest.skip(reason)


class Node:
    """A Node process with BullMQ's ``Queue`` and ``Worker``, told what to do line by line."""

    def __init__(self, port: int, prefix: str, version: str = BULLMQ) -> None:
        self._version = version
        self._arguments = [str(PROGRAM), str(port), prefix]
        self._process: asyncio.subprocess.Process | None = None
        self._said: defaultdict[str, deque[Any]] = defaultdict(deque)

    async def __aenter__(self) -> Node:
        modules = await asyncio.to_thread(bullmq_modules, self._version)
        self._process = await asyncio.create_subprocess_exec(
            "node",
            *self._arguments,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, "NODE_PATH": str(modules)},
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            async with asyncio.timeout(10):
                await self._process.communicate()
        except TimeoutError:
            # Its worker may wait for its server, or for the next tick of a schedule, for ever. What
            # the test wanted to see, it has seen.
            self._process.kill()
            await self._process.wait()

    async def kill(self) -> None:
        """SIGKILL: no goodbye. Nothing can be asked any more."""
        assert self._process is not None
        self._process.kill()
        await self._process.wait()

    async def ask(self, do: str, queue: str, **more: Any) -> Any:
        """The answer to one command."""
        assert self._process is not None
        assert self._process.stdin is not None
        line = json.dumps({"do": do, "queue": queue, **more})
        self._process.stdin.write(line.encode() + b"\n")
        return await self.next("answer")

    async def next(self, kind: str) -> Any:
        """The next of this kind: ``answer``, or ``job`` for one that was processed."""
        assert self._process is not None
        assert self._process.stdout is not None
        async with asyncio.timeout(120):
            while not self._said[kind]:
                found = json.loads(await self._process.stdout.readline())
                assert found["kind"] != "error", found
                self._said[found["kind"]].append(found["value"])
        return self._said[kind].popleft()
