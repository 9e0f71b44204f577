"""``--reload``: runs a worker in a process of its own, and starts it anew when its source changes.

Files are found by looking at their times of change, twice a second. That needs no library, and it
also works where the system does not report changes: on network drives, and in containers.

The worker is stopped gracefully. It is not restarted without a change: one that fails at startup
waits until a file has changed. A file that cannot be parsed stops nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from matador.cli.commands import a_path, flag, option
from matador.cli.output import FAILED, TERMINATED, UsageError, err, note, warn
from matador.cli.supervisor import stop_with_supervisor
from matador.loading import is_file, split_reference

log = logging.getLogger("matador.reload")

Files: TypeAlias = Mapping[Path, tuple[int, int]]
"""Files with their times of change and sizes."""

_LOOK_EVERY = 0.5
_SUFFIXES = (".py", ".toml")
_MOST_FILES = 20_000
_WARNING = "warning: "
_SKIPPED = frozenset(("__pycache__", "node_modules", "site-packages", "build", "dist"))


class WorkersFailed(typer.Exit):
    """One of several worker processes failed, or the last one that was reloaded."""

    def __init__(self) -> None:
        super().__init__(FAILED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reloading:
    """The options of worker commands that are about restarts during development."""

    reload: Annotated[
        bool, flag("Restart when a source file changes. For development.", "--reload")
    ] = False
    reload_folders: Annotated[
        list[Path] | None,
        option(
            "FOLDER",
            "Watch this folder too. Default: the current one and the application's. "
            "Can be repeated.",
            "--reload-folder",
            parser=a_path,
        ),
    ] = None
    with_parent: Annotated[
        bool, typer.Option("--with-parent", hidden=True, help="End with the process that reloads.")
    ] = False

    def start(self) -> None:
        """In the process that is reloaded: end when the other one does.

        Raises:
            UsageError: folders are to be watched, but nothing is reloaded.
        """
        if self.reload_folders:
            raise UsageError("--reload-folder needs --reload")
        if self.with_parent:
            stop_with_supervisor(_log)

    def run(self, reference: str, command: Sequence[str]) -> None:
        """Run a command again and again, until a signal.

        Raises:
            UsageError: a folder to watch does not exist.
            WorkersFailed: the last one failed.
        """
        for one in self.reload_folders or ():
            if not one.is_dir():
                raise UsageError(f"--reload-folder: there is no folder {one}")
        where, _ = split_reference(reference)
        home = Path(where).parent if is_file(where) else Path()
        folders = dict.fromkeys(
            one.resolve() for one in (Path(), home, *(self.reload_folders or ())) if one.is_dir()
        )
        code = asyncio.run(_Reloader([*command, "--with-parent"], list(folders)).run())
        if code not in (0, TERMINATED, -signal.SIGTERM):
            raise WorkersFailed


class _Reloader:
    def __init__(self, command: Sequence[str], folders: Sequence[Path]) -> None:
        self._command, self._folders = command, folders
        self._process: asyncio.subprocess.Process | None = None
        self._stopping = asyncio.Event()
        self._signals = 0

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled)
        note(f"reloading when a file changes in {', '.join(map(str, self._folders))}")
        files = await self._look()
        if len(files) >= _MOST_FILES:
            warn(f"there are too many files: only {_MOST_FILES:,} are watched")
        while True:
            process = await self._start()
            ended = asyncio.create_task(process.wait())
            changed: list[Path] = []
            while not changed and not self._stopping.is_set() and not ended.done():
                files, changed = await self._next_change(files, ended)
            if not changed and not self._stopping.is_set():
                note(
                    f"the worker has ended with code {process.returncode}; it is started again "
                    f"after the next change",
                    style="yellow",
                )
                while not changed and not self._stopping.is_set():
                    files, changed = await self._next_change(files, None)
            elif not self._stopping.is_set():
                self._say(
                    f"{_named(changed)} changed: restarting, once running callbacks have finished"
                )
                _tell(process, signal.SIGTERM)
            code = await ended
            if self._stopping.is_set():
                return code

    async def _start(self) -> asyncio.subprocess.Process:
        # Its own session: Ctrl-C reaches only this process, which forwards it once.
        self._process = await asyncio.create_subprocess_exec(
            *self._command, stdin=asyncio.subprocess.PIPE, start_new_session=True
        )
        if self._stopping.is_set():  # a signal came while it was being started
            _tell(self._process, signal.SIGTERM)
        return self._process

    def _signalled(self) -> None:
        self._signals += 1
        self._stopping.set()
        if self._process is not None:
            _tell(self._process, signal.SIGTERM if self._signals < 3 else signal.SIGKILL)

    def _say(self, line: str) -> None:
        """Print a line; on a terminal the worker logs it, above the counts that it shows."""
        process = self._process
        pipe = None if process is None or process.returncode is not None else process.stdin
        if pipe is None or not err().is_terminal:
            _say(line)
        else:
            pipe.write(f"{' '.join(line.splitlines())}\n".encode("utf-8", "replace"))

    # -- files ------------------------------------------------------------------------------------

    async def _look(self) -> Files:
        return await asyncio.to_thread(lambda: dict(_files(self._folders)))

    async def _next_change(
        self, files: Files, ended: asyncio.Task[int] | None
    ) -> tuple[Files, list[Path]]:
        """Wait a moment; the files as they are then, and those that have changed, if all of these
        can be parsed. An editor that writes several files is waited for."""
        stopping = asyncio.ensure_future(self._stopping.wait())
        waiting = {stopping} if ended is None else {stopping, ended}
        await asyncio.wait(waiting, timeout=_LOOK_EVERY, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        now = await self._look()
        changed = _difference(files, now)
        while changed and not self._stopping.is_set():
            await asyncio.sleep(_LOOK_EVERY / 5)
            before, now = now, await self._look()
            if now == before:
                break
        changed = _difference(files, now)
        if problem := next(filter(None, map(_syntax_error, changed)), None):
            self._say(f"{_WARNING}{problem}; waiting for the next change")
            changed = []
        return now, changed


def _say(line: str) -> None:
    if line.startswith(_WARNING):
        warn(line.removeprefix(_WARNING))
    else:
        note(line)


def _log(line: str) -> None:
    if line.startswith(_WARNING):
        log.warning("%s", line.removeprefix(_WARNING))
    else:
        log.info("%s", line)


def _files(folders: Sequence[Path]) -> Iterator[tuple[Path, tuple[int, int]]]:
    """The source files in folders, without environments, caches and builds."""
    number = 0
    for folder in folders:
        for where, inner, names in os.walk(folder):
            here = Path(where)
            inner[:] = [
                one
                for one in inner
                if not one.startswith(".")
                and one not in _SKIPPED
                and not (here / one / "pyvenv.cfg").exists()
            ]
            for name in names:
                if name.endswith(_SUFFIXES):
                    path = here / name
                    with contextlib.suppress(OSError):  # it has just been removed
                        known = path.stat()
                        yield path, (known.st_mtime_ns, known.st_size)
                        number += 1
                if number >= _MOST_FILES:
                    return


def _difference(before: Files, now: Files) -> list[Path]:
    return sorted(path for path in {*before, *now} if before.get(path) != now.get(path))


def _syntax_error(path: Path) -> str | None:
    """Why a Python file cannot be parsed; None if it can, or is gone."""
    if path.suffix != ".py":
        return None
    try:
        compile(path.read_bytes(), str(path), "exec", dont_inherit=True)
    except OSError:
        return None
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = f":{error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        text = error.msg if isinstance(error, SyntaxError) else str(error)
        return f"{_named([path])}{line}: {text}"
    return None


def _named(paths: Sequence[Path]) -> str:
    here = Path.cwd()
    first = paths[0]
    name = str(first.relative_to(here)) if first.is_relative_to(here) else str(first)
    return name if len(paths) == 1 else f"{name} and {len(paths) - 1} more"


def _tell(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(number)
