"""Jobs in memory that wait for others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from matador.model import job as names
from matador.model.message import REASON_HEADER, Message
from matador.transports.kit.jobs import as_new
from matador.transports.memory.entry import Entry
from matador.transports.memory.queue import MemoryQueue

FAILED_CHILD = "job.failedChild"
"""The header of a job that failed because a job that it waited for failed: the id of that job."""


class Letters(Protocol):
    """The store of failed jobs."""

    def fail(self, letter: Message) -> bool:
        """Make room for another failed job; False if it must not be kept."""
        ...

    def failed(self, job_id: str) -> Entry | None:
        """The failed job with that id."""
        ...


class MemoryFlows:
    """The dependencies between the jobs of one queue, and the results of finished children."""

    def __init__(self, queue: MemoryQueue, letters: MemoryQueue, jobs: Letters) -> None:
        self._queue = queue
        self._letters = letters
        self._jobs = jobs
        self._blocked: dict[str, Entry] = {}
        self._missing: dict[str, set[str]] = {}
        self._results: dict[str, dict[str, bytes | None]] = {}

    def add(self, messages: Sequence[Message], now: float) -> None:
        """Store the jobs of a flow."""
        for message in messages:
            parent = message.headers.get(names.PARENT)
            if parent is not None:
                self._missing.setdefault(str(parent), set()).add(message.id)
        for message in messages:
            if message.id in self._missing:
                self._blocked[message.id] = self._queue.put_blocked(message, now)
                self._results[message.id] = {}
            else:
                self._queue.put(message, now)

    def results(self, job_id: str) -> Mapping[str, bytes | None]:
        """The results of the jobs that this job waited for."""
        return dict(self._results.get(job_id, {}))

    def completed(self, message: Message, result: bytes | None, now: float) -> None:
        """Record that a job completed. Its parent may run if this was the last child."""
        parent = str(message.headers.get(names.PARENT, ""))
        if self._found(parent, message.id):
            self._results[parent][message.id] = result
            entry = None if parent in self._missing else self._blocked.pop(parent, None)
            if entry is not None:
                self._queue.unblock(entry, now)

    def left(self, message: Message, now: float) -> None:
        """Record that a job was deleted. If it was removed unfinished, its parent fails."""
        for known in (self._blocked, self._missing, self._results):
            known.pop(message.id, None)
        parent = message.headers.get(names.PARENT)
        if parent is not None and self._found(str(parent), message.id):
            self.failed(message, "it was removed", now)

    def _found(self, parent: str, child: str) -> bool:
        """Remove a job from the children that its parent waits for; False if it is not one."""
        missing = self._missing.get(parent, set())
        if child not in missing:
            return False
        missing.discard(child)
        if not missing:
            del self._missing[parent]
        return True

    def failed(self, message: Message, reason: str, now: float) -> None:
        """Record that a job failed permanently. Fail its parent and all further ancestors."""
        text = f"job {message.id!r}, which it waited for, has failed: {reason}"
        gone: list[Entry] = []
        while (entry := self._blocked.get(str(message.headers.get(names.PARENT, "")))) is not None:
            headers = {
                **entry.message.headers,
                names.ERROR: text,
                REASON_HEADER: text,
                FAILED_CHILD: message.id,
            }
            message = entry.message
            del self._blocked[message.id]
            letter = msgspec.structs.replace(message, queue=self._letters.name, headers=headers)
            if self._jobs.fail(letter):
                self._letters.put(letter, now)
            gone.append(entry)
        for entry in gone:
            self._queue.remove(entry)

    def retried(self, message: Message, now: float) -> bool:
        """Record that a failed job is retried. True if it waits for children that have not
        completed.

        Ancestors that failed because of it wait again, too.
        """
        parent = str(message.headers.get(names.PARENT, ""))
        letter = self._jobs.failed(parent)
        if letter is not None and letter.message.headers.get(FAILED_CHILD) == message.id:
            self._wait_again(letter, now)
        return message.id in self._missing

    def _wait_again(self, letter: Entry, now: float) -> None:
        message = letter.message
        headers = {
            name: value for name, value in as_new(message.headers).items() if name != FAILED_CHILD
        }
        again = msgspec.structs.replace(message, queue=self._queue.name, headers=headers)
        self._blocked[message.id] = self._queue.put_blocked(again, now)
        self._letters.remove(letter)
        self.retried(again, now)

    def block(self, message: Message, now: float) -> None:
        """Store a job that waits for other jobs."""
        self._blocked[message.id] = self._queue.put_blocked(message, now)

    def clear(self) -> None:
        """Remove all jobs and results."""
        for known in (self._blocked, self._missing, self._results):
            known.clear()
