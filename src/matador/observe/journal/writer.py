"""The thread that writes the journal, so that the application does not wait for the disk."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path

from matador.observe.journal.records import DroppedRecord, encode_record
from matador.observe.journal.segments import Segment, make_folder, recover, writer_name
from matador.storage.files import groups

log = logging.getLogger("matador.journal")

_SAY_EVERY = 30.0  # seconds between log lines about lost records
_PATIENCE = 10.0  # seconds without progress, after which lines are dropped
_RETRY = 1.0  # seconds between attempts to record how many lines were dropped
_PIECE = 1024 * 1024  # bytes written at a time


class JournalWriter:
    """Appends lines to segments, and rotates the segments by size and age.

    ``put`` may be called from any thread and never blocks; callers check ``is_full`` first and
    wait. Lines are written as soon as the thread runs, so that a killed process loses only the
    latest ones. If the disk is full or does not respond for seconds, lines are dropped, and their
    number is recorded once writing succeeds again. The same applies to lines in a segment that is
    deleted while it is open.
    """

    def __init__(
        self, folder: Path, *, rotate_size: int, rotate_age: float, max_pending: int
    ) -> None:
        self._folder = folder
        self._rotate_size = rotate_size
        self._rotate_age = rotate_age
        self._max_pending = max_pending
        self._wake = threading.Condition()
        self._pending: list[bytes] = []
        self._pending_size = 0  # with the lines that are being written
        self._progress = 0.0  # when lines were last written, or started to wait
        self._dropped = 0
        self._reason = ""
        self._stopping = False
        self._flushing: list[Callable[[], None]] = []
        self._segment: Segment | None = None
        self._number = 0
        self._said = 0.0
        self._thread: threading.Thread | None = None
        self.name = writer_name()
        self.dropped = 0

    @property
    def running(self) -> bool:
        """Whether it was started and not stopped."""
        return self._thread is not None

    @property
    def is_full(self) -> bool:
        """Whether callers must wait. False once the disk has not responded for seconds.

        Lines that are put nevertheless, or after that, are dropped.
        """
        return (
            self._pending_size >= self._max_pending
            and self.running
            and time.monotonic() - self._progress < _PATIENCE
        )

    def start(self) -> None:
        """Create the folder, recover abandoned segments, and start the thread.

        Raises:
            OSError: the folder cannot be created.
        """
        make_folder(self._folder)
        recover(self._folder)
        self.name = writer_name()  # set here, because the process may have forked
        self._number = 0
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="matador-journal", daemon=True)
        self._thread.start()

    def put(self, lines: bytes, count: int) -> None:
        """Write whole lines with ``count`` records."""
        with self._wake:
            if self._pending_size >= self._max_pending:
                self._drop(count, "the disk is too slow")
                return
            if not self._pending_size:
                self._progress = time.monotonic()
            self._pending.append(lines)
            self._pending_size += len(lines)
            self._wake.notify()

    def flush(self) -> None:
        """Wait until all lines are in a finished segment, durable and visible."""
        done = threading.Event()
        with self._wake:
            if self._thread is None:
                return
            self._flushing.append(done.set)
            self._wake.notify()
        done.wait()

    def stop(self) -> None:
        """Write the remaining lines, finish the segment and end the thread."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        with self._wake:
            self._stopping = True
            self._wake.notify()
        thread.join()
        if self._dropped:
            log.error("the journal ended with lost records (%d): %s", self._dropped, self._reason)

    # -- the thread -------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            with self._wake:
                if not (self._pending or self._stopping or self._flushing):
                    self._wake.wait(self._patience())
                lines, self._pending = self._pending, []
                stopping, flushing = self._stopping, self._flushing
                self._flushing = []
            for piece in groups(lines, len, _PIECE):
                self._write(b"".join(piece))
                with self._wake:
                    self._pending_size -= sum(map(len, piece))
                    self._progress = time.monotonic()
                if self._is_due():
                    self._rotate()
            if stopping or flushing or self._is_due():
                self._rotate()
            if self._dropped:  # with nothing after them
                self._write(b"")
                if stopping or flushing:
                    self._rotate()
            for done in flushing:
                done()
            if stopping:
                return

    def _patience(self) -> float | None:
        if self._dropped:
            return _RETRY
        if self._segment is None:
            return None
        return max(0.01, self._rotate_age - self._segment.age)

    def _is_due(self) -> bool:
        segment = self._segment
        return segment is not None and (
            segment.size >= self._rotate_size or segment.age >= self._rotate_age
        )

    def _write(self, lines: bytes) -> None:
        try:
            if self._segment is not None and self._segment.is_deleted:
                self._segment.close()
                self._lose(self._segment)
            if self._segment is None:
                make_folder(self._folder)  # it may have been deleted
                self._number += 1
                self._segment = Segment(self._folder, self.name, self._number)
            dropped = self._dropped
            self._segment.append(self._dropped_record(dropped) + lines)
        except Exception as error:  # noqa: BLE001 - the thread must continue
            if lines:
                with self._wake:
                    self._drop(lines.count(b"\n"), str(error) or type(error).__name__)
            return
        with self._wake:
            self._dropped -= dropped  # others may have been dropped meanwhile

    def _dropped_record(self, count: int) -> bytes:
        if not count:
            return b""
        record = DroppedRecord(count, self._reason, time.time_ns() // 1000, self.name)
        return encode_record(record) + b"\n"

    def _rotate(self) -> None:
        segment, self._segment = self._segment, None
        if segment is None:
            return
        try:
            segment.finish()
        except FileNotFoundError:
            self._lose(segment)
        except OSError:
            log.exception("could not finish a segment; the next start recovers it")

    def _lose(self, segment: Segment) -> None:
        self._segment = None
        with self._wake:
            self._drop(segment.lines, f"a file in {self._folder} was deleted")

    def _drop(self, count: int, reason: str) -> None:
        self._dropped += count
        self.dropped += count
        self._reason = reason
        now = time.monotonic()
        if now - self._said >= _SAY_EVERY or self._said == 0.0:
            self._said = now
            log.error("the journal is losing records (%d so far): %s", self.dropped, reason)
