"""``History``: a hook that records what a worker does, for the dashboard."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import threading
import time
import traceback
from collections import deque
from pathlib import Path
from typing import Any

from matador.charts.markup import titled
from matador.errors import HistoryError
from matador.events.hooks import (
    DecodeFailure,
    Hooks,
    Proceed,
    Processing,
    WorkerError,
    WorkerSuccess,
)
from matador.model.options import Seconds, seconds
from matador.model.text import error_text, storable_text
from matador.observe.history.records import (
    BUCKET,
    FailedAttempt,
    OutcomeKey,
    OutcomeTotals,
    RunningMessage,
    WorkerState,
)
from matador.observe.history.store import HistoryStore
from matador.observe.journal.segments import writer_name
from matador.runtime.recorder import AttemptedMessage, SentMessage
from matador.storage.paths import local_path

log = logging.getLogger("matador.history")

_MOST_KEYS = 1000
_MOST_WAITING = 10_000
_MOST_SHOWN = 50
_LONGEST_TRACEBACK = 8000
_OTHERS = "(others)"


class History(Hooks):
    """Records counts, failed attempts and what this worker is doing, in a SQLite file.

    ``matador dashboard`` reads the file; ``matador worker --history FILE`` adds this hook for you.
    A thread writes every ``interval`` seconds, so that nobody waits for the disk. Several processes
    of one machine may share the file. If it cannot be written, the worker goes on without it.
    Payloads are not recorded, but errors and tracebacks are.

    Args:
        file: the SQLite file.
        interval: seconds between two writes.

    Example:
        >>> from matador.observe import History
        >>> app = Matador("sqlite:///shop.db", schema=schema, hooks=[History("history.db")])
    """

    def __init__(self, file: str | Path, *, interval: Seconds = 2.0) -> None:
        self._store = HistoryStore(local_path(file, "History: file"))
        self._interval = seconds(interval, "History: interval", minimum=0.01)
        self._name = ""
        self._started_at = 0.0
        self._counts: dict[tuple[int, OutcomeKey], OutcomeTotals] = {}
        self._failures: deque[FailedAttempt] = deque(maxlen=_MOST_WAITING)
        self._running: dict[int, RunningMessage] = {}
        self._queues: set[str] = set()
        self._users = 0
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._complained = False

    def __repr__(self) -> str:
        return f"History({str(self._store.path)!r})"

    @property
    def file(self) -> Path:
        """The SQLite file."""
        return self._store.path

    # -- hooks ------------------------------------------------------------------------------------

    def on_start(self) -> None:
        """Start to write."""
        self._users += 1
        if self._thread is None:
            self._name, self._started_at = writer_name(), time.time()
            self._stop.clear()
            self._thread = threading.Thread(
                target=self._keep_writing, name="matador-history", daemon=True
            )
            self._thread.start()

    async def on_stop(self) -> None:
        """Write the rest, if nobody else uses the history."""
        self._users -= 1
        thread = self._thread
        if self._users == 0 and thread is not None:
            self._stop.set()
            await asyncio.to_thread(thread.join)
            self._thread = None
            self._store.close()

    def get_queue_concurrency(self, queue: str) -> None:
        """Takes note of a queue that is consumed, and decides nothing."""
        self._queues.add(queue)

    async def on_worker_wrap(self, event: Processing, proceed: Proceed) -> None:
        """A message is being handled until this returns."""
        docket = event.envelope.docket
        key = id(event)
        self._running[key] = RunningMessage(
            event.envelope.id, docket.event_key, docket.target_subscriber, event.queue, time.time()
        )
        try:
            await proceed()
        finally:
            self._running.pop(key, None)

    def on_worker_success(self, event: WorkerSuccess) -> None:
        """A message was handled."""
        docket = event.envelope.docket
        key = OutcomeKey(event.queue, docket.event_key, docket.target_subscriber, "success")
        self._count(key, event.duration_ms, _waited(event))

    def on_worker_error(self, event: WorkerError) -> None:
        """A message failed, or was refused."""
        docket, error = event.envelope.docket, event.error
        key = OutcomeKey(event.queue, docket.event_key, docket.target_subscriber, event.outcome)
        self._count(key, event.duration_ms, _waited(event))
        self._failures.append(
            FailedAttempt(
                event.envelope.id,
                docket.correlation_id,
                docket.event_key,
                docket.target_subscriber,
                event.queue,
                docket.attempts,
                event.outcome,
                event.started_at,
                event.duration_ms,
                _waited(event),
                type(error).__name__,
                error_text(error),
                _traceback(error),
                self._name,
            )
        )

    def on_decode_error(self, event: DecodeFailure) -> None:
        """A message could not be decoded."""
        self._count(OutcomeKey(event.queue, "", "", event.outcome), 0.0, 0.0)

    # -- jobs, calls and plain messages -----------------------------------------------------------

    def record_sent(self, message: SentMessage) -> None:
        """See ``Recorder``. Sent messages are not recorded."""

    def record_attempt(self, attempt: AttemptedMessage) -> None:
        """Record an attempt to handle a job, a call or a message. See ``Recorder``."""
        self._queues.add(attempt.queue)
        name = titled(attempt.name, attempt.way)
        key = OutcomeKey(attempt.queue, name, attempt.receiver, attempt.outcome)
        due = attempt.created_at if attempt.due_at is None else attempt.due_at
        waited = max(0.0, (attempt.started_at - due) * 1000)
        self._count(key, attempt.duration * 1000, waited)
        if attempt.outcome != "success":
            self._failures.append(
                FailedAttempt(
                    attempt.id,
                    attempt.correlation_id,
                    name,
                    attempt.receiver,
                    attempt.queue,
                    attempt.attempt,
                    attempt.outcome,
                    attempt.started_at,
                    attempt.duration * 1000,
                    waited,
                    attempt.error_type,
                    attempt.error or attempt.reason,
                    None,
                    self._name,
                )
            )

    # -- internals --------------------------------------------------------------------------------

    def _count(self, key: OutcomeKey, duration_ms: float, wait_ms: float) -> None:
        now = int(time.time())
        at = (now - now % BUCKET, key)
        with self._lock:
            found = self._counts.get(at)
            if found is None:
                if len(self._counts) >= _MOST_KEYS:
                    at = (at[0], OutcomeKey(key.queue, _OTHERS, _OTHERS, key.outcome))
                found = self._counts.setdefault(at, OutcomeTotals())
            found.add(duration_ms, wait_ms)

    def _keep_writing(self) -> None:
        while not self._stop.wait(self._interval):
            self._write(stopped=False)
        self._write(stopped=True)

    def _write(self, *, stopped: bool) -> None:
        with self._lock:
            counts, self._counts = self._counts, {}
        failures = [self._failures.popleft() for _ in range(len(self._failures))]
        running = list(self._running.values())  # one step: other threads do not get between
        now = time.time()
        state = WorkerState(
            self._name,
            socket.gethostname(),
            os.getpid(),
            self._started_at,
            now,
            now if stopped else None,
            tuple(sorted(running, key=lambda one: one.since)[:_MOST_SHOWN]),
            len(running),
            tuple(sorted(self._queues)),
        )
        works = bool(self._queues)  # a process that only sends is no worker
        try:
            self._store.record("worker", state if works else None, self._name, counts, failures)
            self._complained = False
        except HistoryError as error:  # what was counted meanwhile is lost; messages are not
            if not self._complained:
                log.warning("%s; the worker goes on without it", error)
            self._complained = True


def _waited(event: WorkerSuccess | WorkerError) -> float:
    docket = event.envelope.docket
    due = docket.created_at if docket.scheduled_for is None else docket.scheduled_for
    return max(0.0, (event.started_at - due.timestamp()) * 1000)


def _traceback(error: BaseException) -> str | None:
    try:
        lines: Any = traceback.format_exception(error)
        return storable_text("".join(lines)[-_LONGEST_TRACEBACK:], _LONGEST_TRACEBACK)
    except Exception:  # noqa: BLE001 - an error's __str__ may raise anything
        return None
