"""``History``: a hook that records what a worker does, for the dashboard."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path

from matador.charts.markup import titled
from matador.errors import HistoryError
from matador.model.options import Seconds, seconds
from matador.model.text import storable_text
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
from matador.runtime.error_headers import traceback_of
from matador.runtime.facts import Attempt, Received
from matador.runtime.hooks import Hooks
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
    A thread writes every ``interval`` seconds, so that workers do not wait for the disk. Several
    processes of one machine may share the file. If it cannot be written, the worker continues
    without it. Payloads are not recorded, but errors and tracebacks are.

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
        """Write the rest, if this was the last user of the history."""
        self._users -= 1
        thread = self._thread
        if self._users == 0 and thread is not None:
            self._stop.set()
            await asyncio.to_thread(thread.join)
            self._thread = None
            self._store.close()

    def get_queue_concurrency(self, queue: str) -> None:
        """Record that a queue is consumed. Does not set its concurrency."""
        self._queues.add(queue)

    def on_worker_enter(self, event: Received) -> int:
        key = id(event)
        name, queue = titled(event.name, event.way), event.queue
        self._running[key] = RunningMessage(event.id, name, event.receiver, queue, time.time())
        self._queues.add(queue)
        return key

    def on_worker_exit(self, event: Received, state: int, error: BaseException | None) -> None:
        self._running.pop(state, None)

    def on_attempted(self, batch: Sequence[Attempt]) -> None:
        now = int(time.time())
        bucket = now - now % BUCKET
        with self._lock:
            for attempt in batch:
                message, outcome = attempt.message, attempt.outcome
                queue, name = message.delivery.receipt.queue, message.name
                receiver, way = message.receiver, message.way
                self._queues.add(queue)
                if attempt.malformed and way == "event":
                    self._totals(bucket, OutcomeKey(queue, "", "", outcome)).add(0.0, 0.0)
                    continue
                name = titled(name, way)
                key = OutcomeKey(queue, name, receiver, outcome)
                wait_ms = attempt.wait * 1000
                self._totals(bucket, key).add(attempt.duration * 1000, wait_ms)
                if outcome != "success":
                    self._failures.append(self._failed(attempt, name, wait_ms))

    # -- internals --------------------------------------------------------------------------------

    def _failed(self, attempt: Attempt, name: str, wait_ms: float) -> FailedAttempt:
        message, error = attempt.message, attempt.error
        return FailedAttempt(
            storable_text(message.id),
            message.correlation_id and storable_text(message.correlation_id),
            storable_text(name),
            storable_text(message.receiver),
            attempt.queue,
            message.attempt,
            attempt.outcome,
            attempt.started_at,
            attempt.duration_ms,
            wait_ms,
            attempt.error_type,
            attempt.error_text or attempt.reason,
            None if error is None else _traceback(error),
            self._name,
        )

    def _totals(self, bucket: int, key: OutcomeKey) -> OutcomeTotals:
        found = self._counts.get((bucket, key))
        if found is None:
            if len(self._counts) >= _MOST_KEYS:
                key = OutcomeKey(key.queue, _OTHERS, _OTHERS, key.outcome)
            # Names are foreign data, and one that cannot be stored must not end the thread.
            names = storable_text(key.event_key), storable_text(key.subscriber)
            key = OutcomeKey(key.queue, *names, key.outcome)
            found = self._counts.setdefault((bucket, key), OutcomeTotals())
        return found

    def _keep_writing(self) -> None:
        while not self._stop.wait(self._interval):
            self._write(stopped=False)
        self._write(stopped=True)

    def _write(self, *, stopped: bool) -> None:
        with self._lock:
            counts, self._counts = self._counts, {}
        failures = [self._failures.popleft() for _ in range(len(self._failures))]
        running = list(self._running.values())  # one step, so that other threads cannot interfere
        now = time.time()
        state = WorkerState(
            self._name,
            socket.gethostname(),
            os.getpid(),
            self._started_at,
            now,
            now if stopped else None,
            tuple(map(_storable, sorted(running, key=lambda one: one.since)[:_MOST_SHOWN])),
            len(running),
            tuple(sorted(self._queues)),
        )
        works = bool(self._queues)  # a process that only sends is not a worker
        try:
            self._store.record("worker", state if works else None, self._name, counts, failures)
            self._complained = False
        except HistoryError as error:  # counts are lost, messages are not
            if not self._complained:
                log.warning("%s; the worker continues without it", error)
            self._complained = True


def _storable(one: RunningMessage) -> RunningMessage:
    names = storable_text(one.event_key), storable_text(one.subscriber)
    return RunningMessage(storable_text(one.id), *names, one.queue, one.since)


def _traceback(error: BaseException) -> str:
    return storable_text(traceback_of(error)[-_LONGEST_TRACEBACK:], _LONGEST_TRACEBACK)
