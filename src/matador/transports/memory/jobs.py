"""The jobs of one queue in memory, by their ids, beside the messages that carry them."""

from __future__ import annotations

from itertools import islice

import msgspec

from matador.errors import (
    DuplicateJobError,
    JobNotFoundError,
    JobStateError,
    MatadorError,
    UniqueJobError,
)
from matador.model import job as names
from matador.model.job import JobCounts, JobRecord, JobSchedule, JobStatus
from matador.model.message import Message
from matador.transports.clock import Clock
from matador.transports.kit.jobs import as_new, keep_of, record_of, whole
from matador.transports.memory.entry import Entry, EntryState
from matador.transports.memory.flows import MemoryFlows
from matador.transports.memory.queue import MemoryQueue

_STATUS: dict[EntryState, JobStatus] = {
    "fresh": "waiting",
    "ready": "waiting",
    "blocked": "waiting",
    "delayed": "delayed",
    "held": "active",
    "done": "completed",
}


_INTERVAL = 60.0  # seconds between two scans of all completed jobs while further jobs complete


class _Note(msgspec.Struct):
    """The data about a job that its message does not contain."""

    processed_at: float | None = None
    progress: bytes | None = None


class _Completed(msgspec.Struct, gc=False):
    """A completed job. Its record is created on demand."""

    entry: Entry
    note: _Note
    finished_at: float
    result: bytes | None

    def is_past(self, now: float) -> bool:
        """Whether its retention has expired."""
        age = keep_of(self.entry.message.headers, "completed").age
        return age is not None and self.finished_at < now - age


