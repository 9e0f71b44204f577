"""Runs several worker processes: restarts them, forwards signals and prints their output.

A child is the same command with an internal option. It stops when its stdin is closed, so that none
outlives a killed supervisor.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import BinaryIO

from matador.cli.output import INTERRUPTED, TERMINATED, results
from matador.cli.terminal import no_errors, output_errors
from matador.transports.kit.backoff import Backoff

log = logging.getLogger("matador.supervisor")

_FIRST_PAUSE = 0.25
_LONGEST_PAUSE = 30.0
_HEALTHY_AFTER = 5.0
_SETTLED_AFTER = 60.0
_GIVE_UP_AFTER = 5
_ENDED_BY_SIGNAL = (0, -signal.SIGTERM, -signal.SIGINT, TERMINATED, INTERRUPTED)
_LONGEST_LINE = 1 << 16
# Signals of crashes; any other was sent by another process.
_OWN_SIGNALS = {signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL}


def supervise(
    command: Sequence[str], processes: int, *, prefixed: bool, prefixed_logs: bool = True
) -> bool:
    """Run a command in several processes until a signal; True if all exited cleanly.

    Each gets ``--process N``. With ``prefixed``, lines on stdout start with that number, and with
    ``prefixed_logs`` those on stderr.
    """
    return asyncio.run(_Supervisor(command, prefixed, prefixed_logs).run(processes))


def stop_with_supervisor(on_line: Callable[[str], None] = lambda line: None) -> None:
    """In a child: shut down cleanly when the supervisor ends.

    A thread passes each line that the supervisor writes to ``on_line``.
    """

    def watch() -> None:
        rest = b""
        while data := os.read(sys.stdin.fileno(), 4096):
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                on_line(line.decode("utf-8", "replace"))
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="matador-supervisor-watch", daemon=True).start()


class Restarts:
    """Decides when to restart a process that died: after growing pauses, and not endlessly."""

    def __init__(self) -> None:
        self._backoff = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE)
        self._bad_starts = 0

    def pause(self, lived: float, code: int) -> float | None:
        """Seconds to wait before a restart, given its lifetime and exit code; None: give up."""
        if lived >= _HEALTHY_AFTER:
            self._bad_starts = 0
        elif code >= 0 or -code in _OWN_SIGNALS:
            self._bad_starts += 1
        if self._bad_starts >= _GIVE_UP_AFTER:
            return None
        if lived >= _SETTLED_AFTER:
            self._backoff.reset()
        return self._backoff.next()


class _Supervisor:
    def __init__(self, command: Sequence[str], prefixed: bool, prefixed_logs: bool) -> None:
        self._command = command
        self._prefixed = prefixed
        self._prefixed_logs = prefixed_logs
        self._running: dict[int, asyncio.subprocess.Process] = {}
        self._stopping = asyncio.Event()
        self._signals = 0
        self._failed = False

    async def run(self, processes: int) -> bool:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled, number)
        await asyncio.gather(*(self._keep_running(n + 1) for n in range(processes)))
        return not self._failed

    def _signalled(self, number: signal.Signals) -> None:
        self._signals += 1
        self._stopping.set()
        what = ("shutting down", "shutting down immediately", "killing")[min(self._signals, 3) - 1]
        log.info("%s: %s %d processes", number.name, what, len(self._running))
        self._tell(signal.SIGTERM if self._signals < 3 else signal.SIGKILL)

    def _tell(self, number: signal.Signals) -> None:
        for process in self._running.values():
            if process.returncode is None:
                process.send_signal(number)

    async def _keep_running(self, number: int) -> None:
        restarts = Restarts()
        while not self._stopping.is_set():
            started = time.monotonic()
            code = await self._run_once(number)
            if self._stopping.is_set():
                # Ended by our own signal, which came before the worker's handler was installed.
                self._failed = self._failed or code not in _ENDED_BY_SIGNAL
                return
            pause = restarts.pause(time.monotonic() - started, code)
            if pause is None:
                log.error("process %d died %d times at startup; giving up", number, _GIVE_UP_AFTER)
                self._failed = True
                self._stopping.set()
                self._tell(signal.SIGTERM)
                return
            log.warning(
                "process %d %s; restarting it in %.2f s", number, _how_it_ended(code), pause
            )
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._stopping.wait()

    async def _run_once(self, number: int) -> int:
        # Its own session: Ctrl-C reaches only the supervisor, which forwards it once.
        try:
            process = await asyncio.create_subprocess_exec(
                *self._command,
                "--process",
                str(number),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:  # too many processes, no memory: like one that dies at startup
            log.error("process %d could not be started: %s", number, error)
            return 1
        self._running[number] = process
        log.info("process %d is running, pid %d", number, process.pid)
        if self._stopping.is_set():  # a signal came while it was being started
            process.send_signal(signal.SIGTERM)
        prefix = f"[{number}] ".encode()
        logs_prefix = prefix if self._prefixed_logs else b""
        await asyncio.gather(
            _pass_on(
                process.stdout, results().buffer, prefix if self._prefixed else b"", output_errors
            ),
            _pass_on(process.stderr, sys.stderr.buffer, logs_prefix, no_errors),
        )
        code = await process.wait()
        del self._running[number]
        return code


async def _pass_on(
    source: asyncio.StreamReader | None,
    target: BinaryIO,
    prefix: bytes,
    guard: Callable[[], AbstractContextManager[None]],
) -> None:
    """Copy whole lines, so that those of several processes do not mix."""
    if source is None:
        return
    rest = b""
    while data := await source.read(_LONGEST_LINE):
        *lines, rest = (rest + data).split(b"\n")
        if len(rest) > _LONGEST_LINE:
            lines.append(rest)
            rest = b""
        if lines:
            with guard():
                target.write(b"".join(prefix + line + b"\n" for line in lines))
                target.flush()
    if rest:
        with guard():
            target.write(prefix + rest + b"\n")
            target.flush()


def _how_it_ended(code: int) -> str:
    if code >= 0:
        return f"exited with code {code}"
    known = {one.value: one.name for one in signal.Signals}
    return f"was killed by {known.get(-code, f'signal {-code}')}"
