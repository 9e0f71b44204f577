"""The one thread that writes: whatever is pending becomes one transaction, so one fsync for all."""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeAlias, TypeVar

from matador.errors import MatadorError, StorageLockedError
from matador.transports.sqlite.errors import is_whole, translate
from matador.transports.sqlite.session import WriterSession
from matador.transports.sqlite.sweep import Caretaker

logger = logging.getLogger("matador.transports.sqlite")

Item = TypeVar("Item")
Outcome = TypeVar("Outcome")
Work: TypeAlias = Callable[[WriterSession, Sequence[Item]], Sequence[Outcome]]


class _WriteJob(Generic[Item, Outcome]):
    """A batch for the writer; each item has an outcome of its own."""

    __slots__ = ("future", "items", "outcomes", "work")

    def __init__(
        self,
        work: Work[Item, Outcome],
        items: Sequence[Item],
        future: asyncio.Future[Sequence[Outcome | MatadorError]],
    ) -> None:
        self.work = work
        self.items = items
        self.future = future
        self.outcomes: Sequence[Outcome | MatadorError] = ()


class Writer:
    """Runs jobs in a thread of its own, in the order they come, many in one transaction.

    A job that fails takes no other down: the transaction is undone and every item of the group is
    tried again in one of its own. Methods belong to the event loop.
    """

    def __init__(self, open_session: Callable[[], WriterSession], name: str) -> None:
        self._open_session = open_session
        self._loop = asyncio.get_running_loop()
        self._jobs: queue.SimpleQueue[_WriteJob[Any, Any] | None] = queue.SimpleQueue()
        self._opened: asyncio.Future[None] = self._loop.create_future()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    async def start(self) -> None:
        """Open the database.

        Raises:
            BaseException: whatever ``open_session`` raises; the thread has ended then.
        """
        self._thread.start()
        await asyncio.shield(self._opened)

    def abandon(self) -> None:
        """Let the thread end by itself, opened or not, without waiting for it."""
        self._jobs.put(None)

    def submit(
        self, work: Work[Item, Outcome], items: Sequence[Item]
    ) -> asyncio.Future[Sequence[Outcome | MatadorError]]:
        """Put a batch in the next transaction. The future never has an exception: what fails has
        its error as its outcome. Cancelling it does not undo or stop anything."""
        future: asyncio.Future[Sequence[Outcome | MatadorError]] = self._loop.create_future()
        self._jobs.put(_WriteJob(work, items, future))
        return future

    async def stop(self) -> None:
        """Finish what was submitted, then close the database."""
        self._jobs.put(None)
        await asyncio.shield(self._ended)

    # -- the writer's thread -----------------------------------------------------------------

    def _run(self) -> None:
        try:
            session = self._open_session()
        except BaseException as error:  # noqa: BLE001 - raised again by start()
            self._tell(_fail, self._opened, error)
            return
        self._tell(_succeed, self._opened)
        caretaker = Caretaker()
        stopping = False
        while not stopping:
            jobs, stopping = self._pending(caretaker.patience())
            if jobs:
                _carry_out(session, jobs)
                self._tell(_resolve, jobs)
                caretaker.worked()
            if not stopping:
                _look_after(caretaker, session)
        _close(session)
        self._tell(_succeed, self._ended)

    def _pending(self, patience: float) -> tuple[list[_WriteJob[Any, Any]], bool]:
        jobs: list[_WriteJob[Any, Any]] = []
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
            # The loop was closed without a disconnect: nobody is left to tell.
            logger.debug("the event loop is closed", exc_info=True)


def _carry_out(session: WriterSession, jobs: Sequence[_WriteJob[Any, Any]]) -> None:
    try:
        session.begin()
        for job in jobs:
            job.outcomes = job.work(session, job.items)
        session.commit()
    except Exception as error:  # noqa: BLE001 - becomes the outcome of those it concerns
        _undo(session)
        if is_whole(error):
            failure = translate(error, session.path)
            for job in jobs:
                job.outcomes = [failure] * len(job.items)
        else:
            _one_by_one(session, jobs)


def _one_by_one(session: WriterSession, jobs: Sequence[_WriteJob[Any, Any]]) -> None:
    failure: MatadorError | None = None
    for job in jobs:
        outcomes: list[Any] = []
        for item in job.items:
            if failure is not None:
                outcomes.append(failure)
                continue
            try:
                session.begin()
                (outcome,) = job.work(session, [item])
                session.commit()
            except Exception as error:  # noqa: BLE001 - becomes the item's outcome
                _undo(session)
                outcome = translate(error, session.path)
                failure = outcome if is_whole(error) else None
            outcomes.append(outcome)
        job.outcomes = outcomes


def _undo(session: WriterSession) -> None:
    try:
        session.rollback()
    except Exception:
        # SQLite undoes it itself before the next transaction, or when the file is next opened.
        logger.warning("%s: could not roll back a failed transaction", session.path, exc_info=True)


def _look_after(caretaker: Caretaker, session: WriterSession) -> None:
    try:
        caretaker.look_after(session)
    except Exception as error:  # noqa: BLE001 - the writer goes on, and so does the caretaker
        # Others being busy is no reason to worry anybody.
        busy = isinstance(translate(error, session.path), StorageLockedError)
        level = logging.DEBUG if busy else logging.WARNING
        logger.log(level, "%s: cleaning up failed and will be tried again: %s", session.path, error)


def _close(session: WriterSession) -> None:
    try:
        session.close()
    except Exception:
        logger.warning("%s: could not close the file cleanly", session.path, exc_info=True)


# -- on the event loop ------------------------------------------------------------------------


def _succeed(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _fail(future: asyncio.Future[None], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)


def _resolve(jobs: Sequence[_WriteJob[Any, Any]]) -> None:
    for job in jobs:
        if not job.future.done():
            job.future.set_result(job.outcomes)