class MemoryJobs:
    """Failed jobs are entries of the queue's dead letters, completed ones are stored here."""

    def __init__(self, queue: MemoryQueue, failed: MemoryQueue, clock: Clock) -> None:
        self._queue = queue
        self._failed = failed
        self._clock = clock
        self._entries: dict[str, Entry] = {}
        self._letters: dict[str, Entry] = {}
        self._completed: dict[str, _Completed] = {}
        self._notes: dict[str, _Note] = {}
        self._keys: dict[str, tuple[str, float | None]] = {}  # holder and expiry
        self.flows = MemoryFlows(queue, failed, self)
        self.schedules: dict[str, JobSchedule] = {}
        self._all_completed = 0
        self._all_failed = 0
        self._next_sweep = 0.0
        queue.jobs = failed.jobs = self

    # -- called by the queue ----------------------------------------------------------------------

    def entered(self, queue: MemoryQueue, entry: Entry) -> None:
        """A message was stored in the queue, or among its dead letters."""
        job_id = entry.message.id
        if queue is self._queue:
            self._entries[job_id] = entry
            self._notes.setdefault(job_id, _Note())
        else:
            self._all_failed += 1
            self._letters[job_id] = entry

    def started(self, entry: Entry) -> None:
        """A job was handed to a worker."""
        note = self._notes.get(entry.message.id)
        if note is not None:
            note.processed_at = self._clock.time()

    def left(self, queue: MemoryQueue, entry: Entry) -> None:
        """A message left the queue, or its dead letters."""
        index = self._entries if queue is self._queue else self._letters
        if index.get(entry.message.id) is entry:
            del index[entry.message.id]
            if entry.message.id not in self._entries and entry.message.id not in self._letters:
                self._notes.pop(entry.message.id, None)
                self.flows.left(entry.message, self._clock.monotonic())
        key, job_id = entry.message.headers.get(names.UNIQUE), entry.message.id
        if self._keys.get(str(key)) == (job_id, None) and job_id not in self._entries:
            del self._keys[str(key)]

    def complete(self, entry: Entry, result: bytes | None) -> None:
        """Keep a completed job, as its ``Keep`` says. Called before the entry leaves."""
        self._all_completed += 1
        self.flows.completed(entry.message, result, self._clock.monotonic())
        keep = keep_of(entry.message.headers, "completed")
        if keep.nothing:
            return
        now, completed = self._clock.time(), self._completed
        job_id = entry.message.id
        completed[job_id] = _Completed(entry, self._notes.get(job_id) or _Note(), now, result)
        if keep.count is not None:
            while len(completed) > keep.count:
                del completed[next(iter(completed))]
        if now >= self._next_sweep:
            self._sweep(now)

    def _sweep(self, now: float) -> None:
        """Delete completed jobs whose retention has expired, each by its own ``Keep``."""
        self._next_sweep = now + _INTERVAL
        for job_id, done in list(self._completed.items()):
            if done.is_past(now):
                del self._completed[job_id]

    def _kept(self, job_id: str) -> _Completed | None:
        done = self._completed.get(job_id)
        if done is not None and done.is_past(self._clock.time()):
            del self._completed[job_id]
            return None
        return done

    def _all_kept(self) -> dict[str, _Completed]:
        """The completed jobs whose retention has not expired."""
        self._sweep(self._clock.time())
        return self._completed

    def fail(self, letter: Message) -> bool:
        """Make room for another failed job; False if it must not be kept."""
        keep = keep_of(letter.headers, "failed")
        if keep.nothing:
            self._all_failed += 1
            return False
        old = list(self._letters.values())
        if keep.count is not None:
            for entry in old[: max(0, len(old) + 1 - keep.count)]:
                self._failed.remove(entry)
        if keep.age is not None:
            since = self._clock.monotonic() - keep.age
            for entry in old:
                if entry.state != "done" and entry.stored < since:
                    self._failed.remove(entry)
        return True

    def failed(self, job_id: str) -> Entry | None:
        """The failed job with that id."""
        return self._letters.get(job_id)

    # -- called by the store ----------------------------------------------------------------------

    def taken(self, message: Message) -> MatadorError | None:
        """The error if the id or the unique key of a job is taken, or None."""
        job_id, key = message.id, message.headers.get(names.UNIQUE)
        known = job_id in self._entries or job_id in self._letters
        if known or self._kept(job_id) is not None:
            return DuplicateJobError(
                f"queue {self._queue.name!r} has a job with the id {job_id!r} already",
                queue=self._queue.name,
                job_id=job_id,
            )
        if key is None:
            return None
        other, until = self._keys.get(str(key), ("", 0.0))
        if (other in self._entries) if until is None else self._clock.time() < until:
            return UniqueJobError(
                f"queue {self._queue.name!r}: job {other!r} has the unique key {key!r}",
                queue=self._queue.name,
                job_id=other,
            )
        return None

    def take_key(self, message: Message) -> None:
        """Give a job that was stored its unique key."""
        if (key := message.headers.get(names.UNIQUE)) is not None:
            window = whole(message.headers, names.UNIQUE_FOR)
            until = self._clock.time() + window / 1000 if window else None
            self._keys[str(key)] = (message.id, until)

    def find(self, job_id: str) -> JobRecord | None:
        """The job with that id."""
        if (entry := self._entries.get(job_id)) is not None:
            return self._record(entry, _STATUS[entry.state])
        if (entry := self._letters.get(job_id)) is not None:
            return self._record(entry, "failed")
        return None if (done := self._kept(job_id)) is None else self._completed_record(done)

    def list(self, status: JobStatus, limit: int, skip: int) -> list[JobRecord]:
        """Jobs in one state."""
        if status == "completed":
            done = islice(reversed(self._all_kept().values()), skip, skip + limit)
            return [self._completed_record(one) for one in done]
        if status == "failed":
            letters = islice(reversed(self._letters.values()), skip, skip + limit)
            return [self._record(entry, status) for entry in letters]
        found = [entry for entry in self._entries.values() if _STATUS[entry.state] == status]
        found.sort(key=lambda entry: (entry.due, -(entry.message.priority or 0), entry.seq))
        return [self._record(entry, status) for entry in found[skip : skip + limit]]

    def counts(self) -> JobCounts:
        """The number of jobs in each state."""
        depth = self._queue.depth
        return JobCounts(
            waiting=depth.ready,
            delayed=depth.delayed,
            active=depth.in_flight,
            completed=len(self._all_kept()),
            failed=len(self._letters),
            paused=self._queue.paused,
            all_completed=self._all_completed,
            all_failed=self._all_failed,
            workers=self._queue.receivers,
        )

    def retry(self, job_id: str, now: float) -> None:
        """Make a failed job wait again."""
        letter = self._letters.get(job_id)
        if letter is None:
            record = self.find(job_id)
            if record is None:
                raise self._unknown(job_id)
            raise JobStateError(
                f"job {job_id!r} of {self._queue.name!r} is {record.status}, not failed",
                queue=self._queue.name,
                job_id=job_id,
            )
        headers = as_new(letter.message.headers)
        message = msgspec.structs.replace(
            letter.message, queue=self._queue.name, headers=headers, delay=0.0
        )
        if self.flows.retried(message, now):
            self.flows.block(message, now)
        else:
            self._queue.put(message, now)
        self._failed.remove(letter)

    def unfinished(self, job_id: str) -> Entry | None:
        """A waiting, delayed or active job; None: it is finished.

        Raises:
            JobNotFoundError: there is no such job.
        """
        entry = self._entries.get(job_id)
        if entry is None and job_id not in self._letters and self._kept(job_id) is None:
            raise self._unknown(job_id)
        return entry

    def remove(self, job_id: str) -> None:
        """Delete a job that is not active."""
        if (entry := self._entries.get(job_id)) is not None:
            if entry.state == "held":
                raise JobStateError(
                    f"job {job_id!r} of {self._queue.name!r} is active; it cannot be removed now",
                    queue=self._queue.name,
                    job_id=job_id,
                )
            self._queue.remove(entry)
        elif (entry := self._letters.get(job_id)) is not None:
            self._failed.remove(entry)
        elif self._kept(job_id) is None:
            raise self._unknown(job_id)
        else:
            del self._completed[job_id]

    def _unknown(self, job_id: str) -> JobNotFoundError:
        return JobNotFoundError(
            f"queue {self._queue.name!r} has no job {job_id!r}",
            queue=self._queue.name,
            job_id=job_id,
        )

    def set_progress(self, job_id: str, progress: bytes) -> None:
        """Store the progress of an active job."""
        self._notes.setdefault(job_id, _Note()).progress = progress

    def clear(self) -> None:
        """Delete all jobs and reset the counts."""
        self._queue.clear()
        self._failed.clear()
        for known in (self._entries, self._letters, self._completed, self._notes, self._keys):
            known.clear()
        self.schedules.clear()
        self.flows.clear()
        self._all_completed = self._all_failed = 0
        self._queue.paused = False

    def _completed_record(self, done: _Completed) -> JobRecord:
        record = self._record(done.entry, "completed", done.note)
        return msgspec.structs.replace(
            record,
            attempts=record.attempts + 1,
            finished_at=done.finished_at,
            result=done.result,
        )

    def _record(self, entry: Entry, status: JobStatus, note: _Note | None = None) -> JobRecord:
        message = entry.message
        note = note or self._notes.get(message.id) or _Note()
        epoch = self._clock.time() - self._clock.monotonic()
        return record_of(
            message.id,
            self._queue.name,
            message.headers,
            message.body,
            status,
            priority=message.priority,
            stored_at=epoch + entry.stored,
            due_at=epoch + entry.due if status == "delayed" else None,
            processed_at=note.processed_at,
            progress=note.progress,
        )
