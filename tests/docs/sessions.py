"""Reads the code blocks of a page, and runs its shell sessions in a temporary folder."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
import tomllib
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

from docs.include import code
from tests.docs.brokers import Brokers

ROOT = Path(__file__).parents[2]

_FENCE = re.compile(
    r'(?:^<!-- include "([^"\n]+)" -->\n)?^```(\w*)([^\n]*)\n(.*?)^```$', re.MULTILINE | re.DOTALL
)
_INCLUDED = re.compile(r'--8<-- "([^"\n]+)"\n')
_ID = re.compile(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b|\b[0-9a-f]{8}\b")
# Today's times are shown without their date, others without their seconds.
_TIME = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d\S*|\b\d\d:\d\d:\d\d\S*")
_PATIENCE = 20.0


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, the rest of its first line, its text, and where that is from.

    ``source``: ``examples/shop.py:app``; empty: the text is from nowhere else.
    """

    language: str
    info: str
    text: str
    source: str = ""


@dataclass(frozen=True)
class Command:
    """A command of a session, and the lines shown below it."""

    line: str
    expected: tuple[str, ...]


def blocks(page: Path) -> list[Block]:
    """All fenced blocks of a page."""
    found: list[Block] = []
    for source, language, info, text in _FENCE.findall(page.read_text()):
        include = _INCLUDED.fullmatch(text)
        if include is not None:  # by the site generator
            source, text = include[1], code(include[1])
        found.append(Block(language, info, text, source))
    return found


def programs(page: Path) -> dict[str, str]:
    """The complete programs of a page, by their file names: what a reader copies from it."""
    return {
        Path(block.source).name: block.text
        for block in blocks(page)
        if block.language == "python" and block.source.endswith(".py")
    }


def commands(page: Path) -> list[Command]:
    """The commands of all sessions of a page, in order."""
    found: list[Command] = []
    for block in blocks(page):
        if block.language != "console":
            continue
        line, expected = "", list[str]()
        for text in [*block.text.splitlines(), "$ "]:
            if not text.startswith("$ "):
                expected.append(text)
                continue
            if line:
                found.append(Command(line, tuple(expected)))
            line, expected = text[2:], []
    return found


def missing(expected: tuple[str, ...], printed: str, *, ordered: bool = True) -> list[str]:
    """The lines that were not printed. Ids and times may differ; … is anything.

    Args:
        expected: the lines.
        printed: what was printed.
        ordered: False accepts them in another order: subscribers run side by side.
    """
    left = [_plain(line) for line in printed.splitlines()]
    lost: list[str] = []
    for line in filter(str.strip, expected):
        pattern = re.compile(".*".join(map(re.escape, _plain(line).split("…"))))
        for position, candidate in enumerate(left):
            if pattern.fullmatch(candidate) or pattern.fullmatch(_logged(candidate)):
                del left[0 if ordered else position : position + 1]
                break
        else:
            lost.append(line)
    return lost


def _plain(line: str) -> str:
    return " ".join(_TIME.sub("TIME", _ID.sub("ID", line)).split())


def _logged(line: str) -> str:
    """The message of a log line."""
    return re.sub(r"^TIME [A-Z]+ [\w.]+: ", "", line)


def _consumed(printed: str) -> set[str]:
    """The queues in the table that a worker begins with."""
    table = printed.partition("\n")[2].splitlines()
    rows = takewhile(lambda line: not _TIME.search(line), table)
    return {line.split()[-1] for line in rows if line.strip()}


_ANY_PORT = re.compile(r"(127\.0\.0\.1):\d+")


