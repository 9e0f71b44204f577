"""Servers of a run's own, on ports and in a folder that nobody else uses: they may be killed.

One of each kind a process, started when it is first needed and ended with the process. What a run
that was killed itself has left behind is tidied up by the next.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import traceback
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

from chaos.processes import ROOT

_SCRIPT = ROOT / "script" / "brokers"
_FOLDER = ROOT / ".brokers" / "chaos"
_PATIENCE = 150.0
_PORTS = 8  # a server has several
_MANAGEMENT = 10_000  # so much further is the port of RabbitMQ's management plugin
_FIRST_PORT, _LAST_PORT = 15_000, 22_700  # with it, below those that systems give to clients
_STRIDE = 197

_ends: list[Callable[[], None]] = []


class Server:
    """A broker run by ``script/brokers``.

    Args:
        name: what the script calls it.
        environment: what it is told beyond its port and folder.
    """

    def __init__(self, name: str, environment: Mapping[str, str] | None = None) -> None:
        self.name = name
        self.port = _free_ports()
        own = _FOLDER / str(os.getpid()) / str(self.port)  # there may be two of a kind
        self.folder = own / name
        self._environment = {
            **os.environ,
            **(environment or {}),
            "MATADOR_BROKERS_FOLDER": str(own),
            f"MATADOR_{name.upper()}_PORT": str(self.port),
        }

    def start(self) -> None:
        """Start it. Returns when it answers."""
        self._run("up", self.name)

    def stop(self, *, kill: bool = False) -> None:
        """End it. Returns when it is gone."""
        self._run("kill" if kill else "down", self.name)

    def discard(self) -> None:
        """End it for good, and remove what it stored."""
        self.stop(kill=True)
        shutil.rmtree(self.folder, ignore_errors=True)
        with contextlib.suppress(OSError):  # another server of the run is still there
            self.folder.parent.rmdir()
            self.folder.parent.parent.rmdir()

    def _run(self, *arguments: str) -> None:
        done = subprocess.run(
            [str(_SCRIPT), *arguments],
            env=self._environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=_PATIENCE,
        )
        if done.returncode != 0:
            raise RuntimeError(f"script/brokers {' '.join(arguments)}: {done.stdout}{done.stderr}")


@cache
def own_server(name: str, environment: tuple[tuple[str, str], ...] = ()) -> Server:
    """This process's server of that name; it runs."""
    _tidy_up()
    server = Server(name, dict(environment))
    at_end(server.discard)
    server.start()
    return server


def at_end(end: Callable[[], None]) -> None:
    """Call it before the process ends, the last one first."""
    _ends.append(end)


@atexit.register
def end_all() -> None:
    """Do what is to be done at the end, now. For those whose process may be killed at its end."""
    while _ends:
        try:
            _ends.pop()()
        except Exception:  # noqa: BLE001 - the others must end, too
            traceback.print_exc()


def _free_ports() -> int:
    """The first of several ports in a row that nobody listens on.

    Processes with neighbouring numbers start far from each other: between the look and the start of
    a server there is time for another process to look.
    """
    starts = range(_FIRST_PORT, _LAST_PORT, _PORTS)
    first = os.getpid() * _STRIDE % len(starts)
    for start in (*starts[first:], *starts[:first]):
        ports = (*range(start, start + _PORTS), start + _MANAGEMENT)
        if all(map(_is_free, ports)):
            return start
    raise RuntimeError(f"no {_PORTS} ports in a row are free from {_FIRST_PORT} to {_LAST_PORT}")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


def _tidy_up() -> None:
    """End the servers of runs that are no more."""
    for folder in _FOLDER.glob("*"):
        if folder.name.isdecimal() and not Path(f"/proc/{folder.name}").exists():
            for noted in folder.glob("*/*/pid"):
                _end(int(noted.read_text("ascii")), folder)
            shutil.rmtree(folder, ignore_errors=True)


def _end(pid: int, folder: Path) -> None:
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
        if os.fsencode(folder) in command:  # and not somebody else under the same number
            os.kill(pid, signal.SIGKILL)
    except OSError:
        return
