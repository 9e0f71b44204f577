"""The thread that writes the journal, so that the application does not wait for the disk."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path

from matador.observe.journal.records import DroppedRecord, encode_record
from matador.observe.journal.segments import Segment, make_folder, recover, writer_name

log = logging.getLogger("matador.journal")

_SAY_EVERY = 30.0  # seconds between log lines about lost records


class JournalWriter:
    """Appends lines to segments, and rotates the segments by size and age.

    ``put`` may be called from any thread and never blocks. Lines are written as soon as the thread
    runs, so that a process that is killed loses only those of the last moment. If the disk is full
    or too slow, lines are dropped; their number is recorded as soon as writing succeeds again. So
    is the number of those in a segment that somebody deletes while it is open.
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
        self._pending_size = 0
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
        """It was started, and not stopped."""
        return self._thread is not None

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
            if self._pending_size + len(lines) > self._max_pending:
                self._drop(count, "the disk is too slow")
                return
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
                self._pending_size = 0
                stopping, flushing = self._stopping, self._flushing
                self._flushing = []
            if lines:
                self._write(b"".join(lines))
            segment = self._segment
            if segment is not None and (stopping or flushing or self._is_full(segment)):
                self._rotate(segment)
            for done in flushing:
                done()
            if stopping:
                return

    def _patience(self) -> float | None:
        if self._segment is None:
            return None
        return max(0.01, self._rotate_age - self._segment.age)

    def _is_full(self, segment: Segment) -> bool:
        return segment.size >= self._rotate_size or segment.age >= self._rotate_age

    def _write(self, lines: bytes) -> None:
        try:
            if self._segment is not None and self._segment.is_deleted:
                self._segment.close()
                self._lose(self._segment)
            if self._segment is None:
                make_folder(self._folder)  # somebody may have deleted it
                self._number += 1
                self._segment = Segment(self._folder, self.name, self._number)
            self._segment.append(self._dropped_record() + lines)
        except Exception as error:  # noqa: BLE001 - the thread must continue
            with self._wake:
                self._drop(lines.count(b"\n"), str(error) or type(error).__name__)
            return
        with self._wake:
            self._dropped = 0

    def _dropped_record(self) -> bytes:
        if not self._dropped:
            return b""
        record = DroppedRecord(self._dropped, self._reason, time.time_ns() // 1000, self.name)
        return encode_record(record) + b"\n"

    def _rotate(self, segment: Segment) -> None:
        self._segment = None
        try:
            segment.finish()
        except FileNotFoundError:
            self._lose(segment)
        except OSError:
            log.exception("could not finish a segment; the next start recovers it")

    def _lose(self, segment: Segment) -> None:
        self._segment = None
        with self._wake:
            self._drop(segment.lines, f"somebody has deleted a file in {self._folder}")

    def _drop(self, count: int, reason: str) -> None:
        self._dropped += count
        self.dropped += count
        self._reason = reason
        now = time.monotonic()
        if now - self._said >= _SAY_EVERY or self._said == 0.0:
            self._said = now
            log.error("the journal is losing records (%d so far): %s", self.dropped, reason)
