"""The one thread that writes: whatever is pending becomes one transaction, with one fsync."""

from __future__ import annotations

import asyncio
import logging
import os
import queue
import threading
import weakref
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from matador.errors import MatadorError, StorageLockedError
from matador.transports.sqlite.errors import is_whole, translate
from matador.transports.sqlite.session import WriterSession
from matador.transports.sqlite.sweep import Caretaker

logger = logging.getLogger("matador.transports.sqlite")

Item = TypeVar("Item")
Outcome = TypeVar("Outcome")
Work: TypeAlias = Callable[[WriterSession, Sequence[Item]], Sequence[Outcome]]


@dataclass(slots=True, eq=False)
class _WriteJob:
    """A batch for the writer; each item has its own outcome."""

    work: Work[Any, Any]
    items: Sequence[Any]
    future: asyncio.Future[Sequence[Any]]
    outcomes: Sequence[Any] = ()


class Writer:
    """Runs jobs in its own thread, in order, many in one transaction.

    If a job fails, the transaction is rolled back, and every item of the group is tried again in a
    transaction of its own. The methods belong to the event loop.
    """

    def __init__(self, open_session: Callable[[], WriterSession], name: str) -> None:
        self._open_session: Callable[[], WriterSession] | None = open_session
        self._loop = asyncio.get_running_loop()
        self._jobs: queue.SimpleQueue[_WriteJob | None] = queue.SimpleQueue()
        self._opened: asyncio.Future[None] = self._loop.create_future()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.at_work = threading.Lock()  # held while the thread uses SQLite
        _writers.add(self)

    async def start(self) -> None:
        """Open the database.

        Raises:
            BaseException: whatever ``open_session`` raises; the thread has then ended.
        """
        self._thread.start()
        await asyncio.shield(self._opened)

    def abandon(self) -> None:
        """Let the thread end, whether or not the database is open, without waiting for it."""
        self._jobs.put(None)

    def submit(
        self, work: Work[Item, Outcome], items: Sequence[Item]
    ) -> asyncio.Future[Sequence[Outcome | MatadorError]]:
        """Put a batch in the next transaction. The future never has an exception: the outcome of an
        item that fails is its error. Cancelling the future undoes nothing."""
        future: asyncio.Future[Sequence[Outcome | MatadorError]] = self._loop.create_future()
        self._jobs.put(_WriteJob(work, items, future))
        return future

    async def stop(self) -> None:
        """Finish what has been submitted, then close the database."""
        self._jobs.put(None)
        await asyncio.shield(self._ended)

    # -- the writer's thread -----------------------------------------------------------------

    def _run(self) -> None:
        open_session, self._open_session = self._open_session, None
        assert open_session is not None
        try:
            with self.at_work:
                session = open_session()
            del open_session  # it knows the connection, which ends this thread when it is collected
        except BaseException as error:  # noqa: BLE001 - raised again by start()
            self._tell(_finish, self._opened, error)
            return
        self._tell(_finish, self._opened)
        caretaker = Caretaker()
        stopping = False
        while not stopping:
            jobs, stopping = self._pending(caretaker.patience(session))
            if jobs:
                with self.at_work:
                    _carry_out(session, jobs)
                self._tell(_resolve, jobs)
                caretaker.worked()
            if not stopping:
                with self.at_work:
                    _look_after(caretaker, session)
        with self.at_work, _logged(session, "could not close the file cleanly"):
            session.close()
        self._tell(_finish, self._ended)

    def _pending(self, patience: float) -> tuple[list[_WriteJob], bool]:
        jobs: list[_WriteJob] = []
        try:
            job = self._jobs.get(timeout=patience)
            while job is not None:
                jobs.append(job)
                job = self._jobs.get_nowait()
        except queue.Empty:
            return jobs, False
        return jobs, True

    def _tell(self, callback: Callable[..., None], *arguments: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(callback, *arguments)
        except RuntimeError:
            # The loop was closed without a disconnect: nobody is waiting.
            logger.debug("the event loop is closed", exc_info=True)


_writers: weakref.WeakSet[Writer] = weakref.WeakSet()
_paused: list[Writer] = []
_LONGEST_PAUSE = 5.0  # seconds


def _pause_all() -> None:
    """Before a fork: let transactions end. SQLite would never give up their locks in the child."""
    _paused[:] = [one for one in list(_writers) if one.at_work.acquire(timeout=_LONGEST_PAUSE)]


def _resume_all() -> None:
    for one in _paused:
        one.at_work.release()
    _paused.clear()


os.register_at_fork(before=_pause_all, after_in_parent=_resume_all, after_in_child=_resume_all)


def _carry_out(session: WriterSession, jobs: Sequence[_WriteJob]) -> None:
    error = _attempt(session, jobs)
    if error is None:
        return
    failure = translate(error, session.path) if is_whole(error) else None
    for job in jobs:
        outcomes: list[Any] = []
        for item in job.items:  # each in a transaction of its own, unless that is futile
            outcome = failure
            if failure is None:
                alone = _WriteJob(job.work, [item], job.future)
                error = _attempt(session, [alone])
                if error is None:
                    (outcome,) = alone.outcomes
                else:
                    outcome = translate(error, session.path)
                    failure = outcome if is_whole(error) else None
            outcomes.append(outcome)
        job.outcomes = outcomes


def _attempt(session: WriterSession, jobs: Sequence[_WriteJob]) -> Exception | None:
    """Do jobs in one transaction. Returns why it was rolled back, or None."""
    try:
        session.begin()
        for job in jobs:
            job.outcomes = job.work(session, job.items)
        session.commit()
    except Exception as error:  # noqa: BLE001 - becomes the outcome of the items concerned
        with _logged(session, "could not roll back a failed transaction"):
            # Else SQLite does it before the next transaction, or when the file is next opened.
            session.rollback()
        return error
    return None


@contextmanager
def _logged(session: WriterSession, failure: str) -> Generator[None]:
    try:
        yield
    except Exception:
        logger.warning("%s: %s", session.path, failure, exc_info=True)


def _look_after(caretaker: Caretaker, session: WriterSession) -> None:
    try:
        caretaker.look_after(session)
    except Exception as error:  # noqa: BLE001 - the writer and the caretaker go on
        # It is normal that other processes are busy.
        busy = isinstance(translate(error, session.path), StorageLockedError)
        level = logging.DEBUG if busy else logging.WARNING
        logger.log(level, "%s: clean-up failed and will be tried again: %s", session.path, error)


# -- on the event loop ------------------------------------------------------------------------


def _finish(future: asyncio.Future[None], error: BaseException | None = None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)


def _resolve(jobs: Sequence[_WriteJob]) -> None:
    for job in jobs:
        if not job.future.done():
            job.future.set_result(job.outcomes)