class Session:
    """Runs commands. A worker runs in the background until the next worker, or the end."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._brokers = Brokers(folder)
        self._worker: subprocess.Popen[bytes] | None = None
        self._shown: tuple[str, ...] = ()
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self._environment = {**os.environ, "PATH": path, "PYTHONUNBUFFERED": "1"}
        for example in (ROOT / "examples").glob("*.*"):
            (folder / example.name).write_text(example.read_text())

    def play(self, command: Command) -> None:
        """Run a command and compare its output, again and again until it matches or time is up."""
        words = shlex.split(command.line)
        if words[:2] == ["pip", "install"]:
            self._check_install(words[2:])
        elif words[0] == "cd":  # the examples are in the folder already
            assert (ROOT / words[1]).is_dir()
        elif words[0] == "source" or words[:3] == ["python3", "-m", "venv"]:
            assert words[-1] in (".venv", ".venv/bin/activate")  # the tests have theirs
        elif words[0] == "export":  # the address of a broker: use that of a real one
            name, _, shown = words[1].partition("=")
            self._environment[name] = self._brokers.url(shown)
        elif words[0].startswith("./"):
            assert os.access(ROOT / words[0], os.X_OK), f"there is no {words[0]}"
        elif words[:2] == ["matador", "dashboard"] and "--history" in words:
            self._serve(words, command.expected)
        elif words[:2] == ["matador", "worker"]:
            self._start_worker(words, command.expected)
        else:
            until = time.monotonic() + (0 if words[:2] == ["matador", "send"] else _PATIENCE)
            while True:
                printed = self._run(words)
                lost = missing(command.expected, printed)
                if not lost:
                    return
                if time.monotonic() >= until:
                    raise AssertionError(f"$ {command.line}\nlacks {lost}; it says\n{printed}")
                time.sleep(0.1)

    def _run(self, words: list[str]) -> str:
        words = [self._first_dead_letter(words) if _ID.fullmatch(w) else w for w in words]
        words = self._brokers.command(words)
        done = subprocess.run(
            words,
            cwd=self._folder,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=300 if words[:2] in (["matador", "lake"], ["matador", "spark"]) else 60,
            check=False,
        )
        assert done.returncode == (1 if done.stderr.startswith("error:") else 0), done.stderr
        return done.stdout + done.stderr

    def _serve(self, words: list[str], expected: tuple[str, ...]) -> None:
        """Start a dashboard, on any port that is free, and stop it once it said what is shown."""
        file = self._folder / "dashboard.log"
        with file.open("wb") as log:
            process = subprocess.Popen(
                [*words, "--port", "0"],
                cwd=self._folder,
                env=self._environment,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        until = time.monotonic() + _PATIENCE
        try:
            while lost := missing(
                expected, re.sub(r"(127\.0\.0\.1):\d+", r"\1:8080", file.read_text())
            ):
                if time.monotonic() > until:
                    raise AssertionError(f"the dashboard lacks {lost}:\n{file.read_text()}")
                time.sleep(0.05)
        finally:
            process.send_signal(signal.SIGINT)
            code = process.wait(30)
        assert code == 0, file.read_text()

    def _first_dead_letter(self, words: list[str]) -> str:
        app = next(word for word in words if word.endswith(".py"))
        printed = self._run(["matador", "dead-letters", "list", app])
        found = _ID.search(printed)
        assert found is not None, printed
        return found.group()

    @staticmethod
    def _check_install(packages: list[str]) -> None:
        for package in packages:
            name, _, extras = package.partition("[")
            assert name == "."  # the package is not published: it is installed from a clone
            project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
            known = project["optional-dependencies"].keys()
            assert set(filter(None, extras.removesuffix("]").split(","))) <= known

    def _start_worker(self, words: list[str], expected: tuple[str, ...]) -> None:
        self.stop_worker()
        with (self._folder / "worker.log").open("wb") as log:
            self._worker = subprocess.Popen(
                words,
                cwd=self._folder,
                env=self._environment,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self._shown = expected
        self._wait_for_log(("… consuming … with concurrency …",))
        for queue in _consumed((self._folder / "worker.log").read_text()):
            self._wait_for_log((f"… consuming {queue} with concurrency …",))

    def close(self) -> None:
        """Stop everything that was started."""
        try:
            self.stop_worker()
        finally:
            self._brokers.close()

    def stop_worker(self) -> None:
        """Wait until the worker has printed what the page shows, then send SIGINT."""
        if self._worker is None:
            return
        try:
            self._wait_for_log(self._shown)
        finally:
            self._worker.send_signal(signal.SIGINT)
            code = self._worker.wait(30)
            self._worker = None
        assert code == 0

    def _wait_for_log(self, expected: tuple[str, ...]) -> None:
        until = time.monotonic() + _PATIENCE
        while True:
            printed = (self._folder / "worker.log").read_text()
            lost = missing(expected, printed, ordered=False)
            if not lost:
                return
            if time.monotonic() > until:
                raise AssertionError(f"the worker lacks {lost}:\n{printed}")
            time.sleep(0.05)
